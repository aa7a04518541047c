"""Video through PyAV: a file or stream opened, its frames decoded and converted to BGR.

The one place that knows the options by which FFmpeg's libraries are configured.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from ..core.errors import SampleError, SourceError
from ..core.types import Array
from .frame_pool import FRAME_POOL
from .hw_decode import HARDWARE
from .opencv import MAX_PIXELS, check_size, load
from .packet_ring import PACKETS
from .transport import TransportFile

FEW_CORES = 4
"""With fewer, a stream is decoded by one thread: each further one costs, on two busy cores a sixth
more processor time for a frame."""
# The protocols keep a playlist that a camera serves from opening files of this machine.
NETWORK = {
    "protocol_whitelist": "rtsp,rtp,srtp,udp,tcp,tls,http,https,httpproxy,crypto",
    # Microseconds; the default takes in seconds of stream before the first picture.
    "analyzeduration": "300000",
}
# No playlists, which could name files outside the path given.
FILE = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,avi,matroska,mpegts,mpeg,mpegvideo,flv,h264,hevc,vvc,m4v,mjpeg,asf,"
    "ogg,gif,ivf,obu,av1,mxf,nut,dv,vc1,rm,swf,yuv4mpegpipe,apng,mpjpeg,jpeg_pipe",
}

# Color spaces of H.273 that FFmpeg does not convert and PyAV has no name for.
_SPACES = {
    8: "YCgCo",
    10: "BT.2020 with constant luminance",
    11: "SMPTE ST 2085",
    12: "derived from primaries",
    13: "derived from primaries, with constant luminance",
    14: "ICtCp",
}


class Video:
    """The video of a file or stream, frame by frame."""

    def __init__(
        self,
        address: str | TransportFile,
        name: str,
        options: Mapping[str, str],
        *,
        threads: int = 0,
        keys: bool = False,
        timeouts: tuple[float, float] | None = None,
        decode: str = "auto",
        source: str = "",
    ) -> None:
        """Open a path, URL or transport stream; nothing is decoded yet.

        *options*: NETWORK or FILE, and more of FFmpeg's. *threads* 0: as many as are of use.
        *keys*: only key frames are decoded. *timeouts*: of opening and of reading, seconds.
        *decode*: auto, software, or hardware of this name. *source*: its packets are kept by this,
        see `packet_ring`.

        Raises:
            av.FFmpegError: it cannot be opened.
            SourceError: the container has no video that can be decoded.
        """
        import av
        from av.codec.context import Flags
        from av.sidedata.sidedata import Type
        from av.video.reformatter import VideoReformatter

        # Else no side data can be read of a frame that has one of a kind newer than PyAV's list,
        # as EXIF. Only the display matrix is read here.
        kinds: Any = Type
        kinds._missing_ = classmethod(lambda known, _: known.VIDEO_HINT)
        self._error = av.FFmpegError
        self._name = name
        self._keys, self._source = keys, source
        self._container: Any = av.open(
            address, options=dict(options), timeout=timeouts, metadata_errors="replace"
        )
        stream: Any = self._container.streams.best("video")
        if stream is None:
            others = ", ".join(sorted({each.type for each in self._container.streams}))
            raise self._refusal(f"has no video (only {others})" if others else "has no video")
        self._stream: Any = stream
        decoder: Any = stream.codec_context
        if decoder is None:
            raise self._refusal(
                "has video of a codec that cannot be decoded here; convert it to H.264"
            )
        decoder.thread_count = threads
        decoder.thread_type = "AUTO"
        decoder.options = {"max_pixels": str(MAX_PIXELS)}
        if keys:
            decoder.flags |= Flags.low_delay  # without the frames between, none is late
        try:
            check_size(self._name, decoder.width, decoder.height)
        except SourceError:
            self._container.close()
            raise
        self._decoder = HARDWARE.decoder(decoder, name, decode) or decoder
        self._converter = VideoReformatter()
        # A bit less than what the pipeline's own clock allows.
        self._silence = 1.8 * timeouts[1] if timeouts else float("inf")
        self._frames = self._decoded()
        self._frame: Any = None
        self.packets = 0
        """Pieces of it that have been read: as many as frames, or fields."""
        self.promised: int = self._stream.frames
        """Number of frames in the header; 0: it does not say."""
        if "mov" in self._container.format.name:
            # Of those that an edit list leaves out none is read.
            self.promised = min(self.promised, len(self._stream.index_entries))

    @property
    def rate(self) -> float:
        """Frames a second as the file says; 0: it does not say."""
        return float(self._stream.guessed_rate or 0)

    @property
    def stamp(self) -> float | None:
        """When the frame is due, seconds from any beginning; None: nothing says."""
        stamp: float | None = self._frame.time
        return stamp

    def advance(self) -> bool:
        """Decode the next frame; False at the end.

        Raises:
            SampleError: one cannot be decoded; go on with the next.
            SourceError: it cannot be read any further.
        """
        try:
            frame = next(self._frames, None)
        except self._error as problem:
            raise SourceError(f"{self._name}: cannot be read on: {problem.strerror}") from None
        if isinstance(frame, SampleError):
            raise frame
        self._frame = frame
        return frame is not None

    def picture(self) -> Array:
        """Return the frame that `advance` has decoded, (height, width, 3) uint8 BGR, upright.

        A frame coded as two fields is woven: what stands still keeps its full height, nothing waits
        for the next frame, and only what moves has frayed edges.

        Raises:
            SampleError: it cannot be converted.
        """
        frame = self._frame
        try:
            made = self._converter.reformat(frame, format="bgr24", threads=1)
        except self._error:
            space = getattr(frame.colorspace, "name", frame.colorspace)
            raise SampleError(
                f"{self._name}: pictures of format {frame.format.name} in color space "
                f"{_SPACES.get(space, space)} cannot be converted to BGR"
            ) from None
        HARDWARE.works(self._name)
        height, width, plane = made.height, made.width, made.planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8)[: height * plane.line_size].reshape(
            height, -1
        )
        picture = FRAME_POOL.lend((height, width, 3))
        # Copied at once: memory that is given back in the order in which it came is not returned
        # to the system and cleared again, frame after frame.
        np.copyto(picture, rows[:, : width * 3].reshape(height, width, 3))
        return _upright(picture, frame)

    def close(self) -> None:
        """Close the file or stream; may be called twice."""
        self._frames.close()
        self._container.close()

    def _decoded(self) -> Generator[Any]:
        """Yield the frames, and a SampleError for each piece that cannot be decoded."""
        repeats = self._container.format.name == "avi"
        since = time.monotonic()
        for packet in self._read():
            if time.monotonic() - since > self._silence:
                # Else this thread would be held for as long as something comes.
                raise SourceError(f"{self._name}: what comes makes no picture")
            self.packets += packet.size > 0
            if repeats and packet.dts is not None:
                # Frames that only repeat the one before are counted by the header, and not read.
                self.packets = packet.dts + 1
            ring = PACKETS.ring(self._source)
            if ring is not None:
                ring.add(self, self._stream, packet)
            if self._keys and packet.size and not packet.is_keyframe:
                continue
            try:
                frames = self._decoder.decode(packet)
            except self._error as problem:
                yield SampleError(f"{self._name}: a frame cannot be decoded: {problem.strerror}")
            else:
                yield from frames
                since = time.monotonic() if frames else since

    def _read(self) -> Generator[Any]:
        try:
            yield from self._container.demux(self._stream)
        except IndexError:
            # PyAV, behind the last of our packets, where another stream has begun on the way.
            return

    def _refusal(self, why: str) -> SourceError:
        self._container.close()
        return SourceError(f"{self._name}: {why}")


def _upright(picture: Array, frame: Any) -> Array:
    """Rotate a picture by multiples of 90° and mirror it, as its display matrix says.

    A matrix (a, b, _, c, d, …) shows the point (x, y) at (ax + cy, bx + dy).
    """
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return picture
    a, b, _, c, d = (int(value) for value in np.frombuffer(matrix, np.int32)[:5])
    if (a, d) == (0, 0) and b and c:
        picture = picture.transpose(1, 0, 2)
        a, d = c, b
    elif (b, c) != (0, 0):
        return picture  # not by quarters
    cv2 = load()
    picture = np.ascontiguousarray(picture)
    if a < 0 or d < 0:
        picture = cv2.flip(picture, 1 if d > 0 else 0 if a > 0 else -1)
    return picture
