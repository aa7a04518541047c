"""What a source is, read from its text; touches neither disk nor network.

The forms are those of section 2 of the public interface.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

from ..core.errors import UsageError
from ..core.frozen import record
from ..core.types import Kind

Form = Literal["rtsp", "rtsps", "http", "https", "v4l2", "file", "dir", "csv", "npy", "f32"]

FORMS: tuple[Form, ...] = get_args(Form)
NETWORK = frozenset({"rtsp", "rtsps", "http", "https"})
SIGNALS = frozenset({"csv", "npy", "f32"})
LATER = frozenset({"wav", "mqtt", "serial"})

# What may stand after the "?" of a form. A network camera's query is the camera's own business.
OPTIONS: Mapping[Form, tuple[str, ...]] = {
    "v4l2": (),
    "file": ("loop", "pace"),
    "dir": ("loop", "rate"),
    "csv": ("loop", "rate"),
    "npy": ("loop", "rate"),
    "f32": ("channels", "loop", "rate"),
}
EXAMPLES: Mapping[Form, str] = {
    "rtsp": "rtsp://camera/stream",
    "rtsps": "rtsps://camera/stream",
    "http": "http://camera/stream.mjpg",
    "https": "https://camera/stream.mjpg",
    "v4l2": "v4l2:/dev/video0",
    "file": "file:clip.mp4",
    "dir": "dir:frames/",
    "csv": "csv:vibration.csv",
    "npy": "npy:vibration.npy",
    "f32": "f32:raw.bin?channels=128",
}


@record(kw_only=True)
class SourceSpec:
    """One source as the settings name it."""

    form: Form
    text: str = field(repr=False)
    """As written, with the password that a camera's URL may hold."""
    path: Path | None = None
    """The local file, folder or device; None for a network camera."""
    loop: bool = False
    pace: Literal["real", "max"] = "real"
    rate: float | None = None
    """Readings (rows, pictures) a second; None: as fast as they are consumed."""
    channels: int = 1
    """Of `f32:`: float32 values a row."""

    @property
    def kind(self) -> Kind:
        """Whether it gives pictures or rows of a signal."""
        return "signal" if self.form in SIGNALS else "picture"

    @property
    def live(self) -> bool:
        """Whether this is a camera: goes on without us, has no end, is reopened when lost."""
        return self.form in NETWORK or self.form == "v4l2"

    @property
    def lossless(self) -> bool:
        """Whether every reading counts, so that the source waits for its consumer."""
        return not self.live and not (self.form == "file" and self.pace == "real")

    @property
    def redacted(self) -> str:
        """The text without user and password: for logs, errors and topics."""
        return redact(self.text)

    @property
    def local(self) -> Path:
        """The path of a source that has one."""
        if self.path is None:
            raise ValueError(f"{self.redacted} has no local path")
        return self.path


def parse_source(text: str, base: Path) -> SourceSpec:
    """Read the text of a source.

    Args:
        text: as the settings or the command line give it.
        base: folder that relative paths count from.

    Raises:
        UsageError: the form, a value or an option is unknown, missing or wrong.

    """
    shown = redact(text)
    scheme, colon, rest = text.partition(":")
    form = next((known for known in FORMS if known == scheme.lower()), None)
    if scheme.lower() in LATER and colon:
        raise UsageError(
            f"source {shown!r}: {scheme.lower()}: is not supported by this version yet; "
            f"use one of {_forms()}"
        )
    if form is None:
        raise UsageError(f"source {shown!r}: {_unknown(scheme if colon else '', text)}")
    if form in NETWORK:
        _check_url(text, shown, form)
        return SourceSpec(form=form, text=text)
    name, _, query = rest.partition("?")
    options = _options(query, form, shown)
    path = _local_path(name, form, shown, base)
    if form == "v4l2" and not path.is_absolute():
        raise UsageError(
            f"source {shown!r}: {name!r} is not a device; write e.g. {EXAMPLES['v4l2']}"
        )
    return SourceSpec(
        form=form,
        text=text,
        path=base / path,
        loop=_flag(options, shown),
        pace=_pace(options, shown),
        rate=_rate(options, shown),
        channels=_channels(options, shown),
    )


# user:password@ of any URL in a text. The second alternative takes in passwords with an unescaped
# "/", which make a URL invalid but must not show in the error that says so; ":554/" is a port.
_USER = re.compile(r"(?<=://)(?:[^/?#\s]*@|[^/?#\s:@]*:(?!\d+(?:[/?#\s]|$))[^\s@]*@)")
# Many cameras take the password as a parameter: ?user=admin&pwd=…
_SECRET = re.compile(r"(?i)([?&][^=&\s]*(?:pass|pwd|psw|secret|token|auth|key)[^=&\s]*=)[^&#\s]+")


def redact(text: str) -> str:
    """Remove users, passwords and the like from the URLs in *text*."""
    return _SECRET.sub(r"\1***", _USER.sub("", text))


