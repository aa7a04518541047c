"""Leads a roll-out: counts the devices' reports, judges each wave by its gate, starts the next.

All of its state is on the broker, so anyone with the key may continue it.
"""

from __future__ import annotations

import getpass
import math
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ..core.errors import AgentError, BrokerError, MalformedError
from ..core.text import counted, printable
from ..delivery.plan import ENDED, Plan, read_own, seal
from ..delivery.sender import MOST_AWAY, RETURN_SECONDS, RetainedPackage
from ..mqtt.look import texts_in
from ..mqtt.one_shot import OneShotClient, is_loss
from ..mqtt.payloads import iso
from ..mqtt.topics import rollouts
from .fleet import LOOK_SECONDS, Fleet, some_of
from .laying import reconnect
from .progress import Progress, say

if TYPE_CHECKING:
    from ..models.packages.keys import PrivateKey

JUDGE_SECONDS = 0.5
SPREAD_SECONDS = 0.02
"""Time per online device of a wave; the sum is the time over which the wave starts."""
COME_BACK_SECONDS = 1.0
MISSING_SECONDS = 3.0
"""Time after a new connection for the broker to send retained messages."""
SILENCE_SECONDS = 30.0
"""After which reports of devices are read over another node of a cluster: a lost node takes some
along, and meanwhile another may lack what is newly retained (seen with NATS)."""
ASK_SECONDS = 3.0
"""Interval for reading the status of those that went offline over a cluster, which may have lost
that they are back."""
MOST_SPREAD = 600.0
BACK_SECONDS = 60.0
"""How long devices are watched while they go back."""
AGAIN_SECONDS = 5.0
"""Least time between two corrections of others' messages on the topic of the roll-out."""

Outcome = Literal["good", "failed", "unknown"]


@dataclass
class Tally:
    """The progress of the devices of a wave."""

    members: int = 0
    online: int = 0
    ended_online: int = 0
    judged: int = 0
    """Devices that are online or have ended, which the gate's shares refer to."""
    states: Counter[str] = field(default_factory=Counter)
    disagreeing: int = 0
    degraded: int = 0
    """Devices that were ok before and no longer are."""
    not_well: dict[str, list[str]] = field(default_factory=dict)
    """Devices by their problem."""
    still_has: int = 0
    """Online devices that serve it."""
    offline: list[str] = field(default_factory=list)
    """Devices that are offline and have not ended."""
    may_return: list[str] = field(default_factory=list)
    """Devices that have it and went offline just now."""

    def as_json(self) -> dict[str, Any]:
        """Return the figures for `--json`."""
        return {
            "members": self.members,
            "online": self.online,
            "states": dict(self.states),
            "offline": self.offline,
            "not_well": self.not_well,
        }

    def trouble(self, plan: Plan) -> str | None:
        """Return the reason why the gate stops the roll-out, or None if it does not."""
        gate = plan.gate
        for count, most, what in (
            (self.states["rejected"], gate.max_rejected, "rejected it"),
            (self.states["rolled-back"], gate.max_rolled_back, "went back"),
            (self.disagreeing, gate.max_disagreeing, "find other things than before"),
            (self.degraded, gate.max_degraded, "are degraded since"),
        ):
            if count > most * self.judged:
                return f"{count} of {counted(self.judged, 'device')} {what}, at most {most:.0%} may"
        return None

    @property
    def is_superseded(self) -> bool:
        """Whether no device is left to this roll-out."""
        return 0 < self.judged == self.states["superseded"]

    def has_quorum(self, plan: Plan) -> bool:
        """Whether enough of the online devices have ended."""
        return self.online > 0 and self.ended_online >= plan.gate.quorum * self.online

    def __str__(self) -> str:
        """Return a summary."""
        parts = [f"{n} {state}" for state, n in sorted(self.states.items()) if state != "waiting"]
        waiting = self.states["waiting"] - len(self.offline)
        parts += [f"{waiting} waiting"] if waiting > 0 else []
        parts += [f"{len(self.offline)} offline"] if self.offline else []
        return f"{counted(self.members, 'device')}: {', '.join(parts) or 'none yet'}"


