"""What the broker retains about all devices, whoever published it.

Payloads are not checked; code that shows them must expect any JSON.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from ..core.errors import AgentError, MalformedError, UsageError
from ..core.names import NAME_RULE, is_name, is_version
from ..core.text import printable
from ..delivery.plan import MOST_DAYS, read
from ..delivery.sender import RETURN_SECONDS
from ..mqtt.connection import ReceivedMessage, parse_object
from ..mqtt.declared import as_declared
from ..mqtt.look import Said, offline_since, tables_in, texts_in
from ..mqtt.one_shot import OneShotClient
from ..mqtt.probe import blindness

LOOK_SECONDS = 1.5
"""How long the first retained topic may take to arrive."""
QUIET_SECONDS = 0.4
"""Silence after the last one that means there are no more."""
SLOWER = 4.0
"""Factor for these over MQTT 3.1.1: clusters limited to it look up filters on disk."""
MOST_SECONDS = 30.0
"""Time limit for all of them, over a slow link."""
AGAIN_SECONDS = 2.0
"""Pause before repeating a look that a node has refused."""
KINDS = ("status", "info", "health", "rollout", "model/+", "source/+")
"""Kinds of retained topics that a look may include."""
SMALL = 100
"""Number of messages that no broker drops."""
QUEUE = 1000
"""Number of messages that a default mosquitto queues for a slower client."""
MANY = 8
"""With more devices, they are counted instead of named."""
MOST_BYTES = 2**20
"""Largest message of a device on one of these topics."""
BATCH = 200
"""Number of exact topics requested at once."""
NOBODY = (
    "this broker knows of no device; is it the right one, does an agent run, and may this user "
    "read what it says?"
)


class Fleet:
    """The devices, as known from their retained topics."""

    def __init__(self, client: OneShotClient, root: str) -> None:
        """Start without messages; *client* must be subscribed to the topics of interest."""
        self._client = client
        self._root = root
        self.status: dict[str, dict[str, Any]] = {}
        self.info: dict[str, dict[str, Any]] = {}
        self.health: dict[str, dict[str, Any]] = {}
        self.models: dict[str, dict[str, dict[str, Any]]] = {}
        """Model topics by device and model."""
        self.sources: dict[str, dict[str, dict[str, Any]]] = {}
        """Source topics by device and pipeline."""
        self.rollouts: dict[str, dict[str, Any]] = {}
        """By device: its report on roll-outs."""
        self.plans: dict[str, bytes] = {}
        """By id: the payload on the topic of a roll-out."""
        self.discovery: dict[str, dict[str, Any]] = {}
        """Home Assistant's discovery payloads, by topic."""
        self.topics: dict[str, set[str]] = {}
        """All topics with a retained message, by device."""
        self.odd: set[str] = set()
        """Topics whose retained message no agent publishes, and which are left out, or in part."""
        self.gap = ""
        """Why devices may have been missed; empty: the look is complete."""
        self._left_at: dict[str, float] = {}
        """By device that went offline after the look: the monotonic time of that."""
        self._asked: set[str] = set()

    def look(self) -> None:
        """Collect retained messages until no more arrive, and request topics that were left out.

        A cluster refuses subscriptions while a lost node is missing: then the look is repeated over
        another node. What a node lacks that was retained meanwhile is read over another, too.
        """
        until = time.monotonic() + MOST_SECONDS
        self._look()
        while self._client.refused and self._client.has_nodes and time.monotonic() < until:
            time.sleep(AGAIN_SECONDS)
            self._client.reconnect()
            self.gap = ""
            self._asked.clear()
            self._look()
        if self._client.has_nodes and not self.gap:
            while True:
                self._client.reconnect()
                self._collect(only_new=True)
                if not self._client.refused or time.monotonic() >= until:
                    break
                time.sleep(AGAIN_SECONDS)
            self._note_refusal()
        self._left_at.clear()

    def _look(self) -> None:
        heard = self._collect()
        if len(heard) < SMALL:
            kinds: set[str] = set()
        elif len(heard) < QUEUE:
            kinds = {"status", "info"}
        else:
            kinds = self._look_by_kind()
        missing = self._missing(kinds)
        # If each kind was requested separately, only a missing device is a gap.
        proofs = ("/status", "/info") if len(heard) < QUEUE else ("/status",)
        for start in range(0, len(missing), BATCH):
            found = self._collect(missing[start : start + BATCH])
            if any(each.topic.endswith(proofs) for each in found):
                self._miss()
        named = self._withheld()
        for start in range(0, len(named), BATCH):
            self._collect(named[start : start + BATCH], first_s=QUIET_SECONDS)
        self._note_refusal()
        # What is published meanwhile proves nothing: only what is retained shows all devices.
        exact = {each for each in self._client.filters if "+" not in each and "#" not in each}
        is_of_one = any(each.startswith(f"{self._root}/") for each in exact)
        is_proven = any(each.topic not in exact for each in heard)
        if not (is_of_one or is_proven or self.gap) and self.blind:
            mend = "; name one device, with --device ID" if self._client.retains else ""
            self.gap = f"{self.blind}{mend}"

    def _note_refusal(self) -> None:
        if self._client.refused:
            self.gap = f"the broker has refused a subscription: {self._client.refused}"

    def _miss(self) -> None:
        why = "the broker leaves out retained messages; raise its limit for each client"
        self.gap = f"{why} (mosquitto: max_queued_messages)"

    def _look_by_kind(self) -> set[str]:
        """Request each kind separately, in case the broker's queue is too short for all together.

        Returns:
            The kinds with so many topics that some may still have been left out.
        """
        before, many = len(self.status), {"status"}
        for wanted in self._client.filters:
            count = len(self._collect([wanted]))
            kind = wanted.removeprefix(f"{self._root}/").partition("/")[2]
            if count >= QUEUE:
                many.add(kind)
            # The messages dropped for a slow reader vary; over 3.1.1 they are always the same.
            if (kind == "status" and not before == len(self.status) == count) or (
                count >= QUEUE and self._client.protocol != 5
            ):
                self._miss()
        return many

    def _missing(self, kinds: set[str]) -> list[str]:
        """List the topics of these kinds that may exist but have not arrived, each once."""
        missing = [
            f"{self._root}/{device}/{kind}"
            for kind in KINDS
            if kind in kinds and f"{self._root}/+/{kind}" in self._client.filters
            for device, topics in self.topics.items()
            if kind.endswith("+") or f"{self._root}/{device}/{kind}" not in topics
        ]
        new = [topic for topic in missing if topic not in self._asked]
        self._asked.update(new)
        return new

    def _withheld(self) -> list[str]:
        """List the topics of models and sources that devices name, where a wildcard brought none.

        Some brokers, such as RabbitMQ, send no retained messages to wildcards.
        """
        named = []
        for device, info in self.info.items():
            has = {"model": texts_in(info.get("has"))}
            has["source"] = [str(each.get("name")) for each in tables_in(info.get("pipelines"))]
            for kind, names in has.items():
                start = f"{self._root}/{device}/{kind}/"
                wanted = {f"{start}+", f"{self._root}/+/{kind}/+"} & set(self._client.filters)
                if wanted and not any(each.startswith(start) for each in self.topics[device]):
                    named += [start + name for name in names if is_name(name)]
        new = [topic for topic in named if topic not in self._asked]
        self._asked.update(new)
        return new

    @cached_property
    def blind(self) -> str:
        """Why the broker shows no device but by its name; "": it would show them."""
        return blindness(self._client, self._root)

    def _collect(
        self,
        filters: list[str] | None = None,
        *,
        only_new: bool = False,
        first_s: float = LOOK_SECONDS,
    ) -> list[ReceivedMessage]:
        """Collect retained messages for these filters, or for the subscribed ones.

        *only_new*: of topics that are not known, because another node may have older ones.
        *first_s*: how long the first may take to arrive once the subscription is granted.
        """
        if filters is not None:
            self._client.ask(filters)
        collected: list[ReceivedMessage] = []
        now, pace = time.monotonic(), 1.0 if self._client.protocol == 5 else SLOWER
        quiet, most = now + first_s * pace, now + MOST_SECONDS
        while (left := min(quiet, most) - time.monotonic()) > 0:
            heard = self._client.next(left)
            if heard is None and (self._client.unanswered or self._client.receives):
                quiet = time.monotonic() + QUIET_SECONDS * pace
                continue
            if heard is None:
                return collected
            if not (only_new and heard.retained and self._knows(heard.topic)):
                self.take(heard.topic, heard.payload or b"?" * bool(heard.too_large))
            # Messages published meanwhile do not prolong it.
            if heard.retained:
                collected.append(heard)
                quiet = time.monotonic() + QUIET_SECONDS * pace
        if owed := self._client.unanswered:
            self.gap = f"the broker has not {owed} within {MOST_SECONDS:.0f} s"
        elif most < quiet:
            self.gap = f"retained messages were still arriving after {MOST_SECONDS:.0f} s"
        return collected

    def _knows(self, topic: str) -> bool:
        device, _, rest = topic.removeprefix(f"{self._root}/").partition("/")
        return rest in self.plans if device == "@rollout" else topic in self.topics.get(device, ())

    def take(self, topic: str, payload: bytes) -> None:
        """Record a message; an empty one is ignored."""
        device, *levels = topic.removeprefix(f"{self._root}/").split("/")
        if not payload:
            return
        if device == "@rollout":
            self.plans["/".join(levels)] = payload
            return
        self.topics.setdefault(device, set()).add(topic)
        body = parse_object(payload) if len(payload) <= MOST_BYTES else None
        says = body
        if body is not None and levels and levels[0] in {kind.split("/")[0] for kind in KINDS}:
            says = as_declared(levels[0], body)
        (self.odd.discard if says == body else self.odd.add)(topic)
        if says is None or not is_name(device) or not _is_ours(levels, says):
            self.odd.add(topic)
            return
        match levels:
            case ["status"]:
                self.status[device] = says
                if self.online(device):
                    self._left_at.pop(device, None)
                else:
                    self._left_at.setdefault(device, time.monotonic())
            case ["info"]:
                self.info[device] = says
            case ["health"]:
                self.health[device] = says
            case ["rollout"]:
                self.rollouts[device] = says
            case ["model", name]:
                self.models.setdefault(device, {})[name] = says
            case ["source", name]:
                self.sources.setdefault(device, {})[name] = says
            case [*_, "device", _, "config"]:
                self.discovery[topic] = says

    def online(self, device: str) -> bool:
        """Whether a device is connected, as far as its broker knows."""
        return self.status.get(device, {}).get("state") == "online"

    def may_return(self, device: str) -> bool:
        """Whether a device has just gone offline: many are back within seconds."""
        return time.monotonic() - self._left_at.get(device, -math.inf) < RETURN_SECONDS

    def present(self, device: str) -> tuple[set[str], set[str] | None] | None:
        """Return the names of the pipelines and models that an online device has.

        The models are None if it does not say; None: it has said nothing since it started.
        """
        info = self.info.get(device, {})
        if not info or info.get("session") != self.status.get(device, {}).get("session"):
            return None
        pipelines = {str(each.get("name")) for each in tables_in(info.get("pipelines"))}
        return pipelines, set(texts_in(info["has"])) if "has" in info else None

    def groups(self, device: str) -> list[str]:
        """List the groups that a device is a member of."""
        groups = self.info.get(device, {}).get("groups")
        return groups if isinstance(groups, list) else []

    def said(self, device: str) -> Said:
        """Return the content of a device's retained topics."""
        return Said(
            device,
            self.status.get(device, {}),
            self.info.get(device, {}),
            self.health.get(device, {}),
            self.sources.get(device, {}),
        )

    def members(self, group: str) -> list[str]:
        """List the devices of a group, online or not."""
        return sorted(device for device in self.info if group in self.groups(device))

    def rolled_out(self, but: str = "") -> dict[str, float]:
        """Return the transfers of packages that roll-outs other than *but* need.

        Each with when the last of these expires, seconds since 1970.
        """
        found: dict[str, float] = {}
        for name, payload in self.plans.items():
            with suppress(MalformedError):
                plan = read(payload, None)
                if name != but and plan.transfer:
                    found[plan.transfer] = max(plan.expires_at, found.get(plan.transfer, 0.0))
        return found

    def keeping_s(self, transfer: str, least_s: float) -> int:
        """Return for how many seconds to put a package on the broker: roll-outs share it."""
        left = self.rolled_out().get(transfer, 0.0) - time.time()
        return int(max(least_s, min(left, MOST_DAYS * 86400)))

    def named(self, target: str) -> list[str]:
        """List the devices that a target names: itself, or all members of its group."""
        return self.members(target[1:]) if target.startswith("@") else [target]


