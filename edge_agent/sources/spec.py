"""What a source is, read from its text; touches neither disk nor network.

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
from .schemes import DEFAULT, FORMS, Form, Options


@record(kw_only=True)
class SourceSpec:
    """One source as the settings name it."""

    form: Form
    text: str = field(repr=False)
    """As written, with the password that a camera's URL may hold, without options in its query."""
    path: Path | None = None
    """The local file, folder or device; None for a URL."""
    name: str = ""
    """Of a form that has neither."""
    options: Options = field(default_factory=dict)
    """Values of all options of the form."""

    @property
    def kind(self) -> Kind:
        """Whether it gives pictures or rows of a signal."""
        return self.form.kind

    @property
    def live(self) -> bool:
        """Whether it goes on without us, has no end, and is reopened when lost."""
        return self.form.live

    @property
    def lossless(self) -> bool:
        """Whether every reading counts, so that the source waits for its consumer."""
        return self.form.lossless(self.options)

    @property
    def stall_seconds(self) -> float:
        """Silence after which it is lost; infinite: it may be silent for ever."""
        given: float | None = self.options.get("stall_s")
        return self.form.stall_seconds if given is None else given

    @property
    def redacted(self) -> str:
        """The text without secrets: for logs, errors and topics."""
        return redact(self.text)

    @property
    def local(self) -> Path:
        """The path of a source that has one."""
        if self.path is None:
            raise ValueError(f"{self.redacted} has no local path")
        return self.path


def parse_source(text: str, base: Path) -> SourceSpec:
    """Parse the text of a source.

    Args:
        text: as the settings or the command line give it.
        base: folder that relative paths count from.

    Raises:
        UsageError: the form, a value or an option is unknown, missing or wrong.
    """
    shown = redact(text)
    scheme, colon, rest = text.partition(":")
    form = FORMS.get(scheme.lower())
    if form is None:
        raise UsageError(f"source {shown!r}: {_unknown(scheme if colon else '', text, shown)}")
    if form.address == "url":
        _check_url(text, shown, form)
        text, given = _own_options(text, form)
        return SourceSpec(form=form, text=text, options=_parsed_options(given, form, shown))
    name, _, query = rest.partition("?")
    if form.address != "name" and (_has_login(rest) or (name.startswith("//") and "@" in name)):
        camera = re.sub(r"^(?:[a-z]+:)?/*", "", redact_url(rest), flags=re.IGNORECASE)
        raise UsageError(
            f"source {shown!r}: names a user; for a camera write 'rtsp://{camera}' "
            "(a '@' in a path is written %40)"
        )
    given = _given_options(query, form, shown)
    if form.address == "name":
        name = unquote(name)
        if not name:
            raise UsageError(f"source {shown!r}: names nothing; write e.g. {form.example}")
        wrong = form.wrong(name)
        if wrong is not None:
            raise UsageError(f"source {shown!r}: {wrong}")
        options = _parsed_options(given, form, shown)
        return SourceSpec(form=form, text=text, name=name, options=options)
    path = _local_path(name, form, shown, base)
    if form.address == "device" and not path.is_absolute():
        raise UsageError(f"source {shown!r}: {name!r} is not a device; write e.g. {form.example}")
    options = _parsed_options(given, form, shown)
    return SourceSpec(form=form, text=text, path=base / path, options=options)


def redact(text: str) -> str:
    """Hide what may be secret in the text of a source, also in one that is written wrong."""
    scheme, colon, rest = text.partition(":")
    form = FORMS.get(scheme.lower())
    ours = colon and form is not None and form.address != "url"
    if ours:
        # A URL behind a form that takes none, or in its place, is a mistake that may hold a login.
        address = "://" in rest or (rest.startswith("//") and not rest.startswith("///"))
        return f"{scheme}:{redact_url(rest)}" if address or _has_login(rest) else text
    return redact_url(text) if colon or _is_address(text) else text


# What a camera's address looks like without its scheme: with a login, a numeric host, a port.
_LOGIN = r"//|[^/?#]*:.*@"
_HOST = r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:.]+\]|localhost|[\w.-]+:\d{2,5})(?=[:/?]|$)"


def _has_login(text: str) -> bool:
    """Whether a user and a password seem to stand before an "@"."""
    return re.match(r"[^/?#]*:.*@", text) is not None


def _is_address(text: str) -> bool:
    """Whether a text without a form names a host rather than a file."""
    host = text.rpartition("@")[2]
    return re.match(_LOGIN, text) is not None or re.match(_HOST, host) is not None


def guess_source(text: str) -> str:
    """Return what a person typed with the form that it lacks: a bare path, device or camera number.

    Looks at the disk to tell folders and devices from files. What has a form already, or none that
    could be guessed, is returned unchanged, for `parse_source` to judge.
    """
    scheme, colon, _ = text.partition(":")
    if colon and scheme.lower() in FORMS:
        return text
    path, query = Path(text), ""
    if not path.exists() and "?" in text:
        name, _, query = text.partition("?")
        path = Path(name)
    if not path.exists() and (colon or _is_address(text)):
        return text
    scheme = "dir" if path.is_dir() else _scheme_of(path)
    if scheme == "v4l2" and str(path).isdigit():
        path = Path(f"/dev/video{path}")
    quoted = str(path).replace("%", "%25").replace("?", "%3F")
    return f"{scheme}:{quoted}" + (f"?{query}" if query else "")


