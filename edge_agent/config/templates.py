"""Topics, payloads and URLs of actions; words in braces are replaced by values: `{label}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

WORDS = (
    *("event", "rule", "pipeline", "device", "label", "text", "zone", "line"),
    *("state", "score", "count", "value", "time"),
)
_ADDRESS = "expected http://host/path or http://host:8080/path"
"""Not `[:port]`, which redaction of the message would mistake for a password."""
_WORD = re.compile(r"\{([a-z_]+)\}")


def trouble(text: str) -> str | None:
    """Return the error for an unknown word in braces, or None.

    Braces around anything other than one lower-case word are plain text: JSON has many.
    """
    for word in _WORD.findall(text):
        if word not in WORDS:
            known = ", ".join(f"{{{known}}}" for known in WORDS)
            return f"there is no {{{word}}}; known: {known}"
    return None


def braces_trouble(topic: str) -> str | None:
    """Return the error for a topic with braces around anything other than one word, or None."""
    left = _WORD.sub("", topic)
    if "{" not in left and "}" not in left:
        return None
    return f"{topic!r}: braces hold one word of small letters each, as in {{label}}"


def fill(text: str, values: Mapping[str, object]) -> str:
    """Replace the words in braces by their values, or by "" if an event has none."""
    return _WORD.sub(lambda found: str(values.get(found[1], "")), text)


def fill_payload(text: str, values: Mapping[str, object]) -> str:
    """Replace the words in braces as `fill` does, in JSON so that it stays JSON.

    A text that was read in a picture may hold quotes, which would end a string or add keys.
    """
    try:
        is_json = isinstance(json.loads(_WORD.sub("0", text)), dict | list)
    except ValueError:
        is_json = False
    if not is_json:
        return fill(text, values)
    escaped = {key: json.dumps(str(value), ensure_ascii=False) for key, value in values.items()}
    return fill(text, {key: value[1:-1] for key, value in escaped.items()})


def topic_trouble(topic: str, root: str) -> str | None:
    """Return why an action may not publish on a topic, or None if it may."""
    if not topic or len(topic.encode()) > 1024:
        return "expected a topic of 1 to 1024 bytes"
    if "+" in topic or "#" in topic:
        return f"{topic!r}: a topic to publish on has no wildcard"
    if not topic.isprintable():
        return f"{topic!r}: holds a control character"
    if topic.startswith("$"):
        return f"{topic!r}: begins with '$', which is the broker's own"
    levels = topic.split("/")
    own = root.split("/")
    if levels[: len(own)] == own and "in" in levels[len(own) :]:
        return f"{topic!r}: is below 'in/' of {root!r}, where devices take requests"
    return None


def filled(topic: str, values: Mapping[str, str]) -> str:
    """Replace the words in braces that have the same value in every event, and no others."""
    return _WORD.sub(lambda found: values.get(found[1], found[0]), topic)


def source_trouble(topic: str, values: Mapping[str, str], given: str | None) -> str | None:
    """Return the error if an action would publish on its own pipeline's source, or None.

    Args:
        topic: the topic as written.
        values: the values of the words that are the same in every event.
        given: the topic of the pipeline's readings; None: its source is not a topic.
    """
    if given is None or filled(topic, values) != given:
        return None
    return f"{topic!r}: is the topic of the pipeline's own source; name another"


def url_trouble(url: str) -> str | None:
    """Return why nothing can be posted to a URL, or None if it can."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return _ADDRESS
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        return _ADDRESS
    if any(mark.isspace() or not mark.isprintable() for mark in url):
        return "holds a space or control character; write it as %20"
    return None