def _is_ours(levels: Sequence[str], says: Mapping[str, Any]) -> bool:
    """Whether an agent may have published this on a topic of its own."""
    match levels:
        case ["status"]:
            return says.get("state") in {"online", "offline"}
        case ["model", name]:
            versions = says.get("versions", [])
            mine = "live" in says and says.get("name", name) == name
            return mine and all(map(is_version, versions))
    return True


def odd_words(fleet: Fleet) -> str:
    """Return a warning that messages of others lie on the topics of devices."""
    return f"left out, whole or in part, as no agent publishes them: {some_of(sorted(fleet.odd))}"


def look_filters(root: str, target: str | None, *kinds: str) -> list[str]:
    """Return the filters for a look at a target: every device's status, and these kinds."""
    of = target if target and not target.startswith("@") else "+"
    wanted = (f"{root}/{of}/{kind}" for kind in ("status", *kinds))
    return list(dict.fromkeys([f"{root}/+/status", *wanted]))


def some_of(devices: Sequence[str]) -> str:
    """List devices by name; if there are many, only the first."""
    more = len(devices) - MANY
    named = ", ".join(devices[:MANY])
    return named if more <= 0 else f"{named} and {more} more"


def check_target(target: str) -> None:
    """Check the value of `--device ID|@GROUP`."""
    if not is_name(target.removeprefix("@")):
        raise UsageError(f"--device: {target!r} is not a name ({NAME_RULE}), or @ and one")


