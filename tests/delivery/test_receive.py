"""The receiving side of pushes alone: what it says of offers, and whom it hands over."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.errors import MalformedError
from edge_agent.delivery.protocol import MAX_OFFER_BYTES
from edge_agent.delivery.receive.admission import DeviceIdentity
from edge_agent.delivery.receive.blocks import MAX_TRANSFERS
from edge_agent.delivery.receive.router import Router
from edge_agent.delivery.receive.transfer import Drawing
from edge_agent.delivery.rollout.ledger import Candidate, Ledger
from edge_agent.models.packages.keys import TrustedKeys
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from edge_agent.mqtt.connection import ReceivedMessage
from tests.helpers.push import PlainPackage, model_folder, plain_package

EXPIRED = "2020-01-01T00:00:00.000Z"


class Receiving:
    """A device's receiving side, with a store; remembers what it says and whom it hands over."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "state")
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self.handed: list[Candidate] = []
        self.clock_is_set = True
        recipient = DeviceIdentity(
            device="edge-01",
            profile="generic",
            here=(),
            groups=tuple,
            trusted=lambda: TrustedKeys([]),
            allow_unsigned=lambda: True,
            quota_bytes=lambda: 2**24,
            pinned=tuple,
            credible=lambda: self.clock_is_set,
        )
        catalog = Catalog(self.store)
        self.ledger = Ledger(self.store, catalog, self._hear, lambda: None)
        self.asked: list[int] = []
        """How many topics of a package it has asked for, each time."""
        drawing = Drawing(
            "edge/@package",
            self._ask,
            lambda _topics: None,
            lambda _why: False,
        )
        self.router = Router(
            self.store, catalog, recipient, self.ledger, drawing, submit=self.handed.append
        )

    def _ask(self, topics: list[str]) -> bool:
        self.asked.append(len(topics))
        return True

    def _hear(self, transfer: str, payload: Mapping[str, Any]) -> bool:
        self.said.append((transfer, payload))
        return True

    def offer(self, package: PlainPackage, **more: Any) -> None:
        """Offer a package."""
        body = {"schema": 1, "package": base64.b64encode(package.header).decode(), **more}
        self.message(package, "offer", payload=json.dumps(body).encode())

    def draw(self, package: PlainPackage, kind: str, number: int, payload: bytes) -> None:
        """Give it a part of a package that lies on the broker."""
        levels = (package.transfer, kind, str(number))
        topic = "/".join(("edge/@package", *levels))
        message = ReceivedMessage(topic, payload, retained=True, response_topic=None,
                                  correlation=None, ack=lambda: None)  # fmt: skip
        self.router.drawn(levels, message)

    def message(self, package: PlainPackage, *rest: str, payload: bytes) -> bool:
        """Give it a message of a transfer."""
        levels = ("push", package.transfer, *rest)
        message = ReceivedMessage("/".join(levels), payload, retained=False, response_topic=None,
                          correlation=None, ack=lambda: None)  # fmt: skip
        return self.router.message(levels, message)

    def states(self, package: PlainPackage) -> list[str]:
        """List the states of a transfer that were said, in order."""
        return [payload["state"] for transfer, payload in self.said if transfer == package.transfer]


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[Receiving]:
    """Give a receiving side that takes unsigned packages."""
    receiving = Receiving(tmp_path)
    yield receiving
    receiving.router.close()


def offered(tmp_path: Path, version: str, **says: Any) -> PlainPackage:
    """Make a package of a small model."""
    return plain_package(model_folder(tmp_path / version, version), "level", version, **says)


def test_an_offer_that_waited_for_the_clock_is_rejected_once(
    tmp_path: Path, receiving: Receiving
) -> None:
    """When the clock is set and shows that it has expired, its sender hears of it, and only once.

    It does not count among those that wait any more, either.
    """
    package = offered(tmp_path, "2", expires=EXPIRED)
    receiving.clock_is_set = False
    receiving.offer(package)
    receiving.router.tick(time.monotonic() + 10)
    assert receiving.states(package) == ["need"]
    receiving.clock_is_set = True
    for seconds in (20, 30, 40):
        receiving.router.tick(time.monotonic() + seconds)
    assert receiving.states(package) == ["need", "rejected"]
    assert "expired" in receiving.said[-1][1]["why"]


def test_a_whole_package_waits_at_the_broker_for_the_clock(
    tmp_path: Path, receiving: Receiving
) -> None:
    """It came right after a boot, and was refused for good; another one has to be pushed."""
    acknowledged: list[str] = []

    def publish(package: PlainPackage) -> bool:
        message = ReceivedMessage("in/model", package.tar(), retained=False, response_topic=None,
            correlation=None, ack=lambda: acknowledged.append(package.transfer))  # fmt: skip
        return receiving.router.message(("model",), message)

    late, good, third = (
        offered(tmp_path, "2", expires=EXPIRED),
        offered(tmp_path, "3", expires="2099-01-01T00:00:00Z"),
        offered(tmp_path, "4", expires=EXPIRED),
    )
    receiving.clock_is_set = False
    assert publish(good)
    assert publish(good), "again, over the next connection"
    assert not publish(third)
    assert receiving.states(third) == ["rejected"]
    receiving.router.suspend(good.transfer)  # as a roll-out of it does that waits, too
    assert acknowledged == [good.transfer], "the first copy"
    receiving.clock_is_set = True
    receiving.router.tick(time.monotonic() + 10)
    (candidate,) = receiving.handed
    assert (candidate.version, acknowledged) == ("3", [good.transfer]), "the first copy"
    acknowledged.clear()
    receiving.clock_is_set = False
    assert publish(third), "none waits any more"
    receiving.message(third, "abort", payload=b"")
    assert acknowledged == [third.transfer]
    acknowledged.clear()
    assert publish(late)
    receiving.clock_is_set = True
    receiving.router.tick(time.monotonic() + 20)
    assert receiving.states(late) == ["need", "rejected"]
    assert acknowledged == [late.transfer]


