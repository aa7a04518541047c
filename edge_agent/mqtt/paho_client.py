"""Creates and maintains paho's client; the only module that imports paho.

paho runs only with `loop_start`; with `loop_forever` in our own thread, publishing from other
threads corrupts the stream (measured).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from ..config.settings import Broker
from ..core.parameters import shown
from ..device.resources import ROOT, usable_memory

if TYPE_CHECKING:
    import ssl

    from paho.mqtt.client import Client

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
"""Seconds."""
RECEIVE_MAXIMUM = 64
"""Most unacknowledged messages that the broker may send us: limits memory during a push."""
COMMAND_RECEIVE_MAXIMUM = 65535
"""The same for a command: mosquitto drops messages beyond this and its queue of 1000."""
MOST_PACKET = 256 * 2**20 - 1
"""Largest possible message, bytes."""
COMMAND_PACKET = 16 * 2**20
"""Largest message for a command: what devices say, pictures, blocks."""
MOST_PROPERTIES = 16 * 1024
"""Bytes of a message's MQTT 5 properties: more are not read."""
BEGINNING = 128 * 1024
"""Bytes that are kept of a packet which is too large."""
UNSENT = 2**17
"""Bytes that the kernel may hold and has not sent yet: all that a fast network needs."""
READ_AT_ONCE = 2**20
"""Bytes at most that are taken from the socket by one call."""
TOO_LARGE = 0x95
"""MQTT 5 reason code."""
SESSION_EXPIRY = 3600
"""Seconds for which the broker keeps messages for us after a disconnect."""
NODE_EXPIRY = 60
"""The same for one that has other nodes: what it keeps may be carried out over those meanwhile."""


Where = tuple[int, Any]
"""Family and address of a socket."""


def resolve(host: str, port: int) -> list[Where]:
    """List the addresses of a name in the system's order; raises like `getaddrinfo`."""
    # As bytes: for a str, Python imports its codec for international names, some 3 ms of a start.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _open(where: Where) -> socket.socket:
    wire = socket.socket(where[0], socket.SOCK_STREAM)
    try:
        wire.settimeout(CONNECT_TIMEOUT)
        wire.connect(where[1])
    except BaseException:
        wire.close()
        raise
    return wire


def make_client(
    broker: Broker,
    where: Where,
    client_id: str,
    protocol: int,
    tls: ssl.SSLContext | None,
    *,
    session: bool,
) -> Client:
    """Create an unconnected client for the address *where*.

    *session*: the broker keeps messages for us, and we acknowledge messages manually.
    """
    _import_lazily("urllib.request")
    _import_lazily("hashlib")
    if tls is None:
        _import_lazily("ssl", errors=("SSLWantReadError", "SSLWantWriteError"))
    import paho.mqtt.client as paho
    from paho.mqtt import properties as read
    from paho.mqtt.enums import CallbackAPIVersion

    read.readUTF = _read_text
    _know_refusal()
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if protocol == 5 else not session,
        protocol=paho.MQTTv5 if protocol == 5 else paho.MQTTv311,
        reconnect_on_failure=False,
        manual_ack=session,
    )
    address = broker.address
    username = broker.username or address.username
    if username is not None:
        client.username_pw_set(username, broker.password or address.password)
    if tls is not None:
        client.tls_set_context(tls)
    client.connect_timeout = CONNECT_TIMEOUT
    _bound(client, largest_packet() if session else COMMAND_PACKET)
    if protocol == 5:
        _bound_properties(client)
    # paho itself uses the first address that TCP reaches, even if the broker there hangs. TLS still
    # compares the name with the certificate.
    vars(client)["_create_socket_connection"] = lambda: _open(where)
    return client


def _read_text(buffer: bytes, room: int) -> tuple[str, int]:
    """Read a text of an MQTT 5 property as paho's `readUTF`, whatever characters it has.

    paho ends the connection over U+FEFF, which is allowed (MQTT 5, 1.5.4): the broker then sends
    that message again at every connection.

    Returns:
        The text and the number of bytes that it takes.

    Raises:
        MalformedPacket: it is longer than the *room* bytes that are left.
    """
    from paho.mqtt.exception import MalformedPacket

    size = 2 + int.from_bytes(buffer[:2], "big")
    if room < 2 or size > room:
        raise MalformedPacket("a text of a property is longer than the packet")
    text = bytes(buffer[2:size]).decode("utf-8", "replace")
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}"), size


