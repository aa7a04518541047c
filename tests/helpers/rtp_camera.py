"""An RTSP camera whose every packet a test decides: times, parameter sets, tracks, sessions."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self

import av
import numpy as np

CLOCK = 90000
RATE = 10
"""Frames of an encoded second."""
PIECE = 1300
"""Most bytes of a packet."""


def color(number: int) -> tuple[int, int, int]:
    """Give the color of a frame by its number, BGR."""
    return 40 + 13 * number % 180, 40 + 29 * number % 180, 40 + 7 * number % 180


def number_of(picture: Any) -> int:
    """Find the number below 100 of the frame that a picture shows."""
    seen = picture.reshape(-1, 3).mean(0)
    return min(range(100), key=lambda n: float(np.abs(seen - color(n)).sum()))


def encoded(
    codec: str,
    numbers: Iterable[int],
    size: tuple[int, int] = (160, 96),
    form: str = "yuv420p",
    every: int = 10,
) -> list[bytes]:
    """Encode frames, each of its color; gives access units, of which *every* so many is a key."""
    options = {"tune": "zerolatency", "preset": "ultrafast"}
    if codec == "libx265":
        options["x265-params"] = "log-level=none:repeat-headers=1:pools=1"
    context: Any = av.CodecContext.create(codec, "w")
    context.width, context.height, context.pix_fmt = *size, form
    context.time_base, context.framerate = Fraction(1, RATE), Fraction(RATE)
    context.gop_size, context.max_b_frames, context.options = every, 0, options
    packets = []
    for number in numbers:
        picture = np.full((size[1], size[0], 3), color(number), np.uint8)
        frame = av.VideoFrame.from_ndarray(picture, "bgr24").reformat(format=form)
        frame.pts = number
        packets += context.encode(frame)
    return [bytes(packet) for packet in [*packets, *context.encode(None)]]


def units(data: bytes) -> list[bytes]:
    """Split an access unit into its NAL units."""
    return [unit for unit in re.split(b"\0\0\0\1|\0\0\1", data) if len(unit) > 2]


@dataclass
class Track:
    """One medium of a session."""

    name: str
    """As in `rtpmap`."""
    payloads: Sequence[Sequence[bytes]]
    """Of each frame."""
    rate: float = 4 * RATE
    """Frames a second, as they are sent."""
    stamp: Callable[[int], int] = lambda number: number * CLOCK // RATE
    """Gives a frame's time by its number."""
    late: float = 0.0
    """Seconds from the beginning to the first frame."""
    format: str = ""
    """Parameters in the session's description."""
    clocks: Sequence[tuple[float, float, int]] = ()
    """Reports of the sender: when, its clock in seconds since 1900, and the frames' time then."""
    clock: int = CLOCK

    @property
    def medium(self) -> str:
        return "audio" if self.name == "PCMA" else "video"

    @property
    def type(self) -> int:
        return {"PCMA": 8, "JPEG": 26}.get(self.name, 96)


def video(name: str, frames: Sequence[bytes], *, band: bool = True, **more: Any) -> Track:
    """Make a track of H264 or H265; without *band*, parameter sets are in the description only."""
    wide = name == "H265"
    sets = range(32, 35) if wide else range(7, 9)

    def kind(unit: bytes) -> int:
        return unit[0] >> 1 & 63 if wide else unit[0] & 31

    def pieces(unit: bytes) -> list[bytes]:
        if len(unit) < PIECE:
            return [unit]
        # A fragmentation unit of RFC 7798 or 6184.
        head = bytes([unit[0] & 0x81 | 49 << 1, unit[1]]) if wide else bytes([unit[0] & 0xE0 | 28])
        cuts = range(1 + wide, len(unit), PIECE)
        return [
            head
            + bytes([(at == cuts[0]) << 7 | (at == cuts[-1]) << 6 | kind(unit)])
            + unit[at : at + PIECE]
            for at in cuts
        ]

    payloads = [
        [piece for unit in units(frame) if band or kind(unit) not in sets for piece in pieces(unit)]
        for frame in frames
    ]
    if not band:
        told = [b64encode(u).decode() for u in units(frames[0]) if kind(u) in sets]
        keys = [f"sprop-{key}=" for key in ("vps", "sps", "pps")]
        more["format"] = (
            ";".join(map("".join, zip(keys, told, strict=True)))
            if wide
            else f"packetization-mode=1;sprop-parameter-sets={','.join(told)}"
        )
    return Track(name, payloads, **more)


def sound(seconds: float, **more: Any) -> Track:
    """Make a track of silence."""
    packets = [[b"\xd5" * 160]] * int(seconds * 50)
    return Track("PCMA", packets, 50, lambda number: 160 * number, clock=8000, **more)