def rollout_filters(root: str) -> list[str]:
    """Return the topic filters for roll-outs and the devices."""
    kinds = ("status", "info", "health", "rollout")
    return [*(f"{root}/+/{kind}" for kind in kinds), f"{rollouts(root)}/+"]


def tally(plan: Plan, fleet: Fleet, wave: int) -> Tally:
    """Count the devices of a wave."""
    made = Tally()
    for device in fleet.status:
        if plan.wave_of(device, fleet.groups(device)) != wave:
            continue
        word = plan.word_in(fleet.rollouts.get(device, {}))
        state, online = str(word.get("state", "waiting")), fleet.online(device)
        ended = state in ENDED
        made.members += 1
        made.states[state] += 1
        made.online += online
        made.still_has += online and state in {"probation", "live"}
        made.ended_online += online and ended
        made.judged += online or ended or state == "probation"
        if not online and not ended:
            made.offline.append(device)
        if not online and state in {"probation", "live"} and fleet.may_return(device):
            made.may_return.append(device)
        for why in _not_well(plan, fleet, device, word):
            made.disagreeing += why.startswith("in too little agreement")
            made.degraded += why.startswith("degraded")
            made.not_well.setdefault(why, []).append(device)
    return made


def _not_well(plan: Plan, fleet: Fleet, device: str, word: Mapping[str, Any]) -> Iterator[str]:
    state, agreement = word.get("state"), word.get("agreement")
    if state in {"rejected", "rolled-back", "aborted"} or word.get("why"):
        yield f"{state}: {word.get('why', '')}".removesuffix(": ")
    if state not in {"live", "probation"}:
        return
    if isinstance(agreement, int | float) and agreement < plan.gate.min_agreement:
        yield "in too little agreement with the version before"
    health, status = fleet.health.get(device, {}), fleet.status[device]
    if not fleet.online(device) and status.get("reason") == "lost":
        if not fleet.may_return(device):
            yield "degraded: lost since it has it"
    elif word.get("was") == "ok" and health.get("state") == "degraded":
        # No version makes a broker refuse or go away; a cluster that has lost a node does.
        why = [each for each in texts_in(health.get("why")) if not each.startswith("broker: ")]
        if why or not health.get("why"):
            yield f"degraded: {why[0] if why else ''}".removesuffix(": ")


def wave_line(plan: Plan, number: int, counts: Tally) -> str:
    """Return a line with a wave and its progress."""
    return f"wave {number + 1} of {len(plan.waves)} ({plan.waves[number]}): {counts}"


def trouble_lines(counts: Tally, told: Container[str] = ()) -> Iterator[str]:
    """Yield a line for each kind of problem in a wave that is not told yet."""
    for why, devices in sorted(counts.not_well.items()):
        if why in told:
            continue
        yield printable(f"  {counted(len(devices), 'device')} {why} ({some_of(sorted(devices))})")