class _Beginning(bytearray):
    """What is kept of a packet that is too large: its topic, and some of what follows."""

    def __iadd__(self, data: Any) -> Self:  # type: ignore[misc] # mypy asks for another __add__
        return super().__iadd__(data[: max(0, BEGINNING - len(self))])


def _bound(client: Client, most: int) -> None:
    """Read larger packets than *most* bytes without keeping them.

    Brokers of 3.1.1 are not told of a limit, and paho takes three times the size of what it reads.
    Ending the connection instead would bring a message of QoS 1 again and again.
    """
    receive = client._sock_recv  # noqa: SLF001

    def bounded(size: int) -> bytes:
        packet = vars(client)["_in_packet"]
        if size > most and not isinstance(packet["packet"], _Beginning):
            packet["packet"] = _Beginning()
        return receive(min(size, READ_AT_ONCE))

    vars(client)["_sock_recv"] = bounded


def _bound_properties(client: Client) -> None:
    """Read a message with too many properties, or with such that paho refuses, without any.

    paho takes a time that grows with their square, and holds the interpreter meanwhile: a message
    with 1 MB of user properties, which brokers pass on, stopped the process for a minute. Over what
    it refuses it ends the connection, and the broker sends the message again at each.
    """
    handle = client._handle_publish  # noqa: SLF001

    def bounded() -> Any:
        found = vars(client)["_in_packet"]
        packet, qos = found["packet"], found["command"] >> 1 & 3
        begin = at = 2 + int.from_bytes(packet[:2], "big") + (2 if qos else 0)
        size = shift = 0
        for digit in packet[at : at + 4]:
            at += 1
            size |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                break
        why = f"are {size} bytes" if size > MOST_PROPERTIES else _refused(packet[begin : at + size])
        if why:
            log.warning("broker: a message's properties are ignored: they %s", why)
            packet[begin : at + size] = b"\0"
        return handle()

    vars(client)["_handle_publish"] = bounded


def _refused(encoded: bytes) -> str:
    """Return why paho refuses the properties of a message; empty: it takes them."""
    if len(encoded) < 2:
        return ""
    try:
        properties("PUBLISH").unpack(bytes(encoded))
    except Exception as problem:  # noqa: BLE001 - it also fails with IndexError, KeyError …
        return f"cannot be read: {shown(problem)}"
    return ""


def _know_refusal() -> None:
    """Have paho read 0x95 as an answer to PUBLISH; it ends the connection otherwise.

    mosquitto refuses a message above its `message_size_limit` so, which MQTT 5 (3.4.2.1) does not
    list for PUBACK: the message was sent again at each connection, and ended it.
    """
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.reasoncodes import ReasonCode

    (packets,) = ReasonCode.names[TOO_LARGE].values()
    if PacketTypes.PUBACK not in packets:
        packets.append(PacketTypes.PUBACK)


def receives(client: Client) -> bool:
    """Whether a packet has come in part."""
    return bool(vars(client)["_in_packet"]["command"])


def left_out(client: Client) -> int:
    """Return the bytes of the packet at hand if it was too large to be kept, else 0."""
    packet = vars(client)["_in_packet"]
    return int(packet["remaining_length"]) if isinstance(packet["packet"], _Beginning) else 0


class _NeverRaised(Exception):
    """Replaces the exceptions of a module that is not imported yet."""


def _import_lazily(name: str, errors: tuple[str, ...] = ()) -> None:
    """Put a proxy into `sys.modules` that imports a module on the first use of an attribute.

    paho imports `urllib.request` (with HTTP and mail) and `hashlib` for WebSockets, which are not
    used here, and `ssl`, which most brokers on a local network do not need: half of paho's import
    time, which delays the first result, and 4 MB of libraries. *errors* are exceptions that only
    the module itself raises: an `except` clause with one of these does not import it.
    """
    if name in sys.modules:
        return

    def get(attribute: str) -> Any:
        if sys.modules.get(name) is stand_in:
            if attribute in errors:
                return _NeverRaised
            sys.modules.pop(name, None)
        return getattr(import_module(name), attribute)

    stand_in: Any = ModuleType(name)
    stand_in.__getattr__ = get
    sys.modules[name] = stand_in
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(import_module(parent), own, stand_in)


