"""Brokers that say what no real one can be made to say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

CONNECTED = b"\x20\x03\x00\x00\x00"


class ScriptedBroker:
    """Accepts a connection of MQTT 5 after the other, and says what it was told to say."""

    def __init__(
        self,
        said: bytes = b"",
        *,
        acknowledges: bool = True,
        owed: int = 0,
        grants: Sequence[int | None] = (),
        forgets: bool = False,
    ) -> None:
        """Listen.

        Args:
            said: bytes that are sent once a client has subscribed.
            acknowledges: whether PUBLISH of QoS 1 is answered.
            owed: how many of the first answers to it are lost.
            grants: reason codes for one SUBSCRIBE after the other, None for no answer; 1 from then
                on.
            forgets: whether UNSUBSCRIBE of what was not subscribed to is not answered (rumqttd).

        """
        self.connections = 0
        self._said = said
        self._acknowledges = acknowledges
        self._owed = owed
        self._grants = iter(grants)
        self._forgets = forgets
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.url = f"mqtt://127.0.0.1:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                wire, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            with wire:
                try:
                    self._talk(wire)
                except OSError:
                    continue

    def _talk(self, wire: socket.socket) -> None:
        known: set[bytes] = set()
        while True:
            kind, body = read_packet(wire)
            match kind >> 4:
                case 1:
                    wire.sendall(CONNECTED)
                case 3 if kind & 6 and self._owed:
                    self._owed -= 1
                case 3 if kind & 6 and self._acknowledges:
                    topic = int.from_bytes(body[:2], "big")
                    wire.sendall(b"\x40\x02" + body[2 + topic : 4 + topic])
                case 8:
                    grant = next(self._grants, 1)
                    filters = read_filters(body, options=1)
                    known |= filters
                    if grant is not None:
                        suback = bytes([0x90, 3 + len(filters)]) + body[:2] + b"\x00"
                        wire.sendall(suback + bytes([grant]) * len(filters) + self._said)
                case 10:
                    filters = read_filters(body, options=0)
                    if not self._forgets or filters & known:
                        wire.sendall(b"\xb0\x04" + body[:2] + b"\x00\x11")
                    known -= filters
                case 12:
                    wire.sendall(b"\xd0\x00")

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


def read_filters(body: bytes, *, options: int) -> set[bytes]:
    """Return the topic filters of a SUBSCRIBE (*options* 1) or UNSUBSCRIBE (0) of MQTT 5."""
    found, at = set(), 3 + body[2]
    while at < len(body):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        found.add(body[at + 2 : end])
        at = end + options
    return found


def read_packet(wire: socket.socket) -> tuple[int, bytes]:
    """Read a packet; return its first byte and its body.

    Raises:
        ConnectionError: the connection has ended.
    """

    def read(count: int) -> bytes:
        data = wire.recv(count, socket.MSG_WAITALL) if count else b""
        if len(data) < count:
            raise ConnectionError
        return data

    kind, length, shift = read(1)[0], 0, 0
    while True:
        digit = read(1)[0]
        length |= (digit & 0x7F) << shift
        shift += 7
        if not digit & 0x80:
            return kind, read(length)
