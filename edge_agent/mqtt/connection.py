"""One MQTT connection, from CONNECT to its end.

It never reconnects: each connection is a new client of paho, so that nothing is left in paho's own
unbounded queues.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..config.settings import Broker
from ..core.errors import BrokerError
from ..core.frozen import record
from ..core.json_text import read_json
from . import paho_client
from .paho_client import CONNECT_TIMEOUT, acknowledge_now, code_of, make_client, tls_context

if TYPE_CHECKING:
    import ssl

    from paho.mqtt.client import Client

log = logging.getLogger(__name__)

KEEPALIVE = 20
SILENCE = 5.0
"""Seconds without an answer to a CONNECT of MQTT 5 after which 3.1.1 is tried: some brokers of
3.1.1 drop what they cannot read and keep the connection (amqtt 0.12)."""
TICK = 0.02
"""Seconds between two checks for the answer to CONNECT."""
REFUSAL = 0x80
"""The first of the MQTT 5 reason codes that mean failure."""
UNSUPPORTED_PROTOCOL = frozenset({0x84, 0x01})
TAKEN_OVER = 0x8E
NO_RETAIN, LOWER_QOS = 0x9A, 0x9B
"""Refusals of a last will: the broker keeps no retained messages, or takes QoS 0 only."""
UNSPECIFIED = 0x80


@record(quick=True)
class ReceivedMessage:
    """A message from the broker, published by anybody."""

    topic: str
    payload: bytes
    retained: bool
    """Whether it was published with the retain flag. For a message that is delivered as it is
    published only MQTT 5 shows that, to subscriptions `as_published`; otherwise it is True only
    for messages that the broker had kept."""
    response_topic: str | None = None
    correlation: bytes | None = None
    ack: Callable[[], object] = lambda: None
    """Acknowledge it to the broker; to be called once its effect is durable."""
    qos: int = 0

    @property
    def body(self) -> dict[str, Any] | None:
        """The JSON object in the payload; None where it is none."""
        return parse_object(self.payload)


def parse_object(payload: bytes) -> dict[str, Any] | None:
    """Parse a JSON object from an untrusted sender; None where `read_json` refuses it."""
    try:
        body = read_json(payload)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


@record
class Abilities:
    """What a broker can; everything is published with no more than that."""

    qos: int = 1
    """Highest quality of service that it takes, 0 or 1."""
    retain: bool = True
    """Whether it keeps retained messages."""

    def limits(self) -> list[str]:
        """Return what it cannot, what follows from that, and the mend."""
        limits = []
        if self.qos == 0:
            limits.append(
                "takes QoS 0 only: results with qos = 1, replies and pushes can be lost on the "
                "way; allow QoS 1 there (mosquitto: max_qos)"
            )
        if not self.retain:
            limits.append(
                "keeps no retained messages: who connects later does not see what this device "
                "is; allow them there (mosquitto: retain_available)"
            )
        return limits


ALL = Abilities()


@record
class Will:
    """The last will: published by the broker when the connection breaks, retained, at QoS 1."""

    topic: str
    payload: bytes


@record
class Refusal:
    """A negative acknowledgment."""

    code: int
    """MQTT 5 reason code, REFUSAL or above."""
    reason: str
    """paho's text for it."""


@record(kw_only=True)
class Hooks:
    """Called by paho's thread, which holds locks of its own meanwhile.

    A hook must only put what happened into a queue: it must neither raise nor wait for a lock under
    which something is published.
    """

    message: Callable[[ReceivedMessage], None] = lambda _message: None
    published: Callable[[Connection, int, Refusal | None], None] = lambda _c, _mid, _refusal: None
    """Message id of a QoS 1 message that was acknowledged, or of a QoS 0 message that was written
    to the socket; with the broker's refusal, if any."""
    unsubscribed: Callable[[Connection, int], None] = lambda _c, _mid: None
    subscribed: Callable[[Connection, int, tuple[Refusal | None, ...]], None] = (
        lambda _c, _mid, _refusals: None
    )
    """Message id of a SUBSCRIBE that was answered; with the broker's refusal of each filter, or
    None where it was granted."""


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


