"""Texts for results, messages, events, and times on a terminal."""

from __future__ import annotations

import json
import os
import sys
import termios
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from ..config.rule_kinds import RULE_KINDS
from ..core.text import printable

MOST_KEYS = 6
"""Most keys shown of a payload of any other kind."""
INDENT = " " * 9
"""Indent of the text after a line's first word: "model    parts@1"."""
_ENDS = {
    "stopped": ", as it was stopped",
    "reloaded": ", as the settings changed",
    "lost": ", as the source is lost",
}


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line; on a terminal, wrap it at words."""
    stream = stream or sys.stdout
    for line in folded(text, stream):
        print(line, file=stream, flush=True)


@contextmanager
def silent_keys(stream: TextIO) -> Iterator[None]:
    """Keep a terminal from echoing keys into lines that are redrawn in place; the keys still work.

    A ^C after a full line would start a new one, so that the next drawing would be a line too low.
    """
    terminal = stream.fileno()
    try:
        # A background process that changes the terminal is stopped.
        before = termios.tcgetattr(terminal) if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except (OSError, termios.error):
        before = None
    if before is None:
        yield
        return
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        if os.tcgetpgrp(terminal) == os.getpgrp():
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def folded(text: str, stream: TextIO) -> list[str]:
    """Return a line wrapped for a terminal; elsewhere unchanged."""
    if not stream.isatty():
        return [text]
    width = os.get_terminal_size(stream.fileno()).columns or 80
    if len(text) <= width:
        return [text]
    # A path or a command stays whole so that it can be copied: the terminal breaks it itself.
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def printable_json(value: Any) -> str:
    """Return JSON without control characters; its meaning does not change."""
    # In other encodings, letters are escaped as in JSON.
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not utf8)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def summary(payload: Mapping[str, Any]) -> str:
    """Return a result's findings as a short text; control characters in labels are escaped."""
    return printable(_findings(payload))


def _findings(payload: Mapping[str, Any]) -> str:
    if "detections" in payload:
        found = payload["detections"]
        if not found:
            return "nothing found"
        shown = ", ".join(
            f"{_label(entry)} {entry['score']:.2f}{_read(entry)}{_nested(entry)}"
            for entry in found[:6]
        )
        return shown + (f" and {len(found) - 6} more" if len(found) > 6 else "")
    if (named := _named(payload)) is not None:
        return named
    if "anomaly" in payload:
        anomaly = payload["anomaly"]
        score, threshold = anomaly["score"], anomaly["threshold"]
        if threshold is None:
            return f"score {score:.4g} ({_learning(anomaly)})"
        return f"{_verdict(anomaly)} {score:.4g} (threshold {threshold:.4g})"
    if "values" in payload:
        return ", ".join(
            f"{name} {value:.4g}" for name, value in list(payload["values"].items())[:8]
        )
    if "text" in payload:
        return str(payload["text"])
    arrays = payload.get(
        "tensors", {name: payload[name] for name in payload if name == "embeddings"}
    )
    return ", ".join(f"{name} {_shape(value)}" for name, value in arrays.items())


def _named(payload: Mapping[str, Any]) -> str | None:
    """Return the finding about a whole picture as a short text; None: another kind of result."""
    if "classes" in payload:
        return ", ".join(
            f"{_label(entry)} {entry['score']:.2f}" for entry in payload["classes"][:3]
        )
    if "areas" in payload:
        each = list(payload["areas"].items())[:6]
        return ", ".join(f"{name} {share:.0%}" for name, share in each) or "nothing found"
    if "match" in payload:
        match, vector = payload["match"], payload.get("vector")
        unmatched = "no match" if vector is None else f"vector of {len(vector)} numbers"
        return f"{match['label']} {match['similarity']:.2f}" if match else unmatched
    return None


