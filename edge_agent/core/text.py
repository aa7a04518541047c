"""Untrusted text, made safe to show: no control characters, no secrets.

Names in model files, topics and payloads from a broker, file names and labels may contain anything.
The URL of a source or broker may contain a password, even a malformed URL. Every log line, error
and terminal line goes through `printable`, every URL through `redact`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from urllib.parse import unquote

HIDDEN = "***"
MOST_LABEL = 256
MOST = 32 * 1024
"""Most characters of a message: others may choose what it quotes."""
"""Most characters of a label, which every result may repeat."""
_NUMBERED = re.compile(r"([0-9]{1,6})(?:\s*[:,;]\s*|\s+)(\S.*)")


def printable(text: str) -> str:
    """Escape characters that would break the line or control the terminal.

    These are control characters (C0, C1, DEL), line and paragraph separators, marks that change
    the writing direction and other invisible characters, lone surrogates, and Unicode spaces other
    than U+0020.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def half_letter(text: str) -> str | None:
    """Return the first lone surrogate in a text, which UTF-8 cannot encode, or None."""
    found = re.search("[\ud800-\udfff]", text)
    return None if found is None else found.group()


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 model", "2 models"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def span(seconds: float) -> str:
    """Write a duration in its two largest units: "2 d 3 h"."""
    whole = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (unit, size), (smaller, part) in pairwise(units):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word closest to a mistyped one, or None if none is close.

    Args:
        word: the word as written.
        known: the valid words.
        cutoff: the least similarity, 0 to 1.
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def naming(name: str, path: object) -> str:
    """Return the name of a file for errors, with its path if the name does not contain it."""
    return name if str(path) in name else f"{name}: {path}"


def labels_in(text: str, *, letters: bool = False) -> tuple[str, ...]:
    """Return the labels in a text, one a line; without their numbers where these count them all.

    "0 cat" as in Teachable Machine's files, "0: cat", "0,cat" and Coral's "0  cat"; in any order.
    Of *letters* the last may be a space, which becomes an empty label.
    """
    lines = [line.strip() for line in text.rstrip("\r\n" if letters else None).splitlines()]
    pairs = [_NUMBERED.fullmatch(line) for line in lines]
    named = {int(pair[1]): pair[2] for pair in pairs if pair is not None}
    count = len(lines)
    if count and sorted(named) == list(range(count)) and len({*named.values()}) == count:
        return tuple(named[number] for number in range(count))
    return tuple(lines)


def label_trouble(text: str) -> str | None:
    """Return why a text cannot be a label, or None if it can. Tabs are allowed."""
    if half_letter(text) is not None:
        return "holds half of a letter; write it as UTF-8"
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", text):
        return "holds a control character"
    return _length_trouble(text)


def labels_trouble(labels: Iterable[str]) -> str | None:
    """Return why one of a model's labels is too long, with its number, or None."""
    for number, label in enumerate(labels, 1):
        if (trouble := _length_trouble(label)) is not None:
            return f"number {number} {trouble}"
    return None


def count_trouble(labels: int, first: int, classes: int, of: str) -> str | None:
    """Return why a number of labels, of which one is of class *first*, cannot be *of* a network."""
    if labels + first == classes:
        return None
    note = f" (first_label {first})" if first else ""
    expected = f"expected {classes - first} labels for the {classes} classes of {of}{note}"
    return f"output.labels: {expected}, found {labels}"


def _length_trouble(label: str) -> str | None:
    return f"has more than {MOST_LABEL} characters" if len(label) > MOST_LABEL else None