def test_only_so_many_offers_wait_for_the_clock(tmp_path: Path, receiving: Receiving) -> None:
    """One more than may wait is refused; one that waits already may be offered again."""
    receiving.clock_is_set = False
    packages = [
        offered(tmp_path, str(number), expires=EXPIRED) for number in range(2, MAX_TRANSFERS + 3)
    ]
    for package in packages:
        receiving.offer(package)
    *waiting, one_more = packages
    assert [receiving.states(package) for package in waiting] == [["need"]] * MAX_TRANSFERS
    assert receiving.states(one_more) == ["rejected"]
    receiving.offer(waiting[0])
    assert receiving.states(waiting[0]) == ["need", "need"]
    receiving.message(waiting[0], "abort", payload=b"")
    receiving.offer(one_more)
    assert receiving.states(one_more) == ["rejected", "need"]


def test_only_so_many_transfers_are_under_way(tmp_path: Path, receiving: Receiving) -> None:
    """One more is refused until another has ended; the sender is told to try again."""
    packages = [offered(tmp_path, str(number)) for number in range(2, MAX_TRANSFERS + 3)]
    for package in packages:
        receiving.offer(package)
    *under_way, one_more = packages
    assert [receiving.states(package) for package in under_way] == [["need"]] * MAX_TRANSFERS
    assert receiving.states(one_more) == ["rejected"]
    assert "try again later" in receiving.said[-1][1]["why"]
    receiving.message(under_way[0], "abort", payload=b"")
    receiving.offer(one_more)
    assert receiving.states(one_more) == ["rejected", "need"]


def test_a_package_is_asked_for_and_handed_over(tmp_path: Path, receiving: Receiving) -> None:
    """List, then blocks, are asked for; what is complete is verified, and can be installed."""
    package = offered(tmp_path, "2")
    receiving.offer(package)
    assert receiving.said[-1][1]["list"] == [[0, 0]]
    receiving.message(package, "list", "0", payload=package.block_list)
    assert receiving.said[-1][1]["need"] == [[0, len(package.blocks) - 1]]
    assert receiving.ledger.describe("level") == {
        "candidate": {"version": "2", "phase": "receiving", "percent": 0.0}
    }
    for number, block in enumerate(package.blocks):
        assert receiving.message(package, "block", str(number), payload=block)
    assert receiving.states(package) == ["need", "need", "verifying"]
    assert receiving.ledger.describe("level") == {}
    (candidate,) = receiving.handed
    assert candidate.install().path == receiving.store.path("level", "2")
    receiving.offer(package)
    assert receiving.states(package)[3:] == ["verifying"]
    # As after its rollback by command: it is tried once more, and not "verifying" for ever.
    receiving.ledger.remove(candidate)
    receiving.offer(package)
    assert len(receiving.handed) == 2


@pytest.mark.parametrize(
    "payload",
    [b"{", b"[]", b'{"package": 1}', b'{"package": "?"}', b" " * (MAX_OFFER_BYTES + 1)],
    ids=["cut", "list", "number", "not base64", "too large"],
)
def test_what_is_no_offer_is_said_to_be_none(
    tmp_path: Path, receiving: Receiving, payload: bytes
) -> None:
    """It counts as malformed, and whoever sent it is told."""
    package = offered(tmp_path, "2")
    with pytest.raises(MalformedError, match="offer"):
        receiving.message(package, "offer", payload=payload)
    assert receiving.states(package) == ["rejected"]


@pytest.mark.parametrize("sent", [EXPIRED, "late"], ids=["kept by the broker", "no time"])
def test_a_refused_offer_of_what_is_being_received_is_answered_with_its_progress(
    tmp_path: Path, receiving: Receiving, sent: str
) -> None:
    """The state was "receiving", which the interface does not have, with 100 % of one block."""
    package = offered(tmp_path, "2")
    receiving.offer(package)
    receiving.message(package, "list", "0", payload=package.block_list)
    before = receiving.said[-1][1]
    with pytest.raises(MalformedError, match="offer"):
        receiving.offer(package, time=sent)
    says = receiving.said[-1][1]
    assert len(receiving.said) == 3
    assert (says["state"], says["percent"], says["total"]) == ("need", 0.0, before["total"])


def test_what_is_drawn_is_asked_for_as_fast_as_it_comes(
    tmp_path: Path, receiving: Receiving
) -> None:
    """One block at first, then what comes in a second: a broker keeps what many have asked for."""
    folder = model_folder(tmp_path / "2", "2", hidden=200)
    package = plain_package(folder, "level", "2", cut=2_000)
    receiving.offer(package, drawn=True)
    receiving.draw(package, "list", 0, package.block_list)
    assert receiving.asked[1:] == [1]
    for number, block in enumerate(package.blocks[:16]):
        receiving.draw(package, "block", number, block)
    assert receiving.asked[1] < max(receiving.asked) <= 32
    assert len(receiving.said) == len(receiving.asked)


def test_what_is_drawn_slowly_is_asked_for_block_by_block(
    tmp_path: Path, receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a block takes longer than a second, no more than one is on its way."""
    package = offered(tmp_path, "2")
    clock = itertools.count(time.monotonic(), 1.5)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    receiving.offer(package, drawn=True)
    receiving.draw(package, "list", 0, package.block_list)
    for number, block in enumerate(package.blocks):
        receiving.draw(package, "block", number, block)
    assert set(receiving.asked) == {1}
    assert len(receiving.handed) == 1
