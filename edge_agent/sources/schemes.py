"""The source schemes, one `Scheme` each: the properties of a source before it is opened.

A new source is one new module and one entry in SCHEMES. This uses neither disk nor network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal

from ..core.frozen import record
from ..core.types import Kind

Options = Mapping[str, Any]
"""Values of all options of a scheme by name."""
PICTURES = frozenset(
    {
        *(".bmp", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif"),
        *(".tiff", ".webp"),
    }
)
"""Suffixes of picture files, in lower case."""
UNREAD = frozenset(
    {".exr", ".hdr", ".heic", ".heif", ".hif", ".j2k", ".jp2", ".jpf", ".jpx", ".jxl", ".svg"}
)
"""Those of other pictures, which no video decoder reads right either."""
SILENCE_SECONDS = 10.0
"""A camera that is silent for this long is lost."""


@record
class Option:
    """An option after the "?" in a source."""

    parse: Callable[[str], Any]
    """Returns the value of a text; raises ValueError with what was expected."""
    default: Any


def _flag(text: str) -> bool:
    if text not in {"0", "1"}:
        raise ValueError("expected 0 or 1")
    return text == "1"


def _one_of(*words: str) -> Callable[[str], str]:
    """Return a parser for one of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return text

    return read


def _whole(least: int, most: int, expected: str) -> Callable[[str], int]:
    """Return a parser for a whole number within limits; *expected* describes it."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError(f"expected {expected} from {least} to {most}")
        return int(text)

    return read


def _decimal(least: float, most: float, expected: str) -> Callable[[str], float]:
    """Return a parser for a number within limits; *expected* describes it."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise ValueError(f"expected {expected}")
        return number

    return read


def _size(text: str) -> tuple[int, int]:
    width, cross, height = text.lower().partition("x")
    if not (cross and all(side.isascii() and side.isdigit() for side in (width, height))):
        raise ValueError("expected width x height, as 1280x720")
    return int(width[:6]), int(height[:6])


def _four_letters(text: str) -> str:
    name = {"MJPEG": "MJPG", "JPG": "MJPG"}.get(text.upper(), text.upper())
    if not (name.isascii() and name.isalnum() and 3 <= len(name) <= 4):
        raise ValueError("expected a format's four letters, as mjpg or yuyv")
    return name


def _separator(text: str) -> str:
    text = {"tab": "\t", "space": " "}.get(text, text)
    if text not in {",", ";", "|", "\t", " "}:
        raise ValueError("expected one of , ; | tab space")
    return text


def _fields(text: str) -> tuple[str, ...]:
    fields = tuple(text.split(","))
    if not all(fields) or len(set(fields)) != len(fields):
        raise ValueError("expected names parted by commas, each once")
    return fields


def _pcm(text: str) -> str | None:
    """Return the problem with a PCM's name, or None."""
    if text.isascii() and text.isprintable() and len(text) <= 200:
        return None
    return "is no PCM's name; `arecord -L` lists them"


def _topic(text: str) -> str | None:
    """Return the problem with a topic to read, or None."""
    if text.startswith("//"):
        return "names a broker; readings come over the agent's own connection, write mqtt:TOPIC"
    if any(mark in text for mark in "+#"):
        return "names several topics by a wildcard; give each sensor its own source"
    if len(text.encode()) > 65535 or not text.isprintable():
        return "is no topic"
    if text.startswith("$share/"):
        return "is a shared subscription, which would get only some of the readings"
    return None


LOOP = Option(_flag, default=False)
"""Whether it starts again at its end."""
PACE = Option(_one_of("real", "max"), "real")
"""real: as recorded; max: as fast as frames are consumed."""
FRAMES = Option(_one_of("all", "key"), "all")
"""key: only frames that need no others are decoded."""
TRANSPORT = Option(_one_of("tcp", "udp"), None)
DECODER = Option(_one_of("auto", "software", "vaapi", "cuda", "qsv", "drm", "amf"), None)
"""The decoder; None: the pipeline's `decode` decides."""
# From one a day: a typing error could otherwise request an endless wait.
RATE = Option(_decimal(1e-5, 1e6, "readings a second, from 0.00001 to 1000000"), None)
"""Readings (rows, pictures) per second; None: as fast as they are consumed."""
SEPARATOR = Option(_separator, None)
"""Character between the values of a text line; None: detected from the first lines."""
_channels = _whole(1, 65536, "a number")
CHANNELS = Option(_channels, 1)
"""float32 values per row."""
_seconds = _decimal(1e-3, 1e6, "seconds, from 0.001 to 1000000")
STALL = Option(_seconds, None)
"""Silence after which a camera is lost; None: `SILENCE_SECONDS`."""
SENSOR = {"gap_s": Option(_seconds, None), "stall_s": Option(_seconds, None)}
"""For live signals: a longer silence is a gap (None: longer than usual) or a loss (None: never)."""