def guard_loop(client: Client, lost: Callable[[], object]) -> None:
    """Have unreadable data in paho's thread end the connection, not the agent.

    paho 2.2 reports a malformed packet; 2.1 raises.
    """
    loop = client.loop_forever

    def guarded_loop(*args: Any, **kwargs: Any) -> Any:
        try:
            return loop(*args, **kwargs)
        except Exception as problem:  # noqa: BLE001 - of whatever the broker has sent
            log.warning("broker: sent unreadable data: %s", shown(problem))
            lost()

    client.loop_forever = guarded_loop  # type: ignore[method-assign]


def detach(client: Client) -> None:
    """Remove all callbacks, which refer to paho's client and so keep its sockets open.

    A reference cycle is freed only at the next full collection: until then each restart of a
    broker left two sockets open (seen: 14 after seven).
    """
    client.on_connect = client.on_disconnect = client.on_message = None
    client.on_publish = client.on_unsubscribe = client.on_subscribe = None
    for ours in ("loop_forever", "_sock_recv", "_handle_publish"):
        vars(client).pop(ours, None)


def send_at_once(_client: Any, _userdata: Any, wire: Any) -> None:
    """Set TCP_NODELAY on a socket that was opened, and bound what the kernel keeps unsent.

    Over a slow network it keeps megabytes otherwise, and what counts as written is sent half a
    minute later.
    """
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # what stands in for Linux may not know it
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)


def limit_inflight(client: Client, most: int | None) -> None:
    """Have at most so many messages of QoS 1 unacknowledged, as the broker's CONNACK says.

    paho ignores its receive maximum (MQTT 5, 3.2.2.3.3), and lets its own limit be changed only
    while there is no connection; nothing is in flight yet.
    """
    if most is not None:
        exchange_window(client, min(most, client.max_inflight_messages))


def exchange_window(client: Client, most: int) -> int:
    """Set how many messages of QoS 1 may be unacknowledged; return the former number.

    paho queues the others. Those that may be sent are, at once: what is published next would
    overtake them otherwise.
    """
    with client._out_message_mutex:  # noqa: SLF001 - see `limit_inflight`
        former, client._max_inflight_messages = client.max_inflight_messages, most  # noqa: SLF001
        client._update_inflight()  # noqa: SLF001
    return former


def acknowledge_now(client: Client) -> None:
    """Set TCP_QUICKACK so that the kernel acknowledges the bytes just read at once.

    By default a broker holds back a small packet until the previous one is acknowledged (Nagle),
    and the kernel delays that acknowledgment by 40 ms to send it along with data: each request and
    answer of a transfer took that long (measured with mosquitto 2 on loopback).
    """
    wire: Any = client.socket()
    if wire is not None:
        # It may be closed by now; `on_disconnect` reports that.
        with contextlib.suppress(OSError):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def properties(packet: str, **values: Any) -> Any:
    """Create the properties of an MQTT 5 packet of some kind."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made = Properties(getattr(PacketTypes, packet))  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


def largest_packet(root: Path = ROOT) -> int:
    """Return the size of the largest message that an MQTT 5 broker may send us, bytes.

    While reading a message, paho uses four times its size (measured): an untrusted message must
    not use up all memory.
    """
    return min(MOST_PACKET, usable_memory(root) // 8 or MOST_PACKET)


def session_options(*, keep: bool, clean: bool = False, others: bool = False) -> dict[str, Any]:
    """Return the session options of an MQTT 5 CONNECT.

    *keep*: it outlives the connection; *clean*: an earlier one is discarded; *others*: the broker
    has other nodes.
    """
    limits = {"ReceiveMaximum": RECEIVE_MAXIMUM if keep else COMMAND_RECEIVE_MAXIMUM}
    limits["MaximumPacketSize"] = largest_packet() if keep else COMMAND_PACKET
    if keep:
        limits["SessionExpiryInterval"] = NODE_EXPIRY if others else SESSION_EXPIRY
    return {"clean_start": clean or not keep, "properties": properties("CONNECT", **limits)}


def as_published(topic: str, qos: int) -> tuple[str, Any]:
    """Return a subscription that keeps the retain flag as published."""
    from paho.mqtt.subscribeoptions import SubscribeOptions

    return topic, SubscribeOptions(qos=qos, retainAsPublished=True)


def code_of(reason: Any) -> int:
    """Return the number of a reason code: paho passes either an object or an int."""
    value = getattr(reason, "value", reason)
    return int(value) if isinstance(value, int) else 0
