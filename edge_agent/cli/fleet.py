"""What the broker remembers of all devices: their retained topics, whoever published them.

Payloads are taken as they are; whoever shows them must expect any JSON in them.
"""

from __future__ import annotations

import time
from typing import Any

from ..core.errors import AgentError, UsageError
from ..core.names import NAME_RULE, is_name
from ..mqtt.connection import parse_object
from ..mqtt.one_shot import OneShotClient
from .terminal import moment, span

LOOK_SECONDS = 1.5
"""How long the first retained topic may take to arrive."""
QUIET_SECONDS = 0.4
"""After the last one; then there are no more."""
MOST_SECONDS = 30.0
"""For all of them, over a slow link."""


class Fleet:
    """The devices, by what they have left on their retained topics."""

    def __init__(self, client: OneShotClient, root: str) -> None:
        """Start without any messages, with a client that is subscribed to what is of interest."""
        self._client = client
        self._root = root
        self.status: dict[str, dict[str, Any]] = {}
        self.info: dict[str, dict[str, Any]] = {}
        self.health: dict[str, dict[str, Any]] = {}
        self.models: dict[str, dict[str, dict[str, Any]]] = {}
        """By device and model."""
        self.sources: dict[str, dict[str, dict[str, Any]]] = {}
        """By device and pipeline."""
        self.topics: dict[str, set[str]] = {}
        """All that hold something, by device."""

    def look(self) -> None:
        """Collect the retained messages until no more of them arrive.

        Raises:
            BrokerError: the connection is lost.
        """
        now = time.monotonic()
        quiet, most = now + LOOK_SECONDS, now + MOST_SECONDS
        while (left := min(quiet, most) - time.monotonic()) > 0:
            heard = self._client.next(left)
            if heard is None:
                return
            self.take(heard.topic, heard.payload)
            # What is published meanwhile does not prolong it.
            if heard.retained:
                quiet = time.monotonic() + QUIET_SECONDS

    def take(self, topic: str, payload: bytes) -> None:
        """Record a message; an empty one is ignored."""
        device, *levels = topic.removeprefix(f"{self._root}/").split("/")
        if not payload:
            return
        self.topics.setdefault(device, set()).add(topic)
        if (says := parse_object(payload)) is None:
            return
        match levels:
            case ["status"]:
                self.status[device] = says
            case ["info"]:
                self.info[device] = says
            case ["health"]:
                self.health[device] = says
            case ["model", name]:
                self.models.setdefault(device, {})[name] = says
            case ["source", name]:
                self.sources.setdefault(device, {})[name] = says

    def online(self, device: str) -> bool:
        """Whether a device is connected, as far as its broker knows."""
        return self.status.get(device, {}).get("state") == "online"

    def members(self, group: str) -> list[str]:
        """List the devices of a group, online or not."""
        return sorted(
            device
            for device, info in self.info.items()
            if isinstance(groups := info.get("groups"), list) and group in groups
        )

    def named(self, target: str) -> list[str]:
        """List what a target means: the device that it names, or all members of its group."""
        return self.members(target[1:]) if target.startswith("@") else [target]


def check_target(target: str) -> None:
    """Check the value of `--device ID|@GROUP`.

    Raises:
        UsageError: it is neither a name nor @ and a name.
    """
    if not is_name(target.removeprefix("@")):
        raise UsageError(f"--device: {target!r} is not a name ({NAME_RULE}), or @ and one")


def online_targets(fleet: Fleet, target: str, *, wait: bool, timeout: float) -> list[str]:
    """Find the devices that a target means and that are online; *wait* for the first of them.

    Raises:
        AgentError: there is none, for *timeout* seconds: the device is unknown or offline.
    """
    deadline = time.monotonic() + timeout
    while True:
        fleet.look()
        if found := [device for device in fleet.named(target) if fleet.online(device)]:
            return found
        problem = absence(fleet, target)
        if not wait:
            raise AgentError(f"{problem}; --wait waits for it")
        if time.monotonic() > deadline:
            raise AgentError(f"{problem}, after {timeout:.0f} s")


def absence(fleet: Fleet, target: str) -> str:
    """Return why no device can be reached."""
    if target.startswith("@"):
        members = fleet.members(target[1:])
        return f"no online device is in group {target}" + (
            f" (offline: {', '.join(members)})" if members else ""
        )
    if target in fleet.status:
        return f"device {target} is {offline_since(fleet, target)}"
    return unknown(fleet, target)


def unknown(fleet: Fleet, device: str) -> str:
    """Return that a device is unknown, and which are known."""
    return f"device {device} is unknown; known: {', '.join(sorted(fleet.status)) or 'none'}"


def offline_since(fleet: Fleet, device: str) -> str:
    """Return since when a device is offline, and whether it was stopped or lost.

    The last will of one that was lost bears the time of its connecting, so the last that was heard
    of it is the best that is known.
    """
    status = fleet.status[device]
    stopped = status.get("reason") == "stopped"
    heard = [status, fleet.health.get(device, {}), *fleet.sources.get(device, {}).values()]
    times = [at for says in heard[: 1 if stopped else None] if (at := moment(says)) is not None]
    if not times:
        return "offline"
    ago = span(time.time() - max(times))
    shown = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(times)))
    if stopped:
        return f"offline since {shown}, {ago} ago (stopped)"
    return f"offline (lost), last heard of {shown}, {ago} ago"