class Connection:
    """A connection that the broker has accepted."""

    def __init__(
        self, client: Client, protocol: int, abilities: Abilities, hooks: Hooks, *, manual_ack: bool
    ) -> None:
        self.protocol = protocol
        self.abilities = abilities
        self.protocol_confirmed = True
        """Whether the next connection should speak this version too."""
        self.max_packet: int | None = None
        """Largest packet that the broker accepts, bytes; None: not announced."""
        self.gone = threading.Event()
        self.reason: str = ""
        self.code = 0
        """Why the connection ended: in words, and as a reason code."""
        self.answered = threading.Event()
        """CONNACK has come."""
        self.refusal: Refusal | None = None
        """The CONNACK, where it is negative."""
        self._client = client
        self._hooks = hooks
        self._manual_ack = manual_ack
        self._closed = False
        paho_client.guard_loop(client, self._lose)
        client.on_socket_open = paho_client.send_at_once
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_unsubscribe = self._on_unsubscribe
        client.on_subscribe = self._on_subscribe

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool = False,
        correlation: bytes | None = None,
        about: Mapping[str, str] | None = None,
        expires_s: int | None = None,
    ) -> Any:
        """Publish, as far as the broker's abilities go.

        Args:
            topic: where to.
            payload: of any content.
            qos: at most, as the broker's abilities.
            retain: whether the broker is to keep it.
            correlation: of the request that this answers.
            about: user properties, which MQTT 3.1.1 has not.
            expires_s: how long the broker keeps it for who is away; MQTT 3.1.1 keeps it for ever.

        Returns:
            paho's receipt, whose `mid` is the message id passed to the hooks.
        """
        qos, retain = min(qos, self.abilities.qos), retain and self.abilities.retain
        said: dict[str, Any] = {}
        if correlation is not None:
            said["CorrelationData"] = correlation
        if about is not None:
            said["UserProperty"] = list(about.items())
        if expires_s is not None:
            said["MessageExpiryInterval"] = expires_s
        properties = None
        if said and self.protocol == 5:
            properties = paho_client.properties("PUBLISH", **said)
        return self._client.publish(topic, payload, qos, retain=retain, properties=properties)

    def hear_published(self, *, wanted: bool) -> None:
        """Turn the calls of `Hooks.published` on or off.

        It is for acknowledgments. At QoS 0 it says no more than the receipt does, and paho takes
        30 µs for each call (MQTT 5 properties and a reason, measured).
        """
        self._client.on_publish = self._on_publish if wanted and not self._closed else None

    def subscribe(self, filters: list[str], *, as_published: bool = False) -> int | None:
        """Subscribe at QoS 1; return the message id, or None where the connection has ended.

        Args:
            filters: topic filters.
            as_published: keep the retain flag of messages that are delivered as they are published
                (MQTT 5, 3.8.3.1); MQTT 3.1.1 cannot.
        """
        if as_published and self.protocol == 5:
            return self._client.subscribe([paho_client.as_published(topic) for topic in filters])[1]
        return self._client.subscribe([(topic, 1) for topic in filters])[1]

    def unsubscribe(self, topic: str) -> int | None:
        return self._client.unsubscribe(topic)[1]

    def close(self) -> None:
        """Disconnect, also from a broker that no longer answers."""
        self._client.disconnect()
        # Paho's thread sends the DISCONNECT; without it the broker would publish our last will.
        deadline = time.monotonic() + 0.5
        while self._client.socket() is not None and time.monotonic() < deadline:
            self.gone.wait(0.002)
        wire: Any = self._client.socket()
        if wire is not None:
            try:
                wire.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("the connection was already closed")
        self._client.loop_stop()
        self._closed = True
        paho_client.detach(self._client)

    def give_up(self, reason: str) -> None:
        """Count the connection as lost: the broker does not do its part; then close it."""
        if not self.gone.is_set():
            self.code, self.reason = 0, reason
            self.gone.set()

    # Called by paho's thread

    def _on_connect(self, _c: Any, _u: Any, _flags: Any, reason: Any, properties: Any) -> None:
        # Kept apart from the reason of the disconnect, which paho reports at once: after a refusal
        # that would be "Protocol error", or nothing.
        code = code_of(reason)
        if code != 0:
            self.refusal = Refusal(code, str(reason))
        elif self.protocol == 5:
            self.abilities = Abilities(
                min(1, getattr(properties, "MaximumQoS", 1)),
                bool(getattr(properties, "RetainAvailable", 1)),
            )
        self.max_packet = getattr(properties, "MaximumPacketSize", None)
        self.answered.set()
        acknowledge_now(self._client)

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if not self.gone.is_set():
            self.code, self.reason = code_of(reason), str(reason)
            if self.code == UNSPECIFIED and not flags.is_disconnect_packet_from_server:
                self.reason = "closed without a DISCONNECT packet, or broken on the way"
        self.gone.set()

    def _lose(self) -> None:
        self.code, self.reason = UNSPECIFIED, "it sent what cannot be read"
        self.gone.set()

    def _on_message(self, client: Client, _u: Any, message: Any) -> None:
        properties, mid, qos = message.properties, message.mid, message.qos
        try:
            topic = message.topic
        except UnicodeDecodeError:
            # As an unknown topic: it is handled as malformed, and acknowledged.
            topic = repr(message._topic)  # noqa: SLF001 - there is no other way to it
        self._hooks.message(
            ReceivedMessage(
                topic,
                message.payload,
                bool(message.retain),
                getattr(properties, "ResponseTopic", None),
                getattr(properties, "CorrelationData", None),
                (lambda: client.ack(mid, qos)) if self._manual_ack else (lambda: None),
                qos,
            )
        )
        acknowledge_now(client)

    def _on_publish(self, client: Client, _u: Any, mid: int, reason: Any, _properties: Any) -> None:
        acknowledge_now(client)
        code = code_of(reason)
        self._hooks.published(self, mid, Refusal(code, str(reason)) if code >= REFUSAL else None)

    def _on_unsubscribe(self, client: Client, _u: Any, mid: int, *_: Any) -> None:
        acknowledge_now(client)
        self._hooks.unsubscribed(self, mid)

    def _on_subscribe(self, client: Client, _u: Any, mid: int, reasons: Any, _props: Any) -> None:
        acknowledge_now(client)
        refusals = (
            Refusal(code_of(reason), str(reason)) if code_of(reason) >= REFUSAL else None
            for reason in reasons
        )
        self._hooks.subscribed(self, mid, tuple(refusals))


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
) -> Connection:
    """Connect once; where the broker refuses MQTT 5 or the last will, again without.

    Args:
        broker: settings of the broker.
        client_id: MQTT client id.
        hooks: called with what happens on the connection.
        protocol: 5 or 4, instead of the one in the settings.
        will: last will.
        tls: from `tls_context`; made here where it is not given.
        session: have the broker keep messages for us over short absences, acknowledge by hand.
        stopping: ends the attempt when set.
        abilities: of the broker, as far as they are known.

    Raises:
        BrokerError: the broker cannot be reached or refuses the connection.
    """
    wanted = protocol or broker.protocol
    context = tls or tls_context(broker)

    def attempt(version: int) -> Connection:
        can = abilities
        while True:
            try:
                return _connect(
                    broker, client_id, version, hooks, will, context, session, stopping, can
                )
            except RefusesWill as refusal:
                # Where 3.1.1 is only the second choice, the broker may have been restarting.
                if refusal.abilities == can or version != wanted:
                    raise
                can = refusal.abilities

    try:
        return attempt(wanted)
    except RefusesProtocol as refusal:
        if wanted == 4:
            raise
        if refusal.silent:
            # The next attempt may take twice as long, and nobody is to wait for both in the dark.
            log.warning("broker: %s; trying MQTT 3.1.1", refusal)
        connection = attempt(4)
        connection.protocol_confirmed = refusal.explicit
        log.warning("broker: %s: speaking MQTT 3.1.1", refusal)
        return connection