def _scheme_of(path: Path) -> str:
    """Guess the scheme of a bare path by its name alone."""
    if path.is_absolute() and path.is_relative_to("/dev"):
        return "v4l2"
    if str(path).isdigit() and not path.exists():
        return "v4l2"
    suffix = path.suffix.lower()
    named = (form.scheme for form in FORMS.values() if suffix in form.suffixes)
    return next(named, DEFAULT)


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in FORMS)


def _unknown(scheme: str, text: str, shown: str) -> str:
    """Return what is wrong with a text whose form is unknown or missing; without its secrets."""
    if not text.strip():
        return f"is empty; write e.g. {FORMS['rtsp'].example} or {FORMS['file'].example}"
    if _is_address(text):
        address = shown.lstrip("/")
        address += "" if "/" in address else "/…"
        return f"has no form; for a camera write 'rtsp://{address}' or 'http://{address}'"
    if (found := re.match(r"(?i)(?:rtsps?|https?)(?=//)", text)) is not None:
        rest = shown[found.end() :]
        return f"lacks a colon; write '{found.group()}:{rest}'"
    if scheme and not scheme.startswith((".", "/")):
        close = closest(scheme.lower(), FORMS, cutoff=0.7)
        hint = f"did you mean '{close}:'? Known" if close else "known"
        return f"unknown form '{scheme}:'; {hint}: {_known()}"
    scheme = "dir" if text.endswith("/") else _scheme_of(Path(text.partition("?")[0]))
    return f"has no form; did you mean '{scheme}:{shown}'? Known: {_known()}"


_ENCODE = "percent-encode what is special in user and password: @ %40, # %23, / %2F, ? %3F"


def _check_url(text: str, shown: str, form: Form) -> None:
    """Check that a URL names a host and, if any, a valid port."""
    if any(character.isspace() or not character.isprintable() for character in text):
        raise UsageError(f"source {shown!r}: holds a space or control character; write it as %20")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        # urllib's own message would quote the password.
        raise UsageError(f"source {shown!r}: host or port is not valid; {_ENCODE}") from None
    if not host:
        raise UsageError(f"source {shown!r}: names no host; write e.g. {form.example}")
    if "@" in parts.fragment:
        raise UsageError(f"source {shown!r}: a '#' stands before the '@'; {_ENCODE}")


def _own_options(url: str, form: Form) -> tuple[str, dict[str, str]]:
    """Split a URL into what the camera gets, and the options of ours in its query."""
    address, mark, query = url.partition("?")
    parts = [part.partition("=") for part in query.split("&")] if mark else []
    ours = {key: unquote(value) for key, equals, value in parts if equals and key in form.options}
    left = "&".join("".join(part) for part in parts if part[0] not in ours or not part[1])
    return (f"{address}?{left}" if left else address) if ours else url, ours


def _local_path(name: str, form: Form, shown: str, base: Path) -> Path:
    if name.startswith("//"):
        host, slash, rest = name[2:].partition("/")
        if host not in {"", "localhost"}:
            raise UsageError(
                f"source {shown!r}: {host!r} stands where a URL has its host; "
                f"write {form.scheme}:{host}{slash}{rest} or {form.scheme}:///full/path"
            )
        name = slash + rest
    path = unquote(name, errors="surrogateescape")
    if not path:
        raise UsageError(f"source {shown!r}: names no path; write e.g. {form.example}")
    # OpenCV crashes the process over a name that is not UTF-8 (5.0.0), and JSON cannot carry it.
    if any("\ud800" <= character <= "\udfff" for character in str(base / path)):
        raise UsageError(f"source {shown!r}: the path is not UTF-8; rename the file or folder")
    if "\0" in path:
        raise UsageError(f"source {shown!r}: the path holds a NUL character (%00)")
    return Path(path)


def _given_options(query: str, form: Form, shown: str) -> dict[str, str]:
    """Split a query into the options that it gives, each known to the form."""
    known = form.options
    given: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, equals, value = part.partition("=")
        if key not in known:
            takes = ", ".join(sorted(known)) or "none"
            close = closest(key, known)
            hint = f"did you mean {close!r}? " if close else ""
            raise UsageError(
                f"source {shown!r}: unknown option {key!r}; {hint}{form.scheme}: takes {takes} "
                "(a '?' in a path is written %3F)"
            )
        if not equals or not value:
            raise UsageError(f"source {shown!r}: option {key!r} has no value; write {key}=…")
        if key in given:
            raise UsageError(f"source {shown!r}: option {key!r} is given twice")
        given[key] = unquote(value)
    return given


def _parsed_options(given: dict[str, str], form: Form, shown: str) -> Options:
    """Return the values of all options of a form."""
    values = {key: option.default for key, option in form.options.items()}
    for key, text in given.items():
        try:
            values[key] = form.options[key].parse(text)
        except ValueError as problem:
            raise UsageError(f"source {shown!r}: {key}: {problem}, found {text!r}") from None
    return values