def brief(payload: Mapping[str, Any]) -> str:
    """Return a count for each kind of finding in a result: "person ×5, car ×1".

    The most frequent come first.
    """
    if "anomaly" in payload:
        anomaly = payload["anomaly"]
        score, threshold = anomaly["score"], anomaly["threshold"]
        if threshold is None:
            return f"score {score:.3g}, {_learning(anomaly)}"
        # With `smooth`, a score may be above the threshold before it is reported.
        sign = ">" if score > threshold else "≤"
        return f"{_verdict(anomaly)} {score:.3g} {sign} {threshold:.3g}"
    if not payload.get("detections"):
        return summary(payload)
    counts: dict[str, int] = {}
    for entry in payload["detections"]:
        label = _label(entry)
        counts[label] = counts.get(label, 0) + 1
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return printable(", ".join(f"{label} ×{count}" for label, count in ordered))


def verdict(payload: Mapping[str, Any]) -> str | None:
    """Return the best class of a result, or whether it is anomalous, or None if it has neither."""
    if payload.get("classes"):
        return _label(payload["classes"][0])
    anomaly = payload.get("anomaly")
    if anomaly is None or anomaly["threshold"] is None:
        return None
    return _verdict(anomaly)


def _verdict(anomaly: Mapping[str, Any]) -> str:
    return printable(anomaly.get("label", "ANOMALY")) if anomaly["anomalous"] else "normal"


def _learning(anomaly: Mapping[str, Any]) -> str:
    """Return the text for a missing threshold, with the progress of learning it."""
    if "learning" not in anomaly:
        return "no threshold: an agent learns it"
    return f"learns its threshold, {anomaly['learning']:.0%}"


def _label(entry: Mapping[str, Any]) -> str:
    """Return a short label: the first of several names, or the number of the class."""
    label = str(entry["label"])
    # ImageNet has labels like "tabby, tabby cat".
    name = label.partition(", ")[0] or label
    return f"class {name}" if name.isdecimal() else name


def _read(entry: Mapping[str, Any]) -> str:
    return f" {entry['text']!r}" if entry.get("text") else ""


def _nested(entry: Mapping[str, Any]) -> str:
    then = entry.get("then")
    return f" [{'; '.join(summary(found) for found in then.values())}]" if then else ""


def _shape(value: Any) -> str:
    sizes = []
    while isinstance(value, list):
        sizes.append(str(len(value)))
        value = value[0] if value else None
    return f"[{', '.join(sizes)}]"


def message_line(topic: str, root: str, payload: Mapping[str, Any]) -> str:
    """Return one line for any message that a device publishes."""
    device, kind, *rest = topic.removeprefix(f"{root}/").split("/")
    name = "/".join(rest)
    time = str(payload.get("time", ""))[11:23]
    head = f"{time:12} {device} {kind}" + (f" {name}" if name else "")
    return f"{head}: {_body(kind, payload)}"