def is_acknowledged(receipt: Any) -> bool:
    """Whether a message was acknowledged, given its receipt from `Connection.publish`.

    One that found the connection broken never is; paho's own method raises then.
    """
    try:
        return bool(receipt.is_published())
    except (RuntimeError, ValueError):
        return False


def _connect(  # noqa: PLR0917 - the arguments of paho
    broker: Broker,
    client_id: str,
    protocol: int,
    hooks: Hooks,
    will: Will | None,
    tls: ssl.SSLContext | None,
    session: bool,
    stopping: threading.Event | None,
    abilities: Abilities,
) -> Connection:
    address = broker.address
    client = make_client(broker, client_id, protocol, tls, session=session)
    if will is not None:
        client.will_set(will.topic, will.payload, abilities.qos, retain=abilities.retain)
    connection = Connection(client, protocol, abilities, hooks, manual_ack=session)
    options = paho_client.session_options(keep=session) if protocol == 5 else {}
    try:
        try:
            client.connect(address.host, address.port, KEEPALIVE, **options)
            client.loop_start()  # opens a pair of sockets of its own
        except RuntimeError as problem:  # of Thread.start
            connection.close()
            raise BrokerError(
                f"{address}: no room for another thread; its unit's TasksMax, or the system's limit"
            ) from problem
        except (OSError, ValueError) as problem:
            connection.close()  # its sockets may be the last files that can be open
            from .diagnose import explain_unreachable

            why = explain_unreachable(problem, broker)
            raise BrokerError(f"{address} cannot be reached: {why}") from problem
        _await_answer(connection, broker, stopping, will)
    except BaseException:
        connection.close()
        raise
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
