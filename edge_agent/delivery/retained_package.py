"""A package that lies retained on the broker, block by block, for devices to draw. Section 5.

Sent once, however many draw it and whenever they come; removed again by who has sent it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ..config.settings import Broker
from ..core.errors import ModelError
from ..models.packages.blocks import ENTRY
from ..models.packages.build import Package
from ..models.packages.package import PackageHeader
from ..mqtt.connection import parse_object
from ..mqtt.one_shot import OneShotClient
from ..mqtt.payloads import SCHEMA
from ..mqtt.topics import packages
from .protocol import LIST_PART_BYTES, WINDOW

MAX_RETAINED_BYTES = 256 * 2**20
"""Of a package; brokers keep what is retained in memory."""
SENT_SECONDS = 120.0
"""Within which the broker acknowledges a window, over a slow link."""
READ_BACK_SECONDS = 5.0
CLEARED = 512
"""Topics that are cleared at a time."""


def offer_of(package: Package) -> dict[str, Any]:
    """Return the offer of a package, without a time."""
    offer: dict[str, Any] = {
        "schema": SCHEMA,
        "package": base64.b64encode(package.front.header).decode(),
    }
    if package.front.signature is not None:
        offer["signature"] = base64.b64encode(package.front.signature).decode()
    return offer


class RetainedPackage:
    """One package, and the topics that it lies on."""

    def __init__(
        self, client: OneShotClient, broker: Broker, package: Package, *, expires_s: int
    ) -> None:
        """Send nothing yet.

        After *expires_s* a broker of MQTT 5 removes it by itself.
        """
        self._client = client
        self._broker = broker
        self._package = package
        self._expires_s = expires_s
        self._topic = f"{packages(broker.topic_root)}/{package.transfer}"
        self._offer = json.dumps(offer_of(package)).encode()
        self.bytes_sent = 0

    def place(self, progress: Callable[[int, int], object]) -> str:
        """Put it there; return why others cannot draw it from there; empty: they can.

        Raises:
            BrokerError: the broker does not take it.
        """
        size = self._package.header.size
        if size > MAX_RETAINED_BYTES:
            most = MAX_RETAINED_BYTES >> 20
            return f"the package has {size >> 20} MiB, and a broker is to keep {most} at most"
        if not self._client.retains:
            return "the broker keeps no retained messages"
        self.put(progress)
        if self.lies_there():
            return ""
        self.clear()
        return (
            "what this broker keeps retained cannot be read over another connection: it keeps it "
            "by node, or an access list is in the way"
        )

    def put(self, progress: Callable[[int, int], object]) -> None:
        """Send all of it, the offer last; *progress* is told the blocks that are sent, and all.

        Raises:
            BrokerError: the broker does not take it.
        """
        done = 0
        parts = self._parts()
        while receipts := [self._publish(*part) for part in islice(parts, WINDOW)]:
            self._client.wait_published(receipts, SENT_SECONDS)
            done = min(done + len(receipts), len(self._package.blocks))
            progress(done, len(self._package.blocks))
        self._client.wait_published([self._publish("offer", self._offer)], SENT_SECONDS)

    def _parts(self) -> Iterator[tuple[str, bytes]]:
        listed = self._package.front.block_list
        for number, start in enumerate(range(0, len(listed), LIST_PART_BYTES)):
            yield f"list/{number}", listed[start : start + LIST_PART_BYTES]
        for number in range(len(self._package.blocks)):
            yield f"block/{number}", self._package.block(number)

    def _publish(self, level: str, payload: bytes) -> Any:
        self.bytes_sent += len(payload)
        return self._client.publish(
            f"{self._topic}/{level}", payload, retain=True, expires_s=self._expires_s
        )

    def lies_there(self) -> bool:
        """Whether another connection is given the offer, which was sent after all the rest.

        Raises:
            BrokerError: the broker cannot be reached.
        """
        with OneShotClient(self._broker, []) as reader:
            return reader.read(f"{self._topic}/offer", READ_BACK_SECONDS) == self._offer

    def clear(self) -> None:
        """Remove it from the broker.

        Raises:
            BrokerError: the broker does not do it.
        """
        clear(self._client, self._topic, len(self._package.blocks))


def remove(client: OneShotClient, root: str, transfer: str) -> bool:
    """Remove a package that another has put on the broker; False: it is not there.

    Raises:
        BrokerError: the broker does not do it.
    """
    topic = f"{packages(root)}/{transfer}"
    offer = client.read(f"{topic}/offer", READ_BACK_SECONDS)
    says = None if offer is None else parse_object(offer)
    if says is None:
        return False
    try:
        header = PackageHeader.parse(base64.b64decode(str(says.get("package"))))
    except (ValueError, ModelError):
        return False
    clear(client, topic, header.blocks)
    return True


def clear(client: OneShotClient, topic: str, blocks: int) -> None:
    """Remove a package of so many *blocks*; the offer last, which says what there is to remove.

    Raises:
        BrokerError: the broker does not do it.
    """
    parts = math.ceil(blocks * ENTRY.size / LIST_PART_BYTES)
    levels = [f"block/{number}" for number in range(blocks)]
    levels += [f"list/{number}" for number in range(parts)]
    left = iter([*levels, "offer"])
    while some := list(islice(left, CLEARED)):
        receipts = [client.publish(f"{topic}/{level}", b"", retain=True) for level in some]
        client.wait_published(receipts, SENT_SECONDS)
