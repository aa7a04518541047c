"""Video through PyAV: opens a file or stream, decodes its frames and converts them to BGR.

The only place with the options of FFmpeg's libraries.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from ..core.errors import SampleError, SourceError
from ..core.types import Array
from .backlog import Backlog
from .completeness import Completeness
from .frame_pool import FRAME_POOL
from .hw_decode import HARDWARE
from .opencv import MAX_PIXELS, check_size, load
from .packet_ring import PACKETS
from .transport import Splitting

FEW_CORES = 4
"""With fewer cores, one thread decodes a stream: on two busy cores, each further thread costs a
sixth more processor time per frame."""
# The protocols prevent a camera's playlist from opening files of this machine.
NETWORK = {
    "protocol_whitelist": "rtsp,rtp,srtp,udp,tcp,tls,http,https,httpproxy,crypto",
    # Microseconds; the default reads seconds of the stream before the first picture.
    "analyzeduration": "300000",
}
# No playlists, which could name files outside the path given.
FILE = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,avi,matroska,mpegts,mpeg,mpegvideo,flv,h264,hevc,vvc,m4v,mjpeg,asf,"
    "ogg,gif,ivf,obu,av1,mxf,nut,dv,vc1,rm,swf,yuv4mpegpipe,apng,mpjpeg,jpeg_pipe,dhav,wtv",
}

SOUND = (
    "has no video (only audio); to read its sound, convert it with `ffmpeg -i IN OUT.wav` and "
    "write wav:OUT.wav"
)

# H.273 color spaces that FFmpeg cannot convert and PyAV has no names for.
_SPACES = {
    8: "YCgCo",
    10: "BT.2020 with constant luminance",
    11: "SMPTE ST 2085",
    12: "derived from primaries",
    13: "derived from primaries, with constant luminance",
    14: "ICtCp",
}


class LeftOutError(SampleError):
    """Pictures of a stream are left out up to the next key frame."""


class EncryptedError(SourceError):
    """The video can be decoded only with a key."""


class Video:
    """The video of a file or stream, frame by frame."""

    def __init__(
        self,
        address: str | Splitting,
        name: str,
        options: Mapping[str, str],
        *,
        threads: int = 0,
        keys: bool = False,
        timeouts: tuple[float, float] | None = None,
        decode: str = "auto",
        source: str = "",
    ) -> None:
        """Open a path, URL or transport stream without decoding anything.

        *options*: NETWORK or FILE, and further FFmpeg options. *threads* 0: a useful number.
        *keys*: decode only key frames. *timeouts*: for opening and for reading, seconds.
        *decode*: auto, software, or the named hardware. *source*: the name under which packets are
        kept, see `packet_ring`.

        Raises:
            av.FFmpegError: it cannot be opened.
            SourceError: the container has no video that can be decoded, or an encrypted one.
        """
        import av
        from av.sidedata.sidedata import Type
        from av.video.reformatter import VideoReformatter

        # Otherwise a frame with side data of a kind that PyAV does not know, such as EXIF, would
        # have no readable side data. Only the display matrix is read here.
        kinds: Any = Type
        kinds._missing_ = classmethod(lambda known, _: known.VIDEO_HINT)
        self._error = av.FFmpegError
        self._name = name
        self._keys, self._source = keys, source
        # From version 19 on, PyAV replaces by itself what is not UTF-8.
        older = int(av.__version__.partition(".")[0]) < 19
        replacing: dict[str, Any] = {"metadata_errors": "replace"} if older else {}
        self._container: Any = av.open(
            address, options=dict(options), timeout=timeouts, **replacing
        )
        stream = self._chosen(first=timeouts is not None)
        self._stream: Any = stream
        if "enc_key_id" in stream.metadata:  # Matroska and WebM
            raise self._encrypted()
        decoder: Any = stream.codec_context
        if decoder is None:
            raise self._refusal(
                "has video of a codec that cannot be decoded here; convert it to H.264"
            )
        _set_up(decoder, threads=threads, keys=keys)
        try:
            check_size(self._name, decoder.width, decoder.height)
        except SourceError:
            self._container.close()
            raise
        self._decoder = HARDWARE.decoder(decoder, name, decode) or decoder
        self._converter: Any = VideoReformatter()
        # A bit less than what the pipeline's own clock allows.
        self._silence = 1.8 * timeouts[1] if timeouts else float("inf")
        self._live = timeouts is not None
        self._frames = self._decoded()
        self._frame: Any = None
        self.read = Completeness(self._container, stream)

    @property
    def rate(self) -> float:
        """Frames per second stated by the file; 0: not stated."""
        return float(self._stream.guessed_rate or 0)

    @property
    def stamps(self) -> tuple[float | None, float | None]:
        """When the frame is due, and when its packet was, seconds from arbitrary starts.

        None: not stated.
        """
        frame = self._frame
        return frame.time, None if frame.dts is None else float(frame.dts * frame.time_base)

    def advance(self) -> bool:
        """Decode the next frame; False at the end.

        Raises:
            SampleError: a frame cannot be decoded; continue with the next.
            SourceError: the file or stream cannot be read further.
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
        """Return the frame decoded by `advance`, (height, width, 3) uint8 BGR, upright.

        The two fields of an interlaced frame are woven: still areas keep their full resolution
        without a delay of one frame, and only moving objects have jagged edges.

        Raises:
            SampleError: the frame cannot be converted.
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
        # Copied at once: memory freed in the order of its allocation is not returned to the system
        # and cleared again for every frame.
        np.copyto(picture, rows[:, : width * 3].reshape(height, width, 3))
        return _upright(picture, frame)

    def close(self) -> None:
        """Close the file or stream and free its decoder; may be called twice."""
        self._frames.close()
        if (ring := PACKETS.ring(self._source)) is not None:
            ring.leave(self)
        if self._container is not None:
            self._container.close()
        # Whoever still refers to this object would otherwise keep megabytes of FFmpeg's memory.
        self._container = self._decoder = self._converter = self._stream = self._frame = None

    def _decoded(self) -> Generator[Any]:
        """Yield the frames, and a SampleError for each packet that cannot be decoded."""
        since = time.monotonic()
        # Of a camera, nothing can be decoded before its first key frame, and nothing is lost.
        begun = not self._live
        backlog = Backlog()
        for packet in backlog.watch(self._read(), self._stream):
            if time.monotonic() - since > self._silence:
                # Else this thread would be held for as long as something comes.
                raise SourceError(f"{self._name}: what comes makes no picture")
            if packet.stream is not self._stream:
                continue
            if packet.is_keyframe and packet.has_sidedata("encryption_info"):
                # Decoders take it for damage, and much of it for pictures.
                raise self._encrypted(bytes(packet.get_sidedata("encryption_info"))[:4])
            self.read.note(packet)
            ring = PACKETS.ring(self._source)
            if ring is not None:
                ring.add(self, self._stream, packet)
            if self._keys and packet.size and not packet.is_keyframe:
                continue
            known = backlog.leaving_out
            if self._live and packet.size and not backlog.due(key=packet.is_keyframe):
                if not known:
                    yield self._late(backlog.seconds)
                continue
            try:
                frames = self._decoder.decode(packet)
            except self._error as problem:
                yield SampleError(f"{self._name}: a frame cannot be decoded: {problem.strerror}")
            else:
                for frame in frames:
                    if not frame.is_corrupt:
                        since, begun = time.monotonic(), True
                        yield frame
                    elif begun:
                        yield self._damaged()

    def _read(self) -> Generator[Any]:
        try:
            # Of a camera all streams, to see that its sound goes on without a picture.
            yield from self._container.demux(*([] if self._live else [self._stream]))
        except IndexError:
            # From PyAV, after our last packet, if another stream has begun meanwhile.
            return

    def _late(self, seconds: float) -> LeftOutError:
        return LeftOutError(
            f"{self._name}: comes faster than it is decoded here ({seconds:.0f} s behind): "
            "pictures are left out up to the next key frame; let the camera send fewer or smaller "
            "ones, or read its key frames only (?frames=key)"
        )

    def _damaged(self) -> SampleError:
        """Return the problem of a picture with damage, or that refers to one that is missing."""
        return LeftOutError(
            f"{self._name}: a picture was lost or damaged on the way; what cannot be decoded "
            "without it is left out, up to the next key frame"
        )

    def _encrypted(self, scheme: bytes = b"") -> EncryptedError:
        """Return the refusal of a stream; *scheme*: of an MP4, such as cenc or cbcs."""
        self._container.close()
        how = f" ({scheme.decode('ascii', 'replace')})" if scheme else ""
        mend = ", e.g. with `ffmpeg -decryption_key KEY -i IN -c copy OUT`" if scheme else ""
        return EncryptedError(
            f"{self._name}: is encrypted{how} and cannot be decoded without its key; decrypt it "
            f"first{mend}"
        )

    def _chosen(self, *, first: bool) -> Any:
        """Return the video: the first of several, or else the one that FFmpeg prefers.

        It prefers the one of which most has arrived, which differs from one session with a camera
        to the next.
        """
        from av.stream import Disposition

        streams = self._container.streams
        videos = [each for each in streams.video if first and each.codec_context is not None]
        stream = min(videos, key=lambda each: each.id, default=streams.best("video"))
        # The cover of a piece of music is no video.
        if stream is None or stream.disposition & Disposition.attached_pic:
            others = {each.type for each in streams if each is not stream}
            if others == {"audio"} and not first:
                raise self._refusal(SOUND)
            only = f" (only {', '.join(sorted(others))})" if others else ""
            raise self._refusal(f"has no video{only}")
        return stream

    def _refusal(self, why: str) -> SourceError:
        self._container.close()
        return SourceError(f"{self._name}: {why}")


def _set_up(decoder: Any, *, threads: int, keys: bool) -> None:
    """Set up a decoder before it is opened."""
    from av.codec.context import Flags

    decoder.thread_count = threads
    decoder.thread_type = "AUTO"
    decoder.options = {"max_pixels": str(MAX_PIXELS)}
    # Otherwise pictures that refer to a lost one are left out without a word.
    decoder.flags |= Flags.output_corrupt
    if keys:
        decoder.flags |= Flags.low_delay  # without the frames in between, none is delayed


def _upright(picture: Array, frame: Any) -> Array:
    """Rotate a picture by multiples of 90° and mirror it according to its display matrix.

    A matrix (a, b, _, c, d, …) maps the point (x, y) to (ax + cy, bx + dy).
    """
    from av.sidedata import sidedata

    # Not `frame.side_data`: the frame and its side data would refer to each other, and each picture
    # would be freed only when Python collects such cycles.
    container: Any = sidedata.SideDataContainer
    matrix = container(frame).get("DISPLAYMATRIX")
    if matrix is None:
        return picture
    a, b, _, c, d = (int(value) for value in np.frombuffer(matrix, np.int32)[:5])
    if (a, d) == (0, 0) and b and c:
        picture = picture.transpose(1, 0, 2)
        a, d = c, b
    elif (b, c) != (0, 0):
        return picture  # not by a multiple of 90°
    cv2 = load()
    picture = np.ascontiguousarray(picture)
    if a < 0 or d < 0:
        picture = cv2.flip(picture, 1 if d > 0 else 0 if a > 0 else -1)
    return picture
