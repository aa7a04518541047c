"""The specification of a source, parsed from its text without using disk or network.

The forms are those of section 2 of the public interface.
"""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..core.errors import UsageError
from ..core.frozen import record
from ..core.text import closest
from ..core.text import redact as redact_url
from ..core.types import Kind
from .schemes import DEFAULT, SCHEMES, Options, Scheme

_KNOWN = ", ".join(f"{prefix}:" for prefix in SCHEMES)


@record(kw_only=True)
class SourceSpec:
    """One source in the settings."""

    scheme: Scheme
    text: str = field(repr=False)
    """The text as written, possibly with a password, but without our options in its query."""
    path: Path | None = None
    """The local file, folder or device; None for a URL."""
    name: str = ""
    """The name, for a scheme with neither URL nor path."""
    options: Options = field(default_factory=dict)
    """Values of all options of the scheme."""

    @property
    def kind(self) -> Kind:
        """Whether it delivers pictures or rows of a signal."""
        return self.scheme.kind

    @property
    def live(self) -> bool:
        """Whether it continues independently of us, has no end, and is reopened when lost."""
        return self.scheme.live

    @property
    def lossless(self) -> bool:
        """Whether every reading is needed, so that the source waits for its consumer."""
        return not self.scheme.live and self.options.get("pace", "max") == "max"

    @property
    def apart(self) -> float | None:
        """Seconds between readings of a recording, at any speed; None: as the clock says.

        A folder's `rate` says so; else they are frames.
        """
        if not self.lossless:
            return None
        rate: float = (self.options["rate"] if self.scheme.name == "dir" else None) or 30.0
        return 1.0 / rate

    @property
    def held(self) -> bool:
        """Whether a broker holds readings while the agent is away: they have times of their own."""
        return self.options.get("time") is not None

    @property
    def stall_seconds(self) -> float:
        """Silence after which it is lost, seconds; infinite: never."""
        given: float | None = self.options.get("stall_s")
        return self.scheme.stall_seconds if given is None else given

    @property
    def topic(self) -> str | None:
        """The MQTT topic that it reads; None: it is no such source."""
        return self.name if self.scheme.name == "mqtt" else None

    @property
    def redacted(self) -> str:
        """The text without secrets, for logs, errors and topics."""
        return redact(self.text)

    @property
    def local(self) -> Path:
        """The path; raises ValueError if the source has none."""
        if self.path is None:
            raise ValueError(f"{self.redacted} has no local path")
        return self.path


def parse_source(text: str, base: Path) -> SourceSpec:
    """Parse the text of a source; *base*: the folder of relative paths.

    Raises:
        UsageError: the scheme, a value or an option is unknown, missing or invalid.
    """
    shown = redact(text)
    prefix, colon, rest = text.partition(":")
    scheme = SCHEMES.get(prefix.lower())
    if scheme is None:
        raise UsageError(f"source {shown!r}: {_unknown(prefix if colon else '', text, shown)}")
    text = f"{prefix.lower()}:{rest}"  # FFmpeg knows no "RTSP:"
    if scheme.address == "url":
        _check_url(text, shown, scheme)
        text, given = _own_options(text, scheme)
        return SourceSpec(scheme=scheme, text=text, options=_parsed_options(given, scheme, shown))
    name, _, query = rest.partition("?")
    if scheme.address != "name" and (_has_login(rest) or (name.startswith("//") and "@" in name)):
        camera = re.sub(r"^(?:[a-z]+:)?/*", "", redact_url(rest), flags=re.IGNORECASE)
        raise UsageError(
            f"source {shown!r}: names a user; for a camera write 'rtsp://{camera}' "
            "(a '@' in a path is written %40)"
        )
    given = _given_options(query, scheme, shown)
    if scheme.address == "name":
        name = unquote(name)
        if not name:
            raise UsageError(f"source {shown!r}: names nothing; write e.g. {scheme.example}")
        wrong = scheme.wrong and scheme.wrong(name)
        if wrong:
            raise UsageError(f"source {shown!r}: {wrong}")
        options = _parsed_options(given, scheme, shown)
        return SourceSpec(scheme=scheme, text=text, name=name, options=options)
    path = _local_path(name, scheme, shown, base)
    if scheme.address == "device" and not path.is_absolute():
        raise UsageError(f"source {shown!r}: {name!r} is not a device; write e.g. {scheme.example}")
    options = _parsed_options(given, scheme, shown)
    return SourceSpec(scheme=scheme, text=text, path=base / path, options=options)


