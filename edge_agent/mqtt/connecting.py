"""Makes connections: chooses the address, the MQTT version and the last will.

Also reconnects: decides when to try again, and reports why a connection was lost. Independent of
what is published.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..config.settings import Broker
from ..core.backoff import Backoff
from ..core.errors import BrokerError
from ..core.frozen import record
from . import paho_client
from .connection import ALL, TAKEN_OVER, UNSPECIFIED, Abilities, Connection, Hooks, Node, Will
from .diagnose import connack_hint, explain_unreachable, hang_up_hint
from .hang_ups import OVER_MESSAGE
from .paho_client import CONNECT_TIMEOUT, NODE_EXPIRY, Where, make_client
from .tls import Certificates, tls_context

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

KEEPALIVE = 20
SILENCE = 5.0
"""Seconds without an answer to an MQTT 5 CONNECT after which 3.1.1 is tried: some 3.1.1 brokers
discard packets that they cannot read and keep the connection (amqtt 0.12)."""
LATE = 0.2
"""Seconds that such a broker then has to answer after all: it may have hung, and speak MQTT 5."""
HELD = 1.0
"""Seconds until 3.1.1 is accepted after which the broker may have come back only now: haproxy holds
connections for three."""
TICK = 0.02
"""Seconds between checks for the answer to CONNECT."""
UNSUPPORTED_PROTOCOL = frozenset({0x84, 0x01})
NO_RETAIN, LOWER_QOS = 0x9A, 0x9B
"""Refusals of a last will: the broker supports no retained messages, or only QoS 0."""


class RefusesProtocol(BrokerError):
    """The broker refused this MQTT version, closed the connection, or did not answer."""

    def __init__(self, text: str, *, explicit: bool, silent: bool = False) -> None:
        super().__init__(text)
        self.explicit = explicit
        """Whether a CONNACK refused it; else the broker may only have been restarting."""
        self.silent = silent
        """Whether it did not answer, but kept the connection."""
        self.waiting: Connection | None = None
        """The connection to the silent broker, to be closed by the caller."""


class RefusesWill(BrokerError):
    """The broker refuses, or may have refused, a last will that is retained or of QoS 1."""

    def __init__(self, text: str, abilities: Abilities) -> None:
        super().__init__(text)
        self.abilities = abilities
        """The abilities to try next."""


@record
class Left:
    """The node of the connection before."""

    where: Where
    shared: bool = True
    """Whether its sessions may be those of the other nodes, too."""
    since: float = -math.inf
    """When that connection began, monotonic seconds."""
    protocol: int = 4

    def outdates(self, where: Where) -> bool:
        """Whether what another node may still keep for us was carried out meanwhile."""
        recent = time.monotonic() - self.since < 2 * NODE_EXPIRY
        return not self.shared and self.where != where and recent


def connect(
    broker: Broker,
    client_id: str,
    *,
    hooks: Hooks,
    protocol: int | None = None,
    will: Will | None = None,
    tls: ssl.SSLContext | None = None,
    session: bool = False,
    stopping: threading.Event | None = None,
    abilities: Abilities = ALL,
    left: Left | None = None,
) -> Connection:
    """Connect once: try each address of the broker's name or names until one accepts.

    If the broker refuses MQTT 5 or the last will, try again without it. *session*: the broker
    keeps messages for us over short absences, and we acknowledge them manually; *stopping* ends
    the attempt; *left*, the node that was lost or hangs, is tried last, the one after it first.

    Raises:
        BrokerError: the broker cannot be reached or refuses the connection.
    """
    problems: list[BrokerError] = []
    places: list[tuple[Broker, paho_client.Where]] = []
    nodes = 0
    for node in broker.nodes:
        try:
            found = paho_client.resolve(node.address.host, node.address.port)
        except (OSError, ValueError) as problem:
            problems.append(_unreachable(node, problem))
        else:
            places += [(node, where) for where in found]
            # A single node may have an address of each family.
            nodes += max(Counter(family for family, _ in found).values())
    tls = tls or tls_context(broker)
    first = 1 + next((n for n, (_, where) in enumerate(places) if left and where == left.where), -1)
    for node, where in places[first:] + places[:first]:
        own = Node(where, node.address, nodes > 1)
        attempt = _Attempt(
            node, own, client_id, hooks, will, tls, session, stopping, abilities, left
        )
        try:
            return attempt.reach(protocol or broker.protocol)
        except BrokerError as problem:
            problems.append(problem)
        if stopping is not None and stopping.is_set():
            break
    # The error of an address that has answered, if any has.
    answered = (each for each in problems if not isinstance(each.__cause__, OSError))
    try:
        raise next(answered, problems[-1])
    finally:
        # Else the exception refers to itself, which keeps paho's client and its sockets alive.
        problems.clear()


def _unreachable(broker: Broker, problem: BaseException) -> BrokerError:
    error = BrokerError(
        f"{broker.address} cannot be reached: {explain_unreachable(problem, broker)}"
    )
    error.__cause__ = problem
    return error


@record
class _Attempt:
    """The inputs shared by all versions and wills that `connect` tries at a node."""

    broker: Broker
    node: Node
    client_id: str
    hooks: Hooks
    will: Will | None
    tls: ssl.SSLContext | None
    session: bool
    stopping: threading.Event | None
    abilities: Abilities
    left: Left | None

    def reach(self, wanted: int, *, again: bool = False) -> Connection:
        """Connect; if the node refuses MQTT 5, use 3.1.1; *again*: it was only away."""
        began = time.monotonic()
        try:
            return self._speak(wanted, first_choice=True)
        except RefusesProtocol as refusal:
            if wanted == 4:
                raise
            if refusal.silent:
                # The next attempt may take twice as long: say why.
                log.warning("broker: %s; trying MQTT 3.1.1", refusal)
            waiting = refusal.waiting
            try:
                connection = self._speak(4, first_choice=False)
                there = waiting is not None and waiting.answered.wait(LATE)
            finally:
                if waiting is not None:
                    waiting.close()
            if not (refusal.explicit or refusal.silent):
                held = time.monotonic() - began > HELD
                there = held or (self.left is not None and self.left.protocol == 5)
            if there and not again:
                # It speaks MQTT 5, and was only busy, or away behind a proxy.
                connection.close()
                return self.reach(wanted, again=True)
            connection.protocol_confirmed = refusal.explicit
            log.warning("broker: %s: speaking MQTT 3.1.1", refusal)
            return connection

    def _speak(self, protocol: int, *, first_choice: bool) -> Connection:
        """Connect with one version; if the broker refuses the last will, use a lesser one."""
        can = self.abilities
        while True:
            try:
                return self._connect(protocol, can)
            except RefusesWill as refusal:
                # If 3.1.1 is only the second choice, the broker may have been restarting.
                if refusal.abilities == can or not first_choice:
                    raise
                can = refusal.abilities

    def _connect(self, protocol: int, abilities: Abilities) -> Connection:
        broker, will, node, left = self.broker, self.will, self.node, self.left
        address = broker.address
        client = make_client(
            broker, node.where, self.client_id, protocol, self.tls, session=self.session
        )
        if will is not None:
            client.will_set(will.topic, will.payload, abilities.qos, retain=abilities.retain)
        connection = Connection(client, protocol, abilities, self.hooks, manual_ack=self.session)
        options = {}
        if protocol == 5:
            clean = node.has_others and left is not None and left.outdates(node.where)
            options = paho_client.session_options(
                keep=self.session, clean=clean, others=node.has_others
            )
        try:
            try:
                client.connect(address.host, address.port, KEEPALIVE, **options)
                client.loop_start()  # opens its own pair of sockets
            except RuntimeError as problem:  # from Thread.start
                connection.close()
                raise BrokerError(
                    f"{address}: no further thread is allowed; raise the unit's TasksMax, or the "
                    "system's limit"
                ) from problem
            except (OSError, ValueError) as problem:
                connection.close()  # its sockets may be the last files that can be opened
                raise _unreachable(broker, problem) from problem
            self._await_answer(connection)
        except RefusesProtocol as refusal:
            if refusal.silent:
                refusal.waiting = connection
            else:
                connection.close()
            raise
        except BaseException:
            connection.close()
            raise
        connection.node = node
        return connection

    def _await_answer(self, connection: Connection) -> None:
        """Wait for a positive CONNACK.

        Raises:
            RefusesProtocol: the broker refuses this MQTT version, or may have.
            RefusesWill: the broker refuses the last will, or may have.
            BrokerError: the broker refuses the connection, or does not answer.
        """
        broker, newest, will = self.broker, connection.protocol == 5, self.will
        address, can = broker.address, connection.abilities
        # Counted in waits, not by the clock: time during which this process was stopped is not held
        # against the broker.
        left = round((SILENCE if newest else CONNECT_TIMEOUT) / TICK)
        while not (connection.answered.wait(TICK) or connection.gone.is_set()):
            left -= 1
            if self.stopping is not None and self.stopping.is_set():
                raise BrokerError(f"{address} does not answer")
            if left <= 0:
                if newest:
                    words = f"{address} does not answer to MQTT 5"
                    raise RefusesProtocol(words, explicit=False, silent=True)
                raise BrokerError(f"{address} does not answer; is it an MQTT broker, and at work?")
        if not connection.answered.is_set():
            if newest:
                # Old brokers close the connection without a CONNACK.
                raise RefusesProtocol(f"{address} closed the connection on MQTT 5", explicit=False)
            hint = hang_up_hint(broker, accepted=self.left is not None)
            why = f"{address} closed the connection{hint}"
            if will is not None:
                # In 3.1.1 there is no other way to refuse a will (mosquitto 2).
                raise RefusesWill(why, Abilities(qos=0, retain=False))
            raise BrokerError(why)
        if connection.refusal is not None:
            code, reason = connection.refusal.code, connection.refusal.reason
            if newest and code in UNSUPPORTED_PROTOCOL:
                raise RefusesProtocol(f"{address} refuses MQTT 5 ({reason})", explicit=True)
            if will is not None and code in {NO_RETAIN, LOWER_QOS}:
                lower = code == LOWER_QOS
                less = Abilities(0, can.retain) if lower else Abilities(can.qos, retain=False)
                raise RefusesWill(f"{address} refuses the last will: {reason}", less)
            hint = connack_hint(code, broker)
            raise BrokerError(f"{address} refused the connection: {reason}{hint}")


STABLE = 30.0
"""Seconds that a connection must last before the pauses are reset to the shortest."""
TAKEN_OVER_PAUSE = 60.0
SHORT_LIVED = 3
"""Accepted connections in a row that do not last: probably another client takes them over."""
SETTLED = 120.0
"""Seconds that a connection must last until it counts as ours: another box with this device_id
takes it over within a minute, the longest of its pauses."""


class Steadiness:
    """How long connections last, and the problem if they do not; any thread may read it."""

    def __init__(self) -> None:
        self.short_lived = 0
        """Connections in a row that did not last."""
        self.lost_at = 0.0
        """Monotonic time when the last one was lost."""
        self._since = 0.0
        """Monotonic time when it began."""
        self._problem: str | None = None

    def begin(self) -> None:
        """Record that a connection has begun."""
        self._since = time.monotonic()

    def end(self, *, explained: bool) -> bool:
        """Record that it was lost; return whether it has lasted.

        *explained*: that has a reason of its own, and so may the losses before.
        """
        self.lost_at = time.monotonic()
        lasted = self.lost_at - self._since
        if lasted >= SETTLED or explained:
            self._problem = None
        self.short_lived = 0 if lasted >= STABLE or explained else self.short_lived + 1
        return lasted >= STABLE

    def keep(self, problem: str) -> str:
        """Keep a problem, also over the next connections, until one has settled; return it."""
        self._problem = problem
        return problem

    @property
    def problem(self) -> str | None:
        """Why the present connection may not last; None: it has, or no other was lost like that."""
        settled = time.monotonic() - self._since >= SETTLED
        return None if settled else self._problem


class Reconnect:
    """Iterates over connections until told to stop; for use by one thread."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        hooks: Hooks,
        will: Callable[[], Will],
        backoff: Backoff,
        closing: threading.Event,
        on_problem: Callable[..., None],
    ) -> None:
        """Read the certificates without connecting.

        When no more connections are wanted, the owner sets *closing* and calls `interrupt`;
        *on_problem* receives the reason whenever there is no connection, and `away=True` if none
        came about.
        """
        self._broker = broker
        self._client_id = client_id
        self._hooks = hooks
        self._will = will
        self._backoff = backoff
        self._closing = closing
        self._on_problem = on_problem
        self._certificates = Certificates(broker)
        self._protocol = broker.protocol
        self._abilities = ALL
        """The broker's abilities, as found by the last connection."""
        self._took_all = False
        """Whether the full last will was ever accepted."""
        self._steadiness = Steadiness()
        self._left: Left | None = None
        self._next: deque[tuple[Broker, Certificates]] = deque(maxlen=1)
        """The latest settings, which apply from the next connection on."""
        self._interrupted = threading.Event()
        """Set when the present attempt, connection or pause must end."""

    # For other threads

    def change(self, broker: Broker, certificates: Certificates) -> None:
        """Change the settings and connect again at once.

        The user of the present connection must close it when `changed` is true.
        """
        self._next.append((broker, certificates))
        self._interrupted.set()

    def interrupt(self) -> None:
        """End the present attempt or pause."""
        self._interrupted.set()

    @property
    def changed(self) -> bool:
        """Whether the present connection must be replaced by one with other settings."""
        return bool(self._next)

    @property
    def unsteady(self) -> str | None:
        """Why the present connection may not last, from how others were lost."""
        return self._steadiness.problem

    # For the using thread

    def __iter__(self) -> Iterator[Connection]:
        """Yield a connection; once that is lost and closed, yield the next after a pause."""
        while True:
            # First, so that no later request is missed.
            self._interrupted.clear()
            if self._closing.is_set():
                return
            if self._next:
                # As if these were the settings from the start.
                self._broker, self._certificates = self._next.pop()
                self._protocol = self._broker.protocol
                self._abilities = ALL
                self._took_all = False
                self._left = None
                self._steadiness = Steadiness()
                self._backoff.reset()
            try:
                connection = self._connect()
            except BrokerError as problem:
                if self._interrupted.is_set():
                    continue
                pause = self._backoff.pause()
                self._on_problem(str(problem), away=True)
            else:
                self._steadiness.begin()
                yield connection
                if self._interrupted.is_set():
                    continue
                pause = self._report_lost(connection)
            self._interrupted.wait(pause)

    def _connect(self) -> Connection:
        """Connect once."""
        connection = connect(
            self._broker,
            self._client_id,
            hooks=self._hooks,
            protocol=self._protocol,
            will=self._will(),
            tls=self._certificates.context(),
            session=True,
            stopping=self._interrupted,
            abilities=self._abilities,
            left=self._left,
        )
        self._left = self._left_by(connection)
        if connection.abilities == ALL:
            self._took_all = True
        elif self._took_all and connection.protocol == 4 and connection.node.has_others:
            # Guessed from a node that was not ready at the first attempt.
            connection.close()
            raise BrokerError(f"{connection.node.address} was not ready; trying again")
        if connection.protocol == 5:
            # In 3.1.1 they were guessed: the next connection tries all abilities again.
            self._abilities = connection.abilities
        if connection.protocol_confirmed:
            self._protocol = connection.protocol
        return connection

    def _left_by(self, connection: Connection) -> Left:
        """Return what a move to this connection's node, if it was one, says of the nodes."""
        where, before, now = connection.node.where, self._left, time.monotonic()
        shared, late = True, now - self._steadiness.lost_at > NODE_EXPIRY
        if before is not None:
            moved = before.where != where and connection.node.has_others
            # A node that shares sessions has ours, if it was not away for too long.
            told = moved and not (before.outdates(where) or late)
            shared = connection.resumed if told else before.shared
        return Left(where, shared, now, connection.protocol)

    def _report_lost(self, connection: Connection) -> float:
        """Report why a connection was lost; return the seconds to wait before the next."""
        over_message = connection.code == OVER_MESSAGE
        if self._steadiness.end(explained=over_message) or over_message:
            # Found out soon, what it hangs up over holds nothing up.
            self._backoff.reset()
        pause = self._backoff.pause()
        if connection.code == TAKEN_OVER:
            words = "another box uses this device_id: the broker gave our connection to it"
            self._on_problem(self._steadiness.keep(words))
            return max(pause, TAKEN_OVER_PAUSE)
        if self._steadiness.short_lived >= SHORT_LIVED:
            # Older brokers, such as mosquitto 2.0.11, disconnect the older client without a reason.
            guess = "; does another box use this device_id?"
            words = (
                f"connection to {connection.node.address} lost again and again: "
                f"{connection.reason}{guess if connection.code == UNSPECIFIED else ''}"
            )
            self._on_problem(self._steadiness.keep(words))
        else:
            self._on_problem(f"connection to {connection.node.address} lost: {connection.reason}")
        return pause