@dataclass
class RtpCamera:
    """Takes clients of RTSP over TCP, and sends to each all tracks from their beginning."""

    tracks: Sequence[Track]
    timeout: int | None = None
    """Seconds without a request after which a session ends."""
    offers: str = "OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER"
    requests: list[str] = field(default_factory=list)
    """The methods that were asked for."""

    def __enter__(self) -> Self:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"rtsp://127.0.0.1:{self._door.getsockname()[1]}/stream"
        threading.Thread(target=self._welcome, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def _welcome(self) -> None:
        with suppress(OSError):
            while True:
                client = self._door.accept()[0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        stream, heard = client.makefile("rb"), [time.monotonic()]
        channels: dict[int, int] = {}
        with client, suppress(OSError):
            while line := stream.readline():
                if line[:1] == b"$":  # a report
                    rest = line[1:] + stream.read(max(0, 4 - len(line)))
                    stream.read(max(0, int.from_bytes(rest[1:3]) - (len(rest) - 3)))
                    continue
                heads = {}
                while (head := stream.readline().decode().strip()) != "":
                    key, _, value = head.partition(":")
                    heads[key.lower()] = value.strip()
                heard[0] = time.monotonic()
                verb, url = line.decode().split()[:2]
                self.requests.append(verb)
                more, body = self._answer(verb, url, heads, channels)
                client.sendall(
                    f"RTSP/1.0 200 OK\r\nCSeq: {heads['cseq']}\r\n{more}\r\n{body}".encode()
                )
                if verb == "PLAY":
                    player = threading.Thread(
                        target=self._play, args=(client, channels, heard), daemon=True
                    )
                    player.start()

    def _answer(
        self, verb: str, url: str, heads: dict[str, str], channels: dict[int, int]
    ) -> tuple[str, str]:
        """Give the headers and the body of an answer."""
        if verb == "OPTIONS":
            return f"Public: {self.offers}\r\n", ""
        if verb == "DESCRIBE":
            body = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\n"
            for number, track in enumerate(self.tracks):
                body += f"m={track.medium} 0 RTP/AVP {track.type}\r\n"
                body += f"a=rtpmap:{track.type} {track.name}/{track.clock}\r\n"
                body += f"a=fmtp:{track.type} {track.format}\r\n" if track.format else ""
                body += f"a=control:track{number}\r\n"
            return f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n", body
        limit = "" if self.timeout is None else f";timeout={self.timeout}"
        more = f"Session: 1{limit}\r\n"
        if verb == "SETUP":
            channel = int(heads["transport"].partition("interleaved=")[2].partition("-")[0])
            channels[int(url.rpartition("track")[2])] = channel
            more += f"Transport: RTP/AVP/TCP;unicast;interleaved={channel}-{channel + 1}\r\n"
        return more, ""

    def _play(self, client: socket.socket, channels: dict[int, int], heard: list[float]) -> None:
        """Send everything when it is due, then hang up."""
        began, sequences = time.monotonic(), dict.fromkeys(channels, 65500)
        with suppress(OSError):
            for due, track, time_ntp, stamp, payloads in self._schedule(channels):
                time.sleep(max(0.0, began + due - time.monotonic()))
                if self.timeout is not None and time.monotonic() - heard[0] > self.timeout:
                    break
                if time_ntp:
                    whole = int(time_ntp)
                    part = int((time_ntp - whole) * 2**32)
                    report = struct.pack(
                        "!BBHIIIIII", *(0x80, 200, 6, track, whole, part, stamp, 0, 0)
                    )
                    client.sendall(_framed(channels[track] + 1, report))
                for number, payload in enumerate(payloads):
                    last = number == len(payloads) - 1 and self.tracks[track].medium == "video"
                    kind = self.tracks[track].type | last << 7
                    sequence = sequences[track] & 0xFFFF
                    packet = struct.pack("!BBHII", 0x80, kind, sequence, stamp, track) + payload
                    client.sendall(_framed(channels[track], packet))
                    sequences[track] += 1
            client.shutdown(socket.SHUT_RDWR)

    def _schedule(
        self, channels: dict[int, int]
    ) -> list[tuple[float, int, float, int, Sequence[bytes]]]:
        """Give when to send what: the track, its sender's clock or 0, the time, the payloads."""
        plan: list[tuple[float, int, float, int, Sequence[bytes]]] = []
        for track in channels:
            each = self.tracks[track]
            plan += [
                (each.late + n / each.rate, track, 0.0, each.stamp(n) & 0xFFFFFFFF, payloads)
                for n, payloads in enumerate(each.payloads)
            ]
            plan += [(due, track, ntp, stamp, ()) for due, ntp, stamp in each.clocks]
        return sorted(plan, key=lambda item: item[0])


def _framed(channel: int, data: bytes) -> bytes:
    return b"$" + bytes([channel]) + len(data).to_bytes(2) + data