def redact(text: str) -> str:
    """Hide possible secrets in the text of a source, even in a malformed one."""
    prefix, colon, rest = text.partition(":")
    scheme = SCHEMES.get(prefix.lower())
    ours = colon and scheme is not None and scheme.address != "url"
    if ours:
        # A URL after a scheme without URLs, or in its place, is a mistake that may contain a login.
        address = "://" in rest or (rest.startswith("//") and not rest.startswith("///"))
        return f"{prefix}:{redact_url(rest)}" if address or _has_login(rest) else text
    return redact_url(text) if colon or _is_address(text) else text


# A camera's address without its scheme: with a login, a numeric host, or a port.
_LOGIN = r"//|[^/?#]*:.*@"
_HOST = r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:.]+\]|localhost|[\w.-]+:\d{2,5})(?=[:/?]|$)"


def _has_login(text: str) -> bool:
    """Whether there seem to be a user and a password before an "@"."""
    return re.match(r"[^/?#]*:.*@", text) is not None


def _is_address(text: str) -> bool:
    """Whether a text without a scheme is a host rather than a file."""
    host = text.rpartition("@")[2]
    return re.match(_LOGIN, text) is not None or re.match(_HOST, host) is not None


def guess_source(text: str) -> str:
    """Complete a source typed without a scheme: a path, device or camera number.

    It uses the disk to distinguish folders and devices from files. A text that has a scheme, or
    whose scheme cannot be guessed, is returned unchanged for `parse_source`.
    """
    prefix, colon, _ = text.partition(":")
    if colon and prefix.lower() in SCHEMES:
        return text
    path, query = Path(text), ""
    if not path.exists() and "?" in text:
        name, _, query = text.partition("?")
        path = Path(name)
    if not path.exists() and (colon or _is_address(text)):
        return text
    prefix = "dir" if path.is_dir() else _scheme_of(path)
    if prefix == "v4l2" and str(path).isdigit():
        path = Path(f"/dev/video{path}")
    quoted = str(path).replace("%", "%25").replace("?", "%3F")
    return f"{prefix}:{quoted}" + (f"?{query}" if query else "")


def _scheme_of(path: Path) -> str:
    """Guess the scheme of a bare path from its name alone."""
    if path.is_absolute() and path.is_relative_to("/dev"):
        return "v4l2"
    if str(path).isdigit() and not path.exists():
        return "v4l2"
    suffix = path.suffix.lower()
    named = (scheme.name for scheme in SCHEMES.values() if suffix in scheme.suffixes)
    return next(named, DEFAULT)


def _unknown(prefix: str, text: str, shown: str) -> str:
    """Return the problem with a text whose scheme is unknown or missing, without its secrets."""
    if not text.strip():
        return f"is empty; write e.g. {SCHEMES['rtsp'].example} or {SCHEMES['file'].example}"
    if _is_address(text):
        address = shown.lstrip("/")
        address += "" if "/" in address else "/…"
        return f"has no form; for a camera write 'rtsp://{address}' or 'http://{address}'"
    if (found := re.match(r"(?i)(?:rtsps?|https?)(?=//)", text)) is not None:
        rest = shown[found.end() :]
        return f"lacks a colon; write '{found.group()}:{rest}'"
    if prefix and not prefix.startswith((".", "/")):
        close = closest(prefix.lower(), SCHEMES, cutoff=0.7)
        hint = f"did you mean '{close}:'? Known" if close else "known"
        return f"unknown form '{prefix}:'; {hint}: {_KNOWN}"
    prefix = "dir" if text.endswith("/") else _scheme_of(Path(text.partition("?")[0]))
    return f"has no form; did you mean '{prefix}:{shown}'? Known: {_KNOWN}"


