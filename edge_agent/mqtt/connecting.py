"""How a connection comes about: to which address, with which version of MQTT and last will."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ..config.settings import Broker
from ..core.errors import BrokerError
from ..core.frozen import record
from . import paho_client
from .connection import ALL, Abilities, Connection, Hooks, Will
from .paho_client import CONNECT_TIMEOUT, make_client, tls_context

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

KEEPALIVE = 20
SILENCE = 5.0
"""Seconds without an answer to a CONNECT of MQTT 5 after which 3.1.1 is tried: some brokers of
3.1.1 drop what they cannot read and keep the connection (amqtt 0.12)."""
TICK = 0.02
"""Seconds between two checks for the answer to CONNECT."""
UNSUPPORTED_PROTOCOL = frozenset({0x84, 0x01})
NO_RETAIN, LOWER_QOS = 0x9A, 0x9B
"""Refusals of a last will: the broker keeps no retained messages, or takes QoS 0 only."""


class RefusesProtocol(BrokerError):
    """The broker refuses this version of MQTT, or closed the connection, or did not answer."""

    def __init__(self, text: str, *, explicit: bool, silent: bool = False) -> None:
        super().__init__(text)
        self.explicit = explicit
        """CONNACK said so; else the broker may only have been restarting."""
        self.silent = silent
        """Whether it said nothing, and kept the connection."""


class RefusesWill(BrokerError):
    """The broker does not take a last will that is retained or of QoS 1, or perhaps does not."""

    def __init__(self, text: str, abilities: Abilities) -> None:
        super().__init__(text)
        self.abilities = abilities
        """With which to try again."""


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
    avoid: paho_client.Where | None = None,
) -> Connection:
    """Connect once: to each address of the broker's name or names in turn, until one accepts.

    Where the broker refuses MQTT 5 or the last will, again without. *session* has the broker keep
    messages for us over short absences, which are acknowledged by hand; *stopping* ends the
    attempt; *avoid* is tried last: the node that was lost, or hangs.

    Raises:
        BrokerError: the broker cannot be reached or refuses the connection.
    """
    problems: list[BrokerError] = []
    places: list[tuple[Broker, paho_client.Where]] = []
    for node in broker.nodes:
        try:
            places += [(node, where) for where in _addresses(node)]
        except BrokerError as problem:
            problems.append(problem)
    tls = tls or tls_context(broker)
    for node, where in sorted(places, key=lambda place: place[1] == avoid):
        attempt = _Attempt(node, client_id, hooks, will, tls, session, stopping, abilities)
        try:
            return attempt.reach(where, protocol or broker.protocol)
        except BrokerError as problem:
            problems.append(problem)
        if stopping is not None and stopping.is_set():
            break
    try:
        raise _most_telling(problems)
    finally:
        # Else what is raised refers to itself, and keeps paho's client with its sockets.
        problems.clear()


def _most_telling(problems: list[BrokerError]) -> BrokerError:
    """Return that of an address that has answered, if any has."""
    answered = (each for each in problems if not isinstance(each.__cause__, OSError))
    return next(answered, problems[-1])


def _addresses(broker: Broker) -> list[paho_client.Where]:
    try:
        return paho_client.resolve(broker.address.host, broker.address.port)
    except (OSError, ValueError) as problem:
        raise _unreachable(broker, problem) from problem


def _unreachable(broker: Broker, problem: BaseException) -> BrokerError:
    from .diagnose import explain_unreachable

    return BrokerError(
        f"{broker.address} cannot be reached: {explain_unreachable(problem, broker)}"
    )


@record
class _Attempt:
    """What is the same for all addresses, versions and wills that `connect` tries."""

    broker: Broker
    client_id: str
    hooks: Hooks
    will: Will | None
    tls: ssl.SSLContext | None
    session: bool
    stopping: threading.Event | None
    abilities: Abilities

    def reach(self, where: paho_client.Where, wanted: int) -> Connection:
        """Connect to one address; where it refuses MQTT 5, with 3.1.1.

        Raises:
            BrokerError: it cannot be reached or refuses the connection.
        """
        try:
            return self._speak(where, wanted, first_choice=True)
        except RefusesProtocol as refusal:
            if wanted == 4:
                raise
            if refusal.silent:
                # The next attempt may take twice as long, and nobody is to wait in the dark.
                log.warning("broker: %s; trying MQTT 3.1.1", refusal)
            connection = self._speak(where, 4, first_choice=False)
            connection.protocol_confirmed = refusal.explicit
            log.warning("broker: %s: speaking MQTT 3.1.1", refusal)
            return connection

    def _speak(self, where: paho_client.Where, protocol: int, *, first_choice: bool) -> Connection:
        """Connect with one version; where the broker refuses the last will, with a lesser one."""
        can = self.abilities
        while True:
            try:
                return self._connect(where, protocol, can)
            except RefusesWill as refusal:
                # Where 3.1.1 is only the second choice, the broker may have been restarting.
                if refusal.abilities == can or not first_choice:
                    raise
                can = refusal.abilities

    def _connect(self, where: paho_client.Where, protocol: int, abilities: Abilities) -> Connection:
        broker, will = self.broker, self.will
        address = broker.address
        client = make_client(
            broker, where, self.client_id, protocol, self.tls, session=self.session
        )
        if will is not None:
            client.will_set(will.topic, will.payload, abilities.qos, retain=abilities.retain)
        connection = Connection(client, protocol, abilities, self.hooks, manual_ack=self.session)
        options = paho_client.session_options(keep=self.session) if protocol == 5 else {}
        try:
            try:
                client.connect(address.host, address.port, KEEPALIVE, **options)
                client.loop_start()  # opens a pair of sockets of its own
            except RuntimeError as problem:  # of Thread.start
                connection.close()
                raise BrokerError(
                    f"{address}: no room for another thread; its unit's TasksMax, or the system's "
                    "limit"
                ) from problem
            except (OSError, ValueError) as problem:
                connection.close()  # its sockets may be the last files that can be open
                raise _unreachable(broker, problem) from problem
            _await_answer(connection, broker, self.stopping, will)
        except BaseException:
            connection.close()
            raise
        connection.where = where
        connection.address = address
        return connection


def _await_answer(
    connection: Connection, broker: Broker, stopping: threading.Event | None, will: Will | None
) -> None:
    """Wait for a positive CONNACK.

    Raises:
        RefusesProtocol: the broker refuses this version of MQTT, or perhaps does.
        RefusesWill: it refuses the last will, or perhaps does.
        BrokerError: it refuses the connection, or does not answer.
    """
    address, newest = broker.address, connection.protocol == 5
    # Counted in waits, not by the clock: time in which this process was stopped does not count
    # against the broker.
    left = round((SILENCE if newest else CONNECT_TIMEOUT) / TICK)
    while not (connection.answered.wait(TICK) or connection.gone.is_set()):
        left -= 1
        if stopping is not None and stopping.is_set():
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
        from .diagnose import hang_up_hint

        why = f"{address} closed the connection{hang_up_hint(broker)}"
        if will is not None:
            # With 3.1.1 there is no other way to refuse a will (mosquitto 2).
            raise RefusesWill(why, Abilities(qos=0, retain=False))
        raise BrokerError(why)
    if connection.refusal is not None:
        code, reason = connection.refusal.code, connection.refusal.reason
        if newest and code in UNSUPPORTED_PROTOCOL:
            raise RefusesProtocol(f"{address} refuses MQTT 5 ({reason})", explicit=True)
        can = connection.abilities
        if will is not None and code in {NO_RETAIN, LOWER_QOS}:
            raise RefusesWill(
                f"{address} refuses the last will: {reason}",
                Abilities(0, can.retain) if code == LOWER_QOS else Abilities(can.qos, retain=False),
            )
        from .diagnose import connack_hint

        raise BrokerError(f"{address} refused the connection: {reason}{connack_hint(code, broker)}")