def guess_source(text: str) -> str:
    """Give what a person typed the form that it lacks: a bare path, device or camera number.

    Looks at the disk to tell folders and devices from files. What has a form already, or none that
    could be guessed, is returned unchanged, for `parse_source` to judge.
    """
    scheme, colon, _ = text.partition(":")
    if colon and (scheme.lower() in FORMS or scheme.lower() in LATER):
        return text
    path, query = Path(text), ""
    if not path.exists() and "?" in text:
        name, _, query = text.partition("?")
        path = Path(name)
    if colon and not path.exists():
        return text
    form = "dir" if path.is_dir() else _form_of(path)
    if form == "v4l2" and str(path).isdigit():
        path = Path(f"/dev/video{path}")
    quoted = str(path).replace("%", "%25").replace("?", "%3F")
    return f"{form}:{quoted}" + (f"?{query}" if query else "")


PICTURES = frozenset(
    {".bmp", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


def _form_of(path: Path) -> str:
    """Guess the form of a bare path by its name alone."""
    suffix = path.suffix.lower()
    if path.is_absolute() and path.is_relative_to("/dev"):
        return "v4l2"
    if str(path).isdigit() and not path.exists():
        return "v4l2"
    if suffix in PICTURES:
        return "dir"
    named: Mapping[str, str] = {
        ".csv": "csv",
        ".tsv": "csv",
        ".npy": "npy",
        ".wav": "wav",
        ".f32": "f32",
        ".raw": "f32",
        ".bin": "f32",
    }
    return named.get(suffix, "file")


def _forms() -> str:
    return ", ".join(f"{form}:" for form in FORMS)


def _unknown(scheme: str, text: str) -> str:
    if scheme and not scheme.startswith((".", "/")):
        from difflib import get_close_matches

        close = get_close_matches(scheme.lower(), FORMS, n=1, cutoff=0.7)
        hint = f"did you mean '{close[0]}:'? Known" if close else "known"
        return f"unknown form '{scheme}:'; {hint}: {_forms()}"
    if not text.strip():
        return f"is empty; write e.g. {EXAMPLES['rtsp']} or {EXAMPLES['file']}"
    form = "dir" if text.endswith("/") else _form_of(Path(text.partition("?")[0]))
    return f"has no form; did you mean '{form}:{text}'? Known: {_forms()}"


def _check_url(text: str, shown: str, form: Form) -> None:
    """See that a camera's URL names a host and, if any, a port."""
    if any(character.isspace() or not character.isprintable() for character in text):
        raise UsageError(f"source {shown!r}: holds a space or control character; write it as %20")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        # urllib's own message would quote the password.
        raise UsageError(
            f"source {shown!r}: host or port is not valid; "
            "percent-encode special characters of user and password ('/' is %2F, '@' is %40)"
        ) from None
    if not host:
        raise UsageError(f"source {shown!r}: names no host; write e.g. {EXAMPLES[form]}")


def _local_path(name: str, form: Form, shown: str, base: Path) -> Path:
    if name.startswith("//"):
        host, slash, rest = name[2:].partition("/")
        if host not in {"", "localhost"}:
            raise UsageError(
                f"source {shown!r}: {host!r} stands where a URL has its host; "
                f"write {form}:{host}{slash}{rest} or {form}:///full/path"
            )
        name = slash + rest
    path = unquote(name, errors="surrogateescape")
    if not path:
        raise UsageError(f"source {shown!r}: names no path; write e.g. {EXAMPLES[form]}")
    # OpenCV crashes the process over a name that is not UTF-8 (5.0.0), and JSON cannot carry it.
    if any("\ud800" <= character <= "\udfff" for character in str(base / path)):
        raise UsageError(f"source {shown!r}: the path is not UTF-8; rename the file or folder")
    if "\0" in path:
        raise UsageError(f"source {shown!r}: the path holds a NUL character (%00)")
    return Path(path)


def _options(query: str, form: Form, shown: str) -> dict[str, str]:
    known = OPTIONS[form]
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, equals, value = part.partition("=")
        if key not in known:
            mend = f"; {form}: takes {', '.join(known)}" if known else f"; {form}: takes none"
            raise UsageError(
                f"source {shown!r}: unknown option {key!r}{mend} (a '?' in a path is written %3F)"
            )
        if not equals or not value:
            raise UsageError(f"source {shown!r}: option {key!r} has no value; write {key}=…")
        if key in options:
            raise UsageError(f"source {shown!r}: option {key!r} is given twice")
        options[key] = unquote(value)
    return options


def _flag(options: Mapping[str, str], shown: str) -> bool:
    value = options.get("loop", "0")
    if value not in {"0", "1"}:
        raise UsageError(f"source {shown!r}: loop: expected 0 or 1, found {value!r}")
    return value == "1"


def _pace(options: Mapping[str, str], shown: str) -> Literal["real", "max"]:
    value = options.get("pace", "real")
    if value == "real":
        return "real"
    if value == "max":
        return "max"
    raise UsageError(f"source {shown!r}: pace: expected real or max, found {value!r}")


def _rate(options: Mapping[str, str], shown: str) -> float | None:
    if "rate" not in options:
        return None
    try:
        rate = float(options["rate"])
    except ValueError:
        rate = math.nan
    # From one a day: no clock waits for what a slip of the finger could ask for.
    if not 1e-5 <= rate <= 1e6:
        raise UsageError(
            f"source {shown!r}: rate: expected readings a second, from 0.00001 to 1000000, "
            f"found {options['rate']!r}"
        )
    return rate


def _channels(options: Mapping[str, str], shown: str) -> int:
    value = options.get("channels", "1")
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 65536):
        raise UsageError(
            f"source {shown!r}: channels: expected a number from 1 to 65536, found {value!r}"
        )
    return int(value)
