"""The last seconds of a camera's own packets, for clips of events without reencoding."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..core.containment import converted
from ..core.errors import AgentError

MOST_BYTES = 64 * 2**20
"""Most bytes of one source. Beyond that, the oldest group of pictures is dropped; if there is only
one, as with rare key frames, everything is dropped until the next key frame."""
SILENT = 2.0
"""Seconds without a packet after which another session may replace the present one."""
SLACK = 1.0
"""Extra seconds to keep, because events come later than their frames."""
LONGEST_STEP = 10.0
"""Seconds between two packets of a stream; a greater difference of their times is a set clock."""


class Packet(NamedTuple):
    """A piece of a stream as the camera has sent it."""

    number: int
    """Increases by one."""
    since: float
    """When it arrived, monotonic seconds."""
    key: bool
    """Whether decoding can start with it."""
    data: bytes
    pts: int | None
    dts: int | None
    time_base: Any
    """Unit of both, a fraction of a second."""


class PacketRing:
    """Packets of one session of a source. Its reader adds them; any thread may read them."""

    def __init__(self, seconds: float) -> None:
        """Keep the last *seconds*, from the preceding key frame on."""
        self.seconds = seconds
        self.template: bytes | None = None
        """A NUT file of one packet, which describes the stream for a muxer.

        Other containers store the codec's parameters in a form that the packets do not have.
        """
        self.session: object = None
        """The session of the packets; a new session starts again."""
        self._over = False
        """Whether that session has been closed."""
        self._packets: deque[Packet] = deque()
        self.bytes = 0
        """Of the packets in it, together."""
        self._next = 0
        self._lock = threading.Lock()

    def add(self, session: object, stream: Any, packet: Any) -> None:
        """Add a PyAV packet, keeping only a copy of its bytes.

        If pipelines have separate sessions (`share = false`), only the first session is used until
        it falls silent.
        """
        if not packet.size:
            return
        if session is not self.session or self.template is None:
            if not packet.is_keyframe or self._is_filled:
                return
            try:
                self._begin(session, stream, packet)
            except AgentError:
                return  # said when a clip is wanted
        with self._lock:
            made = Packet(
                self._next,
                time.monotonic(),
                packet.is_keyframe,
                bytes(packet),
                packet.pts,
                packet.dts,
                packet.time_base,
            )
            self._next += 1
            self._packets.append(made)
            self.bytes += len(made.data)
            self._trim(made.since)

    def leave(self, session: object) -> None:
        """Let another session begin at its first key frame: this one is closed."""
        with self._lock:
            self._over = self._over or session is self.session

    @property
    def _is_filled(self) -> bool:
        """Whether the session of the packets is still sending."""
        with self._lock:
            if self._over:
                return False
            latest = self._packets[-1].since if self._packets else float("-inf")
        return time.monotonic() - latest < SILENT

    def read(self, number: int) -> list[Packet]:
        """Return the stored packets from a number on."""
        with self._lock:
            return [packet for packet in self._packets if packet.number >= number]

    def start(self, at: float) -> int | None:
        """Return the number of the last key frame before a time, monotonic seconds.

        If that was dropped, return the oldest key frame; None if there is none.
        """
        with self._lock:
            keys = [packet for packet in self._packets if packet.key]
        before = [packet.number for packet in keys if packet.since <= at]
        return before[-1] if before else keys[0].number if keys else None

    def _begin(self, session: object, stream: Any, packet: Any) -> None:
        import av

        file = io.BytesIO()
        with _errors(), av.open(file, "w", format="nut") as output:
            # PyAV can only copy a codec that it cannot encode.
            copy = output.add_stream_from_template(stream, opaque=True)
            made = _copied(bytes(packet), 0, 0, packet.time_base)
            made.is_keyframe, made.stream = True, copy
            output.mux(made)
        with self._lock:
            self.session, self.template, self._over = session, file.getvalue(), False
            self._packets.clear()
            self.bytes = 0

    def _trim(self, now: float) -> None:
        """Drop groups of pictures that are no longer needed from the front."""
        while True:
            keys = [n for n, packet in enumerate(self._packets) if packet.key][:2]
            if len(keys) < 2:
                if self.bytes > MOST_BYTES:
                    self._packets.clear()
                    self.bytes, self.session = 0, None
                return
            wanted = self._packets[keys[1]].since > now - self.seconds - SLACK
            if wanted and self.bytes <= MOST_BYTES:
                return
            for _ in range(keys[1]):
                self.bytes -= len(self._packets.popleft().data)


class PacketRings:
    """The requested rings by source."""

    def __init__(self) -> None:
        self._rings: dict[str, PacketRing] = {}

    def want(self, seconds: Mapping[str, float]) -> None:
        """Keep packets of only these sources, each for its number of seconds."""
        rings = {}
        for source, each in seconds.items():
            ring = self._rings.get(source) or PacketRing(each)
            ring.seconds = each
            rings[source] = ring
        self._rings = rings

    def ring(self, source: str) -> PacketRing | None:
        """Return the ring of a source; None: its packets are not wanted."""
        return self._rings.get(source)


def _copied(data: bytes, pts: int, dts: int, time_base: Any) -> Any:
    import av

    made = av.Packet(data)
    made.pts, made.dts, made.time_base = pts, dts, time_base
    return made


class ClipWriter:
    """Writes packets of a ring to an MP4 file in fragments, so that a truncated file is playable.

    AgentError is raised if it cannot be written, or MP4 does not support the camera's stream.
    """

    def __init__(self, path: str, ring: PacketRing) -> None:
        """Open the file."""
        import av

        self.session = ring.session
        self._base, self._last, self._since = 0, -1, 0.0
        """What the camera's times exceed those of the clip by, the last of those, and when that
        packet arrived."""
        options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
        with _errors():
            self._template = av.open(io.BytesIO(ring.template or b""))
            # FFmpeg reports no full disk if it opens the file itself.
            self._output = Path(path).open("wb")  # noqa: SIM115 - closed in `close`
            self._file = av.open(self._output, "w", format="mp4", options=options)
            self._stream = self._file.add_stream_from_template(
                self._template.streams.video[0], opaque=True
            )

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._output.tell()

    def write(self, packet: Packet) -> None:
        """Append a packet.

        If its time does not continue that of the last one, its time of arrival does: cameras set
        their clocks, or give no times.
        """
        with _errors():
            said = (packet.pts or 0) if packet.dts is None else packet.dts
            if self._last < 0:
                self._base, self._since = said, packet.since
            at, step = said - self._base, LONGEST_STEP / packet.time_base
            if not self._last < at <= self._last + step:
                at = self._last + max(1, round((packet.since - self._since) / packet.time_base))
                self._base = said - at
            self._last, self._since = at, packet.since
            pts = at if packet.pts is None else packet.pts - self._base
            if not at <= pts <= at + step:
                pts = at  # the clip would never end
            made = _copied(packet.data, pts, at, packet.time_base)
            made.is_keyframe, made.stream = packet.key, self._stream
            self._file.mux(made)
            self._output.flush()

    def close(self) -> None:
        """Finish the file."""
        with _errors():
            try:
                self._file.close()
            finally:
                self._template.close()
                self._output.close()


@contextmanager
def _errors() -> Iterator[None]:
    import av

    try:
        yield
    except (av.FFmpegError, OSError, ValueError) as problem:
        raise AgentError(str(getattr(problem, "strerror", None) or problem)) from None
    except Exception as problem:  # noqa: BLE001 - whatever a camera sends
        raise converted(problem, "the stream cannot be stored", AgentError) from None


PACKETS = PacketRings()
"""The rings of this process."""
