"""How events and counts read in a terminal: as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ENDS = {"stopped": "as it was stopped", "reloaded": "as the settings changed"}
_ENDS["lost"] = "as the source is lost"


def event_sentence(payload: Mapping[str, Any]) -> str:
    """Return an event as a sentence: "intruder: person 7 has been in yard for 3 s"."""
    label = payload.get("label", "something")
    who = f"{label} {payload['track']}" if payload.get("track") else str(label)
    zone = payload.get("zone")
    there, into, out = (
        (f"in {zone}", f"entered {zone}", f"left {zone}")
        if zone
        else ("in the picture", "appeared", "is gone")
    )
    said = _said(payload, who, there, into, out)
    replayed = " (replayed)" if payload.get("replayed") else ""
    return f"{payload['rule']}: {said}{replayed}"


def _said(payload: Mapping[str, Any], who: str, there: str, into: str, out: str) -> str:
    score = f" ({payload['score']:.2f})" if "score" in payload else ""
    match payload["when"]:
        case "enter":
            return f"{who} {into}{score}"
        case "leave":
            return f"{who} {out}{score}"
        case "cross":
            return f"{who} crossed {payload.get('line')} {payload.get('direction')}{score}"
        case "dwell":
            what = f"{who} stays {there}"
        case "count":
            kind = f" {payload['label']}" if "label" in payload else ""
            what = f"{payload.get('count')}{kind} {there}"
        case "absent":
            what = f"nobody {there}" if payload.get("label") is None else f"no {who} {there}"
        case "class":
            what = f"it is {who}"
        case "anomaly":
            what = "anomalous"
            if payload["state"] != "end":  # whose score is that of a good one
                what += f", {payload.get('anomaly', {}).get('score', 0):.4g}"
        case "value":
            what = f"{payload.get('value', 0):.6g}"
        case "drift":
            what = f"drift of {payload.get('channel')}, {payload.get('value', 0):.3g}"
        case other:
            what = str(other)
    match payload["state"]:
        case "begin":
            return f"{what}{score}"
        case "update":
            return f"{what}{score}, still"
        case _:
            why = _ENDS.get(str(payload.get("why")), "")
            over = f"{what}: over after {payload.get('seconds', 0):.1f} s"
            return f"{over}, {why}" if why else over


def count_words(payload: Mapping[str, Any]) -> str:
    """Return counts in a few words: "yard: 2 person · gate: in 41 person, out 39 person"."""
    parts = [f"{zone}: {_labels(inside) or 'nobody'}" for zone, inside in payload["zones"].items()]
    for line, ways in payload["lines"].items():
        crossed = ", ".join(f"{way} {_labels(ways[way]) or 0}" for way in ("in", "out"))
        parts.append(f"{line}: {crossed}")
    return " · ".join(parts)


def _labels(counts: Mapping[str, int]) -> str:
    return " ".join(f"{count} {label}" for label, count in sorted(counts.items()))
