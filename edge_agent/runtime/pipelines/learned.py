"""Values that pipelines learn about their models and keep, and decisions over several windows.

Values are learned for each pipeline and version. Decisions apply `smooth` and a learned threshold
to a pipeline's results in the order of capture, by one lane at a time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...core.callbacks import Callbacks
from ...core.state_file import StateFile
from ...core.types import Anomaly, Classes, Findings, Outcome
from ...models import drift
from ...models.manifest import OutputSpec

T = TypeVar("T")


KEPT = 4
"""Versions of which a pipeline keeps what it has learned: after a rollback it is needed again."""


class Learned(Generic[T]):
    """One value for each pipeline and version, stored on disk. Any thread may call it."""

    def __init__(
        self, file: StateFile, key: str, read: Callable[[Any], T], write: Callable[[T], Any]
    ) -> None:
        """Set up; the file is read on first use, and stores values with the key *key*.

        *read* parses a value from its JSON, and raises ValueError, KeyError, … if it cannot.
        """
        self._file = file
        self._key = key
        self._to_value = read
        self._to_json = write
        self._known: dict[str, list[dict[str, Any]]] | None = None
        """The entries of each pipeline, latest first."""
        self.on_put = Callbacks()
        """Called after a value was learned, by the thread that learned it."""
        self._lock = threading.Lock()

    def get(self, pipeline: str, model: str, rule: str, source: str = "") -> T | None:
        """Return the value that a pipeline has learned for a version by a rule, or None.

        With *source*, not what is known to be learned from another one.
        """
        about = _digest(source)
        with self._lock:
            known = [e for e in self._read().get(pipeline, []) if e.get("source", about) == about]
        wanted = (e for e in known if (e["model"], e["rule"]) == (model, rule))
        entry = next(wanted, None)
        return None if entry is None else self._to_value(entry[self._key])

    def put(self, pipeline: str, model: str, rule: str, value: T, source: str = "") -> None:
        """Store a value over restarts."""
        with self._lock:
            known = self._read()
            entry = {"model": model, "rule": rule, self._key: self._to_json(value)}
            if source:
                entry["source"] = _digest(source)
            others = [each for each in known.get(pipeline, []) if each["model"] != model]
            known[pipeline] = [entry, *others][:KEPT]
            self._file.save(
                {name: {**first, "before": rest} for name, (first, *rest) in known.items()}
            )
        self.on_put()

    def _read(self) -> dict[str, list[dict[str, Any]]]:
        if self._known is None:
            self._known = self._file.read(self._parse) or {}
        return self._known

    def _parse(self, content: Any) -> dict[str, list[dict[str, Any]]]:
        """Return the content if `put` has written it; raise ValueError, KeyError, … otherwise."""
        found = {}
        for name, entry in content.items():
            latest = dict(entry)
            found[name] = [latest, *map(dict, latest.pop("before", []))][:KEPT]
        for each in (each for known in found.values() for each in known):
            self._to_value(each[self._key])
            if not isinstance(each["rule"], str) or not isinstance(each["model"], str):
                raise TypeError(each)
        return found


def _digest(source: str) -> str:
    """Return what stands for a source, whose text may hold a password."""
    import hashlib  # not needed for the first result

    return source and hashlib.sha256(source.encode()).hexdigest()[:16]


class LearnedValues:
    """All values that pipelines learn and keep over restarts."""

    def __init__(self, folder: Path) -> None:
        """Store the values in this folder."""
        self.thresholds: Learned[float] = Learned(
            StateFile(folder / "thresholds.json", "learned thresholds"), "threshold", _number, float
        )
        self.usual: Learned[drift.Usual] = Learned(
            StateFile(folder / "drift.json", "learned distributions"),
            "usual",
            drift.parse,
            drift.content,
        )


def _number(content: Any) -> float:
    number = float(content)
    if not isfinite(number):
        raise ValueError(content)
    return number


log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Memory:
    """State for one model version."""

    model: str
    threshold: float | None = None
    scores: list[float] = field(default_factory=list)


class Decisions:
    """The decisions of one pipeline."""

    def __init__(self, pipeline: str, learned: Learned[float] | None, source: str = "") -> None:
        """Begin; *learned* None: learned values are not kept.

        Of another *source* (another machine) a threshold is learned anew.
        """
        self._pipeline = pipeline
        self._source = source
        self._learned = learned
        self._memories: dict[str, _Memory] = {}
        """Of each version; those of a split take turns."""
        self._recent: deque[str | None] = deque()
        """What the last windows had, whichever version found it."""

    def decide(
        self, outcome: Outcome, spec: OutputSpec, *, follows: bool, override: float | None
    ) -> Outcome:
        """Return the outcome as it will be reported.

        *follows*: nothing is missing since the previous window. *override*: the threshold of the
        settings, which has priority.
        """
        if spec.smooth is None and not isinstance(spec.threshold, str):
            return outcome
        memory = self._memories.get(outcome.model)
        if memory is None:
            memory = _Memory(outcome.model)
            self._memories = {**self._memories, outcome.model: memory}
            while len(self._memories) > KEPT:
                del self._memories[next(iter(self._memories))]
            if isinstance(spec.threshold, str) and self._learned is not None:
                memory.threshold = self.learned(outcome.model, spec)
                if memory.threshold is None:
                    words = "%s: learns the threshold of %s as %s of %d windows"
                    log.info(words, self._pipeline, outcome.model, spec.threshold, spec.learn)
        if not follows:
            self._recent.clear()
        found: Findings = outcome.findings
        if isinstance(found, Anomaly) and isinstance(spec.threshold, str) and override is None:
            found = self._judged(found, spec, memory)
        if spec.smooth is not None:
            found = _smoothed(found, spec.smooth, self._recent)
        return replace(outcome, findings=found)

    def learned(self, model: str, spec: OutputSpec) -> float | None:
        """Return the learned threshold for a version, from this run or earlier; None: not yet."""
        memory = self._memories.get(model)
        if memory is not None and memory.threshold is not None:
            return memory.threshold
        if self._learned is None:
            return None
        return self._learned.get(self._pipeline, model, _rule(spec), self._source)

    def _judged(self, found: Anomaly, spec: OutputSpec, memory: _Memory) -> Anomaly:
        """Apply the learned threshold to a score, or learn from it."""
        if memory.threshold is None:
            memory.scores.append(found.score)
            if len(memory.scores) < spec.learn:
                learning = len(memory.scores) / spec.learn
                return replace(found, threshold=None, learning=learning)
            memory.threshold = quantile(memory.scores, str(spec.threshold))
            memory.scores.clear()
            words = "%s: has learned the threshold of %s: %g"
            log.info(words, self._pipeline, memory.model, memory.threshold)
            if self._learned is not None:
                self._learned.put(
                    self._pipeline, memory.model, _rule(spec), memory.threshold, self._source
                )
        return replace(found, threshold=memory.threshold)


def _rule(spec: OutputSpec) -> str:
    return f"{spec.threshold}/{spec.learn}"


def quantile(scores: list[float], rule: str) -> float:
    """Return the quantile "p99" of scores, by nearest rank."""
    share = float(rule.removeprefix("p")) / 100
    return sorted(scores)[max(0, ceil(share * len(scores)) - 1)]


def _smoothed(found: Findings, smooth: str, recent: deque[str | None]) -> Findings:
    """Report an anomaly or a class only if k of the last n windows, with this one, have it."""
    needed, length = map(int, smooth.split("/"))
    if isinstance(found, Anomaly):
        recent.append("anomalous" if found.anomalous else None)
    elif isinstance(found, Classes):
        recent.append(found.labels[0] if found.labels else None)
    else:
        return found
    while len(recent) > length:
        recent.popleft()
    if isinstance(found, Anomaly):
        return replace(found, held=found.anomalous and recent.count("anomalous") < needed)
    kept = [
        (label, score)
        for label, score in zip(found.labels, found.scores, strict=True)
        if recent.count(label) >= needed
    ]
    return Classes(tuple(label for label, _ in kept), tuple(score for _, score in kept))
