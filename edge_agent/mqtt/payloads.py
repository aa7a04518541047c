"""Payloads of section 3 of the public interface, as pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ..core.types import Outcome, Sample, Second

SCHEMA = 1
UNSET = "unset"
"""The value of `clock` next to a time that is wrong because the clock had not been set."""


def iso(time_ns: int) -> str:
    """Format a time as ISO 8601 in UTC, with milliseconds and Z."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest // 1_000_000:03d}Z"


def seconds_of(text: str) -> float:
    """Convert an ISO 8601 time to seconds since 1970; without a zone it is in UTC.

    Raises:
        TypeError, ValueError, OverflowError: *text* is not a time.
    """
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def moment(says: Mapping[str, Any]) -> float | None:
    """Return the time of a payload in seconds since 1970, or None if it has none."""
    text = says.get("time")
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Format the whole seconds; cached, since many results fall into the same second."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode(payload: Mapping[str, Any]) -> bytes:
    """Encode a payload as JSON in UTF-8.

    Raises:
        ValueError: a number is not finite, which JSON cannot represent.
    """
    return _ENCODER.encode(payload).encode()


def number(value: float, digits: int) -> float:
    """Round to *digits* decimals; NumPy scalars become floats."""
    return round(float(value), digits)


def result(
    device: str, session: str, pipeline: str, sample: Sample, outcome: Outcome, age_ms: float
) -> dict[str, Any]:
    """Return the payload of a result."""
    payload: dict[str, Any] = {
        "schema": SCHEMA,
        "device": device,
        "session": session,
        "pipeline": pipeline,
        "seq": sample.seq,
        "time": iso(sample.time_ns),
        "model": outcome.model,
        "engine": outcome.engine,
    }
    if not outcome.engine:
        del payload["engine"]  # readings as they are
    if sample.picture:
        height, width = sample.data.shape[:2]
        payload["source"] = {"width": int(width), "height": int(height)}
    if sample.capture is not None:
        payload["capture"] = dict(zip(("source", "seq"), sample.capture, strict=True))
    if sample.began_ns is not None:
        payload["began"] = iso(sample.began_ns)
    if sample.file is not None:
        payload["file"] = sample.file
    payload.update(outcome.findings.as_json())
    if outcome.then and "detections" in payload:
        _nest(payload["detections"], outcome.then)
    payload["timing"] = {
        "age_ms": number(age_ms, 2),
        "preprocess_ms": number(outcome.timing.preprocess_ms, 3),
        "infer_ms": number(outcome.timing.infer_ms, 3),
        "postprocess_ms": number(outcome.timing.postprocess_ms, 3),
    }
    if outcome.timing.together > 1:
        payload["timing"]["together"] = outcome.timing.together
    if outcome.then:
        # Not within `timing`, which contains only numbers.
        payload["stages"] = dict(_stages(outcome.then))
    return payload


def _nest(entries: list[dict[str, Any]], then: Mapping[str, Second]) -> None:
    """Add the findings of second stages to the JSON of the detections they belong to."""
    for stage, second in then.items():
        inner: list[dict[str, Any]] = []
        for entry, found in zip(entries, second.found, strict=True):
            if found is not None:
                made = entry.setdefault("then", {})[stage] = found.as_json()
                inner += made.get("detections", ())
        _nest(inner, second.then)


def _stages(then: Mapping[str, Second], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the timing of each stage, by its name prefixed with those of its parents."""
    for stage, second in then.items():
        told: dict[str, Any] = {"crops": second.crops, "together": second.together}
        told["ms"] = number(second.took_ms, 3)
        if second.error is not None:
            told["error"] = second.error
        yield above + stage, told
        yield from _stages(second.then, f"{above}{stage}/")


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p95 and p99 by nearest rank; zeros if there are no values."""
    ordered = sorted(values)

    def rank(share: float) -> float:
        if not ordered:
            return 0.0
        return number(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)

    return {"p50": rank(0.50), "p95": rank(0.95), "p99": rank(0.99)}