def cut(text: str, most: int) -> str:
    """Return a text of at most *most* characters; "…" ends what is cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str) -> str:
    """Make a message safe for one line: hide secrets, escape, and cut what is longer than MOST."""
    text = redact_urls(text)
    return printable(cut(text, MOST))


PLAIN = {"…": "...", "·": "-", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "±": "+/-"}
"""Replacements for our own symbols on a terminal limited to ASCII or Latin letters."""


def encodable(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks; an error handler for `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or ascii(c)[1:-1] for c in lacking), error.end


# The patterns are compiled when first needed, not when a program starts.
# With one slash or none only if it cannot be a user name.
_SCHEME = r"(?i)\s*(?:[a-z][a-z0-9+.-]*://|(?:rtsps?|https?|mqtts?)(?::|//))/*"
# A numeric host: whatever follows is a path.
_NUMERIC = r"(?i)(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\])(?::\d*)?(?:[/?#]|$)"
_PORT = r"[0-9]{1,4}|[1-5][0-9]{4}|6[0-5][0-9]{3}"
# Parameters that select a camera of a recorder, and are too short to be a secret.
_HARMLESS = (
    r"(?i)(?<![^&;_/?])(?:camera|channel|ch|fps|h26x|height|inst|profile|resolution|size|stream"
    r"|subtype|width)=\d{1,4}(?:x\d{1,4})?(?![^\W_])"
)
_WORD = r"[^\W_]+"
# Where the kind of character changes within a word: aB, a1, A1, 1a.
_SWITCH = r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
_URL = r"(?i)\b(?!file:)[a-z][a-z0-9+.-]{0,40}://[^\s'\"<>]*[^\s'\"<>,.:;)]"


def redact(url: str) -> str:
    """Hide possible secrets in a URL, even a malformed one.

    It hides user and password (everything before the last "@" that could end them), the query and
    the parameters in the path, except short numbers that select a camera, and long parts of the
    path that look random, like a token. It is idempotent.
    """
    found = re.match(_SCHEME, url)
    scheme = found.group() if found else url[: len(url) - len(url.lstrip("/"))]
    where, mark, query = _split(_without_login(url[len(scheme) :]))
    host, *path = where.split("/")
    if found:
        host = _without_password(host)
    return scheme + "/".join([host, *map(_segment, path)]) + mark + _parameters(query)


def redact_urls(text: str) -> str:
    """Apply `redact` to each URL within a text, such as an error message."""
    if "://" not in text:
        return text
    return re.sub(_URL, lambda found: redact(found.group()), text)


def _split(text: str) -> tuple[str, str, str]:
    """Split a text at the first "?" or "#"."""
    found = re.search(r"[?#]", text)
    if found is None:
        return text, "", ""
    return text[: found.start()], found.group(), text[found.end() :]


def _without_login(rest: str) -> str:
    """Hide user and password in the text after the scheme and its slashes."""
    if re.match(_NUMERIC, rest):
        return rest
    authority = _split(rest)[0].partition("/")[0]
    # A password may contain characters that should have been percent-encoded, even "/", "?", "#".
    login, at, _ = (rest if ":" in authority else authority).rpartition("@")
    return HIDDEN + rest[len(login) :] if at else rest


def _without_password(host: str) -> str:
    """Hide an invalid port: it is the password of a login whose host is missing."""
    name, colon, port = host.rpartition(":")
    if not colon or not port or re.fullmatch(_PORT, port) or name.startswith("["):
        return host
    return f"{name}:{HIDDEN}"


def _parameters(text: str) -> str:
    """Hide all parameters except those known to be harmless."""
    kept = [found.group() for found in re.finditer(_HARMLESS, text)]
    hidden = [] if "&".join(kept) == text else [HIDDEN]
    return "&".join(kept + hidden)


def _segment(segment: str) -> str:
    """Hide the parameters in a path segment, and shorten a segment that looks random."""
    if "=" in segment:
        return _parameters(segment)
    if not _looks_random(unquote(segment)):
        return segment
    return segment[:3] + HIDDEN if len(segment) >= 16 else HIDDEN


def _looks_random(segment: str) -> bool:
    words = re.findall(_WORD, segment)
    if any(len(word) >= 16 or re.search(r"\d{8}", word) for word in words):
        return True
    letters = sum(map(len, words))
    switches = sum(len(re.findall(_SWITCH, word)) for word in words)
    return letters >= 8 and switches >= 3 and switches * 4 > letters