_ENCODE = "percent-encode what is special in user and password: @ %40, # %23, / %2F, ? %3F"


def _check_url(text: str, shown: str, scheme: Scheme) -> None:
    """Check that a URL has a host and, if any, a valid port."""
    if any(character.isspace() or not character.isprintable() for character in text):
        raise UsageError(f"source {shown!r}: holds a space or control character; write it as %20")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        # urllib's own message would quote the password.
        raise UsageError(f"source {shown!r}: host or port is not valid; {_ENCODE}") from None
    if not host:
        raise UsageError(f"source {shown!r}: names no host; write e.g. {scheme.example}")
    if "@" in parts.fragment:
        raise UsageError(f"source {shown!r}: a '#' stands before the '@'; {_ENCODE}")


def _own_options(url: str, scheme: Scheme) -> tuple[str, dict[str, str]]:
    """Split a URL into the camera's part and our own options from its query."""
    address, mark, query = url.partition("?")
    parts = [part.partition("=") for part in query.split("&")] if mark else []
    ours = {key: unquote(value) for key, equals, value in parts if equals and key in scheme.options}
    left = "&".join("".join(part) for part in parts if part[0] not in ours or not part[1])
    return (f"{address}?{left}" if left else address) if ours else url, ours


def _local_path(name: str, scheme: Scheme, shown: str, base: Path) -> Path:
    if name.startswith("//"):
        host, slash, rest = name[2:].partition("/")
        if host not in {"", "localhost"}:
            raise UsageError(
                f"source {shown!r}: {host!r} stands where a URL has its host; "
                f"write {scheme.name}:{host}{slash}{rest} or {scheme.name}:///full/path"
            )
        name = slash + rest
    path = unquote(name, errors="surrogateescape")
    if not path:
        raise UsageError(f"source {shown!r}: names no path; write e.g. {scheme.example}")
    # OpenCV crashes the process on a name that is not UTF-8 (5.0.0), and JSON cannot represent it.
    if any("\ud800" <= character <= "\udfff" for character in str(base / path)):
        raise UsageError(f"source {shown!r}: the path is not UTF-8; rename the file or folder")
    if "\0" in path:
        raise UsageError(f"source {shown!r}: the path holds a NUL character (%00)")
    return Path(path)


def _given_options(query: str, scheme: Scheme, shown: str) -> dict[str, str]:
    """Split a query into options, all of which the scheme must know."""
    known = scheme.options
    given: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, equals, value = part.partition("=")
        if key not in known:
            takes = ", ".join(sorted(known)) or "none"
            close = closest(key, known)
            hint = f"did you mean {close!r}? " if close else ""
            raise UsageError(
                f"source {shown!r}: unknown option {key!r}; {hint}{scheme.name}: takes {takes} "
                "(a '?' in a path is written %3F)"
            )
        if not equals or not value:
            raise UsageError(f"source {shown!r}: option {key!r} has no value; write {key}=…")
        if key in given:
            raise UsageError(f"source {shown!r}: option {key!r} is given twice")
        given[key] = unquote(value)
    return given


def _parsed_options(given: dict[str, str], scheme: Scheme, shown: str) -> Options:
    """Return the values of all options of a scheme."""
    values = {key: option.default for key, option in scheme.options.items()}
    for key, text in given.items():
        try:
            values[key] = scheme.options[key].parse(text)
        except ValueError as problem:
            raise UsageError(f"source {shown!r}: {key}: {problem}, found {text!r}") from None
    return values
