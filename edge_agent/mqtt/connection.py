"""One MQTT connection, from CONNECT to its end.

It never reconnects: each connection uses a new paho client, so that nothing stays in paho's own
unbounded queues.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.frozen import record
from ..core.json_text import read_json
from . import paho_client
from .declared import as_declared
from .diagnose import ACCESS_LIST, NOT_AUTHORIZED
from .paho_client import TOO_LARGE, acknowledge_now, code_of, limit_inflight

if TYPE_CHECKING:
    from paho.mqtt.client import Client

log = logging.getLogger(__name__)

REFUSAL = 0x80
"""The first MQTT 5 reason code that means failure."""
TAKEN_OVER = 0x8E
UNSPECIFIED = 0x80
_HINTS = {
    NOT_AUTHORIZED: ACCESS_LIST,
    TOO_LARGE: "see the broker's limit; for mosquitto, message_size_limit",
}


@record(quick=True)
class ReceivedMessage:
    """A message from the broker; anyone may have published it."""

    topic: str
    payload: bytes
    retained: bool
    """Whether it was published with the retain flag. For a message delivered at publication this
    is known only in MQTT 5, for subscriptions `as_published`; otherwise it is True only for
    messages that the broker had kept."""
    response_topic: str | None = None
    correlation: bytes | None = None
    ack: Callable[[], object] = lambda: None
    """Acknowledges it to the broker; to be called once its effect is durable."""
    qos: int = 0
    too_large: int = 0
    """Its bytes, where they were too many: the payload was not kept."""

    @property
    def body(self) -> dict[str, Any] | None:
        """The JSON object in the payload, or None if it is not one."""
        return parse_object(self.payload)

    def said(self, kind: str) -> dict[str, Any] | None:
        """Return what an agent may say in a message of a kind; None: it is no JSON object."""
        body = self.body
        return None if body is None else as_declared(kind, body)


def parse_object(payload: bytes) -> dict[str, Any] | None:
    """Parse a JSON object from an untrusted sender; None if `read_json` refuses it."""
    try:
        body = read_json(payload, finite=True)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


@record
class Abilities:
    """The broker's abilities; publishing stays within them."""

    qos: int = 1
    """Highest quality of service that it accepts, 0 or 1."""
    retain: bool = True
    """Whether it keeps retained messages."""

    def limits(self) -> list[str]:
        """Return a line for each missing ability: its consequence and the fix."""
        limits = []
        if self.qos == 0:
            limits.append(
                "takes QoS 0 only: results with qos = 1, replies and pushes can be lost on the "
                "way; allow QoS 1 there (mosquitto: max_qos)"
            )
        if not self.retain:
            limits.append(
                "keeps no retained messages: later subscribers do not see this device's state; "
                "allow them there (mosquitto: retain_available)"
            )
        return limits


ALL = Abilities()


@record
class Will:
    """The last will: the broker publishes it when the connection breaks, retained, at QoS 1."""

    topic: str
    payload: bytes


@record
class Node:
    """The node of a broker that has accepted a connection."""

    where: paho_client.Where = (0, None)
    address: object = ""
    """Its socket's address, and the one in the settings."""
    has_others: bool = False
    """Whether the broker is a cluster, with other nodes."""


@record
class Refusal:
    """A negative acknowledgment."""

    code: int
    """MQTT 5 reason code, REFUSAL or above."""
    reason: str
    """paho's text for it."""

    @property
    def words(self) -> str:
        """The text, and where to look."""
        hint = _HINTS.get(self.code)
        return f"{self.reason} ({hint})" if hint else self.reason


@record(kw_only=True)
class Hooks:
    """Functions called by paho's thread while it holds its own locks.

    A hook may only queue the event: it must neither raise nor wait for a lock that is held while
    publishing.
    """

    message: Callable[[ReceivedMessage], None] = lambda _message: None
    published: Callable[[Connection, int, Refusal | None], None] = lambda _c, _mid, _refusal: None
    """Gets the message id of an acknowledged QoS 1 message, or of a QoS 0 message written to the
    socket, and the broker's refusal, if any."""
    unsubscribed: Callable[[Connection, int], None] = lambda _c, _mid: None
    subscribed: Callable[[Connection, int, tuple[Refusal | None, ...]], None] = (
        lambda _c, _mid, _refusals: None
    )
    """Gets the message id of an answered SUBSCRIBE and, for each filter, the broker's refusal, or
    None if it was granted."""


