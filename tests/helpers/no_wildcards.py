"""A broker that does what RabbitMQ does with retained messages."""

from __future__ import annotations

import re
import socket

from tests.helpers.support import Relay


class NoWildcards(Relay):
    """Has a broker of MQTT 5 send no retained messages to wildcards, as RabbitMQ does."""

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        if data[0] == 0x82:  # SUBSCRIBE, in one piece and by itself
            data = re.sub(rb"(#|\+(?:/[^\x00\x01]*)?)([\x00\x01])", _without_retained, data)
        super().pass_on(data, source, sink)


def _without_retained(found: re.Match[bytes]) -> bytes:
    return found[1] + bytes([found[2][0] | 0x20])
