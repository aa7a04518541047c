"""Texts of results, messages, events and times for a terminal."""

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
"""Of a payload of any other kind that a line shows."""
INDENT = " " * 9
"""Of what follows a line's first word: "model    parts@1"."""
_ENDS = {
    "stopped": ", as it was stopped",
    "reloaded": ", as the settings changed",
    "lost": ", as the source is lost",
}


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line; in a terminal that is narrower, at its words as several."""
    stream = stream or sys.stdout
    for line in folded(text, stream):
        print(line, file=stream, flush=True)


@contextmanager
def silent_keys(stream: TextIO) -> Iterator[None]:
    """Keep a terminal from echoing keys into lines that are redrawn in place; they work as ever.

    A ^C behind a full line would begin another one, so that the next drawing was a line too low.
    """
    terminal = stream.fileno()
    try:
        # In the background, changing the terminal would stop us.
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
    """Return a line as those that a terminal shows of it; elsewhere as the one that it is."""
    if not stream.isatty():
        return [text]
    width = os.get_terminal_size(stream.fileno()).columns or 80
    if len(text) <= width:
        return [text]
    # A path or a command to be copied stays whole: the terminal knows how to break it.
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def printable_json(value: Any) -> str:
    """Write JSON likewise; it says the same as ever."""
    # In another encoding its letters are escaped as JSON has it.
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not utf8)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def summary(payload: Mapping[str, Any]) -> str:
    """Return a result's findings in a few words; labels and names in them are made harmless."""
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
    arrays = payload.get(
        "tensors", {name: payload[name] for name in payload if name == "embeddings"}
    )
    return ", ".join(f"{name} {_shape(value)}" for name, value in arrays.items())


def _named(payload: Mapping[str, Any]) -> str | None:
    """Return the finding about a whole picture in a few words; None: a result of another kind."""
    if "classes" in payload:
        return ", ".join(
            f"{_label(entry)} {entry['score']:.2f}" for entry in payload["classes"][:3]
        )
    if "areas" in payload:
        each = list(payload["areas"].items())[:6]
        return ", ".join(f"{name} {share:.0%}" for name, share in each) or "nothing found"
    if "match" in payload:
        match = payload["match"]
        return f"{match['label']} {match['similarity']:.2f}" if match else "no match"
    return None


def brief(payload: Mapping[str, Any]) -> str:
    """Return a result's findings in as few words as there are kinds of them: "person ×5, car ×1".

    The most frequent come first.
    """
    if "anomaly" in payload:
        anomaly = payload["anomaly"]
        score, threshold = anomaly["score"], anomaly["threshold"]
        if threshold is None:
            return f"score {score:.3g}, {_learning(anomaly)}"
        # With `smooth`, one that is not reported yet is above the threshold, too.
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
        return str(payload["classes"][0]["label"])
    anomaly = payload.get("anomaly")
    if anomaly is None or anomaly["threshold"] is None:
        return None
    return _verdict(anomaly)


def _verdict(anomaly: Mapping[str, Any]) -> str:
    return printable(anomaly.get("label", "ANOMALY")) if anomaly["anomalous"] else "normal"


def _learning(anomaly: Mapping[str, Any]) -> str:
    """Return the words for a missing threshold, with the progress of a pipeline that learns it."""
    if "learning" not in anomaly:
        return "no threshold: an agent learns it"
    return f"learns its threshold, {anomaly['learning']:.0%}"


def _label(entry: Mapping[str, Any]) -> str:
    """Write a label shortly: of several names the first, of none the number of the class."""
    label = str(entry["label"])
    # As ImageNet has them: "tabby, tabby cat".
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
    """Write any message that a device publishes as one line."""
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
    """Return the words for the sentences of rules: the payload, and parts of a sentence."""
    label, zone = payload.get("label"), payload.get("zone")
    who = str(label or "something")
    if payload.get("track"):
        who += f" {payload['track']}"
    words: dict[str, Any] = dict.fromkeys(("line", "direction", "channel", "count"))
    words |= {"value": 0, **payload, "who": who, "anomaly_score": ""}
    words["anomalous"] = label or "anomalous"
    words["counted"] = f"{words['count']} {label}" if label else words["count"]
    words["nobody"] = f"no {who}" if label else "nobody"
    words["there"] = f"in {zone}" if zone else "in the picture"
    words["entered"] = f"entered {zone}" if zone else "appeared"
    words["left"] = f"left {zone}" if zone else "is gone"
    if payload["state"] != "end":  # whose score is that of a good one
        words["anomaly_score"] = f", {payload.get('anomaly', {}).get('score', 0):.4g}"
    return words


def count_words(payload: Mapping[str, Any]) -> str:
    """Return counts in a few words: "yard: 2 person · gate: in 41 person, out 39 person"."""
    parts = [f"{zone}: {_labels(inside) or 'nobody'}" for zone, inside in payload["zones"].items()]
    for line, ways in payload["lines"].items():
        crossed = ", ".join(f"{way} {_labels(ways[way]) or 0}" for way in ("in", "out"))
        parts.append(f"{line}: {crossed}")
    return " · ".join(parts)


def _labels(counts: Mapping[str, int]) -> str:
    return " ".join(f"{count} {label}" for label, count in sorted(counts.items()))