def online_targets(
    fleet: Fleet, target: str, *, wait: bool | None = None, timeout: float
) -> list[str]:
    """Return the online devices of a target; *wait* for the first of them if requested.

    Raises:
        AgentError: there is none; it names `--wait`, except where *wait* is None: a command
            without that option.
    """
    deadline, said = time.monotonic() + timeout, False
    while True:
        fleet.look()
        if fleet.gap and target.startswith("@"):
            raise AgentError(f"{incomplete(fleet)}; nothing was sent to {target}")
        if found := [device for device in fleet.named(target) if fleet.online(device)]:
            return found
        problem = absence(fleet, target)
        if not wait:
            raise AgentError(problem if wait is None else f"{problem}; --wait waits for it")
        if not said:
            print(printable(f"edge-agent: {problem}; waits for it"), file=sys.stderr, flush=True)
            said = True
        if time.monotonic() > deadline:
            raise AgentError(f"{problem}, after {timeout:.0f} s")


def unheard(inbox: str) -> str:
    """Return what to look at if a device that is online never answers what is in its inbox.

    mosquitto grants a subscription that its access list denies, and delivers nothing.
    """
    return (
        f"; if it never answers, the broker's access list may lack `read {inbox}` for the device, "
        "or `write` for this user"
    )


def incomplete(fleet: Fleet) -> str:
    """Return a warning that some devices may not have been seen, and why."""
    return f"the look is not complete: {fleet.gap}"


def absence(fleet: Fleet, target: str) -> str:
    """Return why no device can be reached."""
    if target.startswith("@"):
        members = fleet.members(target[1:])
        if fleet.gap:
            return incomplete(fleet)
        return f"no online device is in group {target}" + (
            f" (offline: {', '.join(members)})" if members else ""
        )
    if target in fleet.status:
        return f"device {target} is {offline_since(fleet.said(target))}"
    return unknown(fleet, target)


def unknown(fleet: Fleet, device: str) -> str:
    """Return the error text for an unknown device; it names the known ones."""
    return f"device {device} is unknown; known: {', '.join(sorted(fleet.status)) or 'none'}"