def _body(kind: str, payload: Mapping[str, Any]) -> str:  # noqa: PLR0911 - one for each kind of message
    match kind:
        case "result":
            replayed = " (replayed)" if payload.get("replayed") else ""
            age = payload.get("timing", {}).get("age_ms", 0.0)
            file = f" {payload['file']}" if "file" in payload else ""
            found = f"#{payload.get('seq')}{file} {summary(payload)}"
            return f"{found} · {payload.get('model')} · {age:.0f} ms{replayed}"
        case "event":
            return event_sentence(payload)
        case "answer":
            who = payload.get("server") or payload.get("model")
            said = f"no answer: {payload['error']}" if "error" in payload else payload["text"]
            took = f" · {payload['ms']:.0f} ms" if "ms" in payload else ""
            return f"{payload.get('rule')}: {said} · {who}{took}"
        case "count":
            return count_words(payload)
        case "status":
            return f"{payload.get('state')} ({payload.get('reason')})"
        case "source":
            error = f": {payload['error']}" if "error" in payload else ""
            return f"{payload.get('state')}{error}"
        case "health":
            pipelines = ", ".join(
                f"{name} {figures['fps']} fps p99 {figures['latency_ms']['p99']:.0f} ms"
                for name, figures in payload.get("pipelines", {}).items()
            )
            why = f" ({'; '.join(payload.get('why', []))})" if payload.get("why") else ""
            state, memory = payload.get("state"), payload.get("rss_mb")
            return f"{state}{why} · {pipelines or 'no pipelines'} · {memory} MB"
        case "model":
            candidate = payload.get("candidate")
            trying = f" · {candidate['version']} {candidate['phase']}" if candidate else ""
            live, previous = (payload.get(key) or "none" for key in ("live", "previous"))
            return f"live {live}, previous {previous}{trying}"
        case "info":
            profile, facts = payload.get("profile") or {}, payload.get("facts") or {}
            names = [str(each.get("name")) for each in payload.get("pipelines", [])]
            return (
                f"edge-agent {payload.get('agent')} on {facts.get('cpu')} ({facts.get('arch')}), "
                f"profile {profile.get('name')}, pipelines: {', '.join(names) or 'none'}"
            )
        case "push":
            why = f": {payload['why']}" if payload.get("why") else ""
            return f"{payload.get('state')} {payload.get('percent', '')}%{why}"
        case _:
            said = [
                f"{key} {value if isinstance(value, str) else printable_json(value)}"
                for key, value in payload.items()
                if key not in {"schema", "time", "device"} and value not in (None, [], {}, "")
            ]
            return ", ".join(said[:MOST_KEYS])


def event_sentence(payload: Mapping[str, Any]) -> str:
    """Return an event as a sentence: "intruder: person 7 has been in yard for 3 s"."""
    kind = RULE_KINDS.get(payload["when"])
    what = " and ".join(payload.get("events", ())) or str(payload["when"])
    what = what if kind is None else kind.sentence.format_map(_words(payload))
    score = f" ({payload['score']:.2f})" if "score" in payload else ""
    match payload["state"]:
        case "update":
            what += f"{score}, still"
        case "end":
            why = _ENDS.get(str(payload.get("why")), "")
            what += f": over after {payload.get('seconds', 0):.1f} s{why}"
        case _:
            what += score
    replayed = " (replayed)" if payload.get("replayed") else ""
    return f"{payload['rule']}: {what}{replayed}"


def _words(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for rules' sentences: the payload, and parts of sentences."""
    label, zone = payload.get("label"), payload.get("zone")
    who = str(label or "something")
    if payload.get("track"):
        who += f" {payload['track']}"
    who += _read(payload)
    words: dict[str, Any] = dict.fromkeys(("line", "direction", "channel", "count"))
    words |= {"value": 0, **payload, "who": who, "anomaly_score": ""}
    words["anomalous"] = label or "anomalous"
    words["counted"] = f"{words['count']} {label}" if label else words["count"]
    words["nobody"] = f"no {who}" if label else "nobody"
    words["named"] = f"{payload['name']} " if payload.get("name") else ""
    words["with_unit"] = f" {payload['unit']}" if payload.get("unit") else ""
    words["there"] = f"in {zone}" if zone else "in the picture"
    words["entered"] = f"entered {zone}" if zone else "appeared"
    words["left"] = f"left {zone}" if zone else "is gone"
    if payload["state"] != "end":  # its score is a normal one
        words["anomaly_score"] = f", {payload.get('anomaly', {}).get('score', 0):.4g}"
    return words


def count_words(payload: Mapping[str, Any]) -> str:
    """Return counts as a short text: "yard: 2 person · gate: in 41 person, out 39 person"."""
    parts = [f"{zone}: {_labels(inside) or 'nobody'}" for zone, inside in payload["zones"].items()]
    for line, ways in payload["lines"].items():
        crossed = ", ".join(f"{way} {_labels(ways[way]) or 0}" for way in ("in", "out"))
        parts.append(f"{line}: {crossed}")
    return " · ".join(parts)


def _labels(counts: Mapping[str, int]) -> str:
    return " ".join(f"{count} {label}" for label, count in sorted(counts.items()))