class Connection:
    """A connection that the broker has accepted."""

    def __init__(
        self, client: Client, protocol: int, abilities: Abilities, hooks: Hooks, *, manual_ack: bool
    ) -> None:
        self.protocol = protocol
        self.abilities = abilities
        self.protocol_confirmed = True
        """Whether the next connection should use this version too."""
        self.node = Node()
        self.max_packet: int | None = None
        """Largest packet that the broker accepts, bytes; None: not announced."""
        self.gone = threading.Event()
        self.reason: str = ""
        self.code = 0
        """Why the connection ended: a text and a reason code."""
        self.answered = threading.Event()
        """Set when CONNACK has arrived."""
        self.resumed = False
        """Whether the broker had kept a session of ours."""
        self.refusal: Refusal | None = None
        """The refusal in the CONNACK, if any."""
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
        """Publish within the broker's abilities; return paho's receipt.

        Its `mid` is the message id passed to the hooks. MQTT 3.1.1 has no user properties
        (*about*) and no expiry.
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

        They are needed for acknowledgments. At QoS 0 they add nothing to the receipt, and paho
        takes 30 µs for each call (MQTT 5 properties and a reason, measured).
        """
        self._client.on_publish = self._on_publish if wanted and not self._closed else None

    def exchange_window(self, most: int) -> int:
        """Set how many messages of QoS 1 may be unacknowledged; return the former number."""
        return paho_client.exchange_window(self._client, most)

    def subscribe(
        self, filters: list[tuple[str, int]], *, as_published: bool = False
    ) -> int | None:
        """Subscribe, each at its QoS; return the message id, or None if the connection has ended.

        *as_published* keeps the retain flag of messages delivered at publication (MQTT 5,
        3.8.3.1); MQTT 3.1.1 cannot.
        """
        if not filters:
            return None  # MQTT has no empty SUBSCRIBE
        if as_published and self.protocol == 5:
            return self._client.subscribe([paho_client.as_published(*each) for each in filters])[1]
        return self._client.subscribe(filters)[1]

    def unsubscribe(self, topics: str | list[str]) -> int | None:
        return self._client.unsubscribe(topics)[1]

    def close(self) -> None:
        """Disconnect, even from a broker that no longer answers."""
        self._client.disconnect()
        # paho's thread sends the DISCONNECT; without it the broker would publish our last will.
        deadline = time.monotonic() + 0.5
        while self._client.socket() is not None and time.monotonic() < deadline:
            self.gone.wait(0.002)
        self.hang_up()
        self._client.loop_stop()
        self._closed = True
        paho_client.detach(self._client)

    def hang_up(self) -> None:
        """End it without a DISCONNECT, so that the broker publishes the last will."""
        wire: Any = self._client.socket()
        if wire is not None:
            try:
                wire.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("the connection was already closed")

    @property
    def receives(self) -> bool:
        """Whether a message has come in part: more may follow it."""
        return paho_client.receives(self._client)

    def give_up(self, reason: str) -> None:
        """Treat the connection as lost because the broker misbehaves, and close it."""
        if not self.gone.is_set():
            self.code, self.reason = 0, reason
            self.gone.set()

    # Called by paho's thread

    def _on_connect(self, _c: Any, _u: Any, flags: Any, reason: Any, properties: Any) -> None:
        # Stored separately from the disconnect reason, which paho reports at once: after a refusal
        # that would be "Protocol error", or nothing.
        code = code_of(reason)
        if code != 0:
            self.refusal = Refusal(code, str(reason))
        elif self.protocol == 5:
            self.abilities = Abilities(
                min(1, getattr(properties, "MaximumQoS", 1)),
                bool(getattr(properties, "RetainAvailable", 1)),
            )
        self.resumed = bool(flags.session_present)
        self.max_packet = getattr(properties, "MaximumPacketSize", None)
        limit_inflight(self._client, getattr(properties, "ReceiveMaximum", None))
        self.answered.set()
        acknowledge_now(self._client)

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if not self.gone.is_set():
            self.code, self.reason = code_of(reason), str(reason)
            if self.code == UNSPECIFIED and not flags.is_disconnect_packet_from_server:
                self.reason = "closed without a DISCONNECT packet, or broken on the way"
        self.gone.set()

    def _lose(self) -> None:
        self.code, self.reason = 0, "it sent unreadable data"
        self.gone.set()

    def _on_message(self, client: Client, _u: Any, message: Any) -> None:
        properties, mid, qos = message.properties, message.mid, message.qos
        try:
            topic = message.topic
        except UnicodeDecodeError:
            # As an unknown topic: it is handled as malformed, and acknowledged.
            topic = repr(message._topic)  # noqa: SLF001 - there is no other way to it
        too_large = paho_client.left_out(client)
        self._hooks.message(
            ReceivedMessage(
                topic,
                b"" if too_large else message.payload,
                bool(message.retain),
                getattr(properties, "ResponseTopic", None),
                getattr(properties, "CorrelationData", None),
                (lambda: client.ack(mid, qos)) if self._manual_ack else (lambda: None),
                qos,
                too_large,
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


def is_acknowledged(receipt: Any) -> bool:
    """Whether a message was acknowledged, given its receipt from `Connection.publish`.

    A message that found the connection broken never is; paho's own method raises then.
    """
    try:
        return bool(receipt.is_published())
    except (RuntimeError, ValueError):
        return False
