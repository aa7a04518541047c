"""How events and counts read in a terminal: as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.rule_kinds import RULE_KINDS

_ENDS = {
    "stopped": ", as it was stopped",
    "reloaded": ", as the settings changed",
    "lost": ", as the source is lost",
}


def event_sentence(payload: Mapping[str, Any]) -> str:
    """Return an event as a sentence: "intruder: person 7 has been in yard for 3 s"."""
    kind = RULE_KINDS.get(payload["when"])
    what = str(payload["when"]) if kind is None else kind.sentence.format_map(_words(payload))
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
    """Return what the sentences of rules are made of: the payload, and parts of a sentence."""
    label, zone = payload.get("label"), payload.get("zone")
    who = str(label or "something")
    if payload.get("track"):
        who += f" {payload['track']}"
    words: dict[str, Any] = dict.fromkeys(("line", "direction", "channel", "count"))
    words |= {"value": 0, **payload, "who": who, "anomaly_score": ""}
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