def changed(plan: Plan, **what: Any) -> Plan:
    """Return a plan with a change, above the serial that devices have seen."""
    now = time.time_ns()
    # Based on the clock, so that it is also above plans that a broker may have lost.
    serial = max(plan.serial + 1, now // 1_000_000_000)
    return replace(plan, **{"serial": serial, "time": iso(now), "by": who(), "why": None, **what})


def new_time(plans: Mapping[str, bytes], key: PrivateKey | None) -> int:
    """Return when a new plan is created, ns: now, or just after one's own of a clock ahead.

    Otherwise devices would take the new one for the older one.
    """
    now = time.time_ns()
    for payload in plans.values():
        with suppress(MalformedError):
            now = max(now, (round(read_own(payload, key).created_at * 1000) + 1) * 1_000_000)
    return now


def who() -> str:
    """Return the name of this process as the leader."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "nobody"
    return f"{user}@{socket.gethostname()}"[:64]


def topic_of(root: str, name: str) -> str:
    """Return the topic of a roll-out."""
    return f"{rollouts(root)}/{name}"


def publish(client: OneShotClient, root: str, plan: Plan, sealed: bytes) -> Any:
    """Put a plan on the broker, which by MQTT 5 removes it when it expires; return the receipt."""
    left = max(60, int(plan.expires_at - time.time()))
    return client.publish(topic_of(root, plan.id), sealed, retain=True, expires_s=left)


class Roller:
    """Leads a roll-out, until it is over or somebody else leads."""

    def __init__(
        self,
        client: OneShotClient,
        fleet: Fleet,
        root: str,
        *,
        key: PrivateKey | None,
        package: RetainedPackage | None = None,
    ) -> None:
        """Set up; nothing is published yet.

        Args:
            client: subscribed to the fleet's topics and to that of the roll-out.
            fleet: the fleet, after a look.
            root: first topic level.
            key: signs the plans.
            package: republished if the broker has lost it; None: not available.
        """
        self._client = client
        self._fleet = fleet
        self._root = root
        self._key = key
        self._package = package
        self._plan: Plan | None = None
        self._seen = 0
        """Serial of the plan that `_plan` follows; others may have changed that one meanwhile."""
        self._sealed = b""
        """The message that should be on the topic."""
        self._echoes: deque[bytes] = deque()
        """Published messages whose echo has not come yet."""
        self._missing: float | None = None
        """Monotonic time since which the plan may be missing on the broker."""
        self._returning = 0.0
        """Monotonic time until which devices may still be reconnecting."""
        self._corrected = -math.inf
        self._heard_at = self._asked_at = time.monotonic()
        """When a device last reported on a roll-out, and when its status was last read again."""
        self._progress = Progress()

    def lead(self, plan: Plan) -> int:
        """Go through the waves; return 0 when all are complete, 1 if it has stopped."""
        try:
            while plan.state == "running":
                counts = tally(plan, self._fleet, plan.wave)
                plan = replace(plan, spread_s=min(SPREAD_SECONDS * counts.online, MOST_SPREAD))
                self._publish(plan)
                print(wave_line(plan, plan.wave, counts), flush=True)
                outcome, why = self._wave(plan)
                counts = tally(plan, self._fleet, plan.wave)
                print("\n".join([f"  {counts}", *trouble_lines(counts)]), flush=True)
                plan = after_wave(plan, outcome, why)
            self._client.wait_published([self._publish(plan)])
            self._hear(0.0)  # what came before it on the broker has arrived
            if plan.back:
                self._watch_back(plan)
        except KeyboardInterrupt:
            words = "interrupted; devices in waves that have begun go on; to lead it again"
            raise AgentError(f"{words}: edge-agent rollout resume {plan.id}") from None
        finally:
            self._progress.close()
        print(printable(ending(plan)), flush=True)
        return 0 if plan.state == "done" else 1

    def _publish(self, plan: Plan) -> Any:
        """Publish a plan with a new serial; return the receipt.

        Raises:
            AgentError: somebody else leads now.
            BrokerError: the broker refuses a message.
        """
        if self._plan is not None:
            self._look()
        self._seen = plan.serial if self._plan is None else self._plan.serial
        self._plan, self._sealed = plan, seal(plan, self._key)
        return self._send()

    def _look(self) -> None:
        """Handle what others have decided, even if this process or its link stood still."""
        assert self._plan is not None  # noqa: S101 - set by `_publish`
        self._client.ask([topic_of(self._root, self._plan.id)])
        while self._client.unanswered:
            self._hear(JUDGE_SECONDS)
        self._hear(0.0)

    def _send(self) -> Any:
        assert self._plan is not None  # noqa: S101 - set by `_publish`
        self._echoes.append(self._sealed)
        return publish(self._client, self._root, self._plan, self._sealed)

    def _wave(self, plan: Plan) -> tuple[Outcome, str | None]:
        """Watch a wave until its gate decides."""
        began, quorum_at = time.monotonic(), None
        self._heard_at = began
        told: set[str] = set()
        while True:
            self._hear(JUDGE_SECONDS)
            counts, now = tally(plan, self._fleet, plan.wave), time.monotonic()
            self._tell(counts, told)
            self._progress(f"wave {plan.wave + 1}:", counts.ended_online, counts.online)
            if now < self._returning:
                continue
            if not counts.members:
                return "good", None
            if counts.is_superseded:
                return "unknown", "a later roll-out supersedes it on every device of the wave"
            if why := counts.trouble(plan):
                return "failed", why
            if counts.may_return and self._client.has_nodes and now - self._asked_at > ASK_SECONDS:
                self._asked_at = now
                self._client.ask([f"{self._root}/{each}/status" for each in counts.may_return])
            if counts.has_quorum(plan):
                quorum_at = quorum_at or now
                if now - quorum_at >= plan.gate.hold_s and not counts.may_return:
                    return "good", None
                continue
            quorum_at = None
            if self._client.has_nodes and now - self._heard_at > SILENCE_SECONDS:
                self._heard_at = now
                self._come_back("no device has reported for a while over this node of the cluster")
            if now - began > plan.gate.timeout_s:
                done = f"{counts.ended_online} of {counts.online} online devices have ended"
                if not counts.online:
                    done = "no device of the wave is online; resume --next goes on without"
                return "unknown", f"after {plan.gate.timeout_s:.0f} s {done}"

    def _tell(self, counts: Tally, told: set[str]) -> None:
        """Say each new kind of problem at once: the wave may go on for as long as an hour."""
        if counts.not_well.keys() - told:
            self._progress.close()
            for line in trouble_lines(counts, told):
                say(line)
            told.update(counts.not_well)

    def _watch_back(self, plan: Plan) -> None:
        """Watch the online devices go back."""
        until = time.monotonic() + BACK_SECONDS
        while time.monotonic() < until:
            self._hear(JUDGE_SECONDS)
            counts = [tally(plan, self._fleet, number) for number in range(plan.wave + 1)]
            if not any(each.still_has for each in counts):
                break
        for number, each in enumerate(counts):
            print(wave_line(plan, number, each), flush=True)

    def _hear(self, seconds: float) -> None:
        """Handle messages for a while, and what else has arrived by then.

        Raises:
            AgentError: somebody else leads now.
            BrokerError: the broker refuses a message.
        """
        assert self._plan is not None  # noqa: S101 - set by `_publish`
        own, until = topic_of(self._root, self._plan.id), time.monotonic() + seconds
        while True:
            try:
                heard = self._client.next(max(0.0, until - time.monotonic()))
            except BrokerError as problem:
                self._come_back(problem)
                continue
            if heard is None:
                break
            if heard.topic == own:
                self._heard_plan(heard.payload)
                continue
            self._fleet.take(heard.topic, heard.payload)
            if heard.topic.endswith("/rollout"):
                self._heard_at = time.monotonic()
        if self._client.refused and self._client.has_nodes:
            time.sleep(COME_BACK_SECONDS)
            self._come_back(f"the broker has refused a subscription: {self._client.refused}")
        if self._missing is not None and time.monotonic() - self._missing > MISSING_SECONDS:
            self._put_again()

    def _heard_plan(self, payload: bytes) -> None:
        """Handle a message on the topic of the roll-out: our own, or another's."""
        if self._echoes and payload == self._echoes[0]:
            self._echoes.popleft()
            return
        if payload == self._sealed:
            self._missing = None
            return
        assert self._plan is not None  # noqa: S101 - set by `_publish`
        try:
            other = read_own(payload, self._key)
        except MalformedError:
            other = None
        if other is not None and other.id != self._plan.id:
            other = None  # signed, but put here by a stranger
        if other is not None and _holds(other, self._plan, self._seen):
            self._yield_to(other, payload)
        if time.monotonic() - self._corrected > AGAIN_SECONDS:
            self._corrected = time.monotonic()
            words = "somebody else writes on its topic, which is put right; see the access list"
            if other is not None:  # another node of a cluster may lack the latest
                words = "the broker has given an older state of it, which is put right"
            print(f"roll-out {self._plan.id}: {words}", file=sys.stderr, flush=True)
            self._send()
        else:
            self._missing = self._missing or time.monotonic()

    def _yield_to(self, other: Plan, payload: bytes) -> NoReturn:
        """End, and leave another's plan on the topic: ours may have come there after it."""
        own = self._plan
        assert own is not None  # noqa: S101 - set by `_publish`
        given = payload
        if other.serial <= own.serial:  # devices would not take it
            payload = seal(replace(other, serial=own.serial + 1), self._key)
        while True:
            try:
                found = self._client.read(topic_of(self._root, own.id), LOOK_SECONDS)
                if found in {self._sealed, given} and found != payload:
                    receipt = publish(self._client, self._root, other, payload)
                    self._client.wait_published([receipt])
                break
            except BrokerError as problem:
                self._come_back(problem)
        raise AgentError(f"roll-out {other.id}: {other.by} leads it now; it is {other.state}")

    def _come_back(self, problem: BrokerError | str) -> None:
        """Reconnect, however long that takes.

        Raises:
            BrokerError: *problem*, if that is not the loss of the connection.
        """
        if isinstance(problem, BrokerError) and not is_loss(self._client, problem):
            raise problem
        print(f"{problem}; trying again", file=sys.stderr, flush=True)
        self._echoes.clear()
        began = time.monotonic()
        reconnect(self._client, math.inf)
        self._missing = now = time.monotonic()
        self._returning = now + RETURN_SECONDS + min(MOST_AWAY, now - began)

    def _put_again(self) -> None:
        """Publish again what the broker has lost."""
        self._missing = None
        try:
            if self._package is not None and not self._package.lies_there():
                self._package.put(lambda _done, _total: None)
            self._send()
        except BrokerError as problem:
            self._come_back(problem)


def _holds(other: Plan, own: Plan, seen: int) -> bool:
    """Whether another's plan holds, and not one's own, made when *seen* was the last serial."""
    if "aborted" in {own.state, other.state} and own.state != other.state:
        return other.state == "aborted"  # for good, whatever was published meanwhile
    crossing = other.state == "paused" != own.state and other.serial > seen
    return crossing or other.serial > own.serial


def after_wave(plan: Plan, outcome: Outcome, why: str | None = None) -> Plan:
    """Return the plan after a wave with this outcome."""
    if outcome == "good":
        last = plan.wave + 1 == len(plan.waves)
        return changed(plan, **({"state": "done"} if last else {"wave": plan.wave + 1}))
    if outcome == "failed" and plan.on_failure == "back":
        return changed(plan, state="aborted", back=True, why=why)
    return changed(plan, state="paused", why=why)


def ending(plan: Plan) -> str:
    """Describe the state of a roll-out without a leader."""
    commands = f"edge-agent rollout resume {plan.id}, or abort {plan.id}"
    match plan.state:
        case "done":
            late = f"devices that were away are caught up until {plan.expires}"
            return f"roll-out {plan.id} is through; {late}, or until: rollout finish {plan.id}"
        case "paused":
            return f"roll-out {plan.id} is paused: {plan.why}; go on with: {commands}"
        case "aborted":
            back = "; who has it goes back" if plan.back else ""
            return f"roll-out {plan.id} is aborted: {plan.why}{back}"
        case _:
            return f"roll-out {plan.id} is running; if {plan.by} does not lead it: {commands}"