@record(kw_only=True)
class Scheme:
    """All sources of one scheme."""

    name: str
    module: str
    """Module that defines `open_source(spec, context)`; imported when the first such source is
    opened: a device that reads a sensor needs no video library."""
    kind: Kind
    """Whether it delivers pictures or rows of a signal."""
    address: Literal["url", "device", "file", "path", "name"]
    """The rest of the text. url: the text is a URL; device: full path of a device; file: path of a
    regular file; path: of a file or folder; name: something else, not interpreted here."""
    example: str
    options: Mapping[str, Option] = field(default_factory=dict)
    """The options. They are removed from a URL's query; the rest of that is the camera's."""
    suffixes: frozenset[str] = frozenset()
    """Suffixes, in lower case, of bare file paths that mean this scheme."""
    live: bool = False
    """Whether it continues independently of us, has no end, and is reopened when lost."""
    wrong: Callable[[str], str | None] | None = None
    """Returns the problem with a name, or None."""
    stall_seconds: float = math.inf
    """Silence after which a live source is lost, seconds; infinite: never."""


def _camera(
    name: str, example: str, address: Literal["url", "device"] = "url", **options: Option
) -> Scheme:
    return Scheme(
        name=name,
        module="edge_agent.sources.camera",
        kind="picture",
        address=address,
        example=example,
        options={"stall_s": STALL, **options},
        live=True,
        stall_seconds=SILENCE_SECONDS,
    )


def _recording(name: str, example: str, suffixes: set[str], **options: Option) -> Scheme:
    return Scheme(
        name=name,
        module="edge_agent.sources.recording",
        kind="signal",
        address="file",
        example=example,
        options={**options, "loop": LOOP, "rate": RATE},
        suffixes=frozenset(suffixes),
    )


def _sensor(
    name: str,
    module: str,
    example: str,
    address: Literal["device", "name"],
    wrong: Callable[[str], str | None] | None = None,
    **options: Option,
) -> Scheme:
    return Scheme(
        name=name,
        module=f"edge_agent.sources.{module}",
        kind="signal",
        address=address,
        example=example,
        options={**options, **SENSOR},
        live=True,
        wrong=wrong,
    )


_ALL = (
    *(
        _camera(
            *(name, f"{name}://camera/stream"), frames=FRAMES, transport=TRANSPORT, decoder=DECODER
        )
        for name in ("rtsp", "rtsps")
    ),
    _camera("http", "http://camera/stream.mjpg"),
    _camera("https", "https://camera/stream.mjpg"),
    _camera(
        *("v4l2", "v4l2:/dev/video0", "device"),
        size=Option(_size, None),
        fps=Option(_decimal(0.01, 1000, "frames a second, from 0.01 to 1000"), None),
        format=Option(_four_letters, None),
    ),
    Scheme(
        name="file",
        module="edge_agent.sources.clip",
        kind="picture",
        address="file",
        example="file:clip.mp4",
        options={"loop": LOOP, "pace": PACE, "frames": FRAMES, "decoder": DECODER},
    ),
    Scheme(
        name="dir",
        module="edge_agent.sources.pictures",
        kind="picture",
        address="path",
        example="dir:frames/",
        options={"loop": LOOP, "rate": RATE},
        suffixes=PICTURES | UNREAD,
    ),
    _recording("csv", "csv:vibration.csv", {".csv", ".tsv"}, separator=SEPARATOR),
    _recording("npy", "npy:vibration.npy", {".npy"}),
    _recording("wav", "wav:machine.wav", {".wav"}),
    _recording("f32", "f32:raw.bin?channels=128", {".f32", ".raw", ".bin"}, channels=CHANNELS),
    _sensor(
        "mqtt",
        "mqtt_topic",
        "mqtt:zigbee2mqtt/press-7",
        "name",
        wrong=_topic,
        field=Option(_fields, ()),
        time=Option(str, None),
        format=Option(_one_of("json", "f32"), "json"),
        channels=CHANNELS,
    ),
    _sensor(
        "serial",
        "serial_line",
        "serial:/dev/ttyUSB0",
        "device",
        baud=Option(_whole(50, 4_000_000, "bits a second,"), 115200),
        separator=Option(_separator, ","),
    ),
    _sensor(
        "alsa",
        "alsa_pcm",
        "alsa:plughw:1,0",
        "name",
        wrong=_pcm,
        rate=Option(_whole(1000, 768_000, "samples a second,"), 16000),
        channels=Option(_channels, None),
    ),
)

SCHEMES: Mapping[str, Scheme] = {scheme.name: scheme for scheme in _ALL}
"""The schemes by name, in the order used in messages."""
DEFAULT = "file"
"""Scheme of a bare path with an unknown suffix."""
