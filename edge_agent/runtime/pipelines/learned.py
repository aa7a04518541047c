"""Values that pipelines learn about their models and keep, and decisions over several windows.

Values are learned for each pipeline and version. Decisions apply `smooth` and a learned threshold
to a pipeline's results in the order of capture, by one lane at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from ...core.callbacks import Callbacks
from ...core.errors import ModelError
from ...core.state_file import StateFile
from ...core.types import Anomaly, Classes, Findings, Outcome
from ...models import drift
from ...models.manifest import OutputSpec

if TYPE_CHECKING:
    from ...inference.model import Model

T = TypeVar("T")


KEEP_SECONDS = 60.0
"""How often at most the scores are kept that a threshold is being learned from."""
MOST_KEPT = 10_000
"""Most of them: a larger file would take long in a lane. What needs more is learned in one go."""
KEPT = 4
"""Values that a pipeline keeps of each model its frames are split between: after a rollback, or
with its masks of the day, an earlier one is needed again."""


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

    def get(
        self, pipeline: str, model: str, rule: str, about: Mapping[str, str] | None = None
    ) -> T | None:
        """Return the value that a pipeline has learned for a version by a rule, or None.

        Not what is known to be learned of something else than *about*; see `about`.
        """
        about = about or {}
        wanted = {"model": model, "rule": rule, **about}
        with self._lock:
            known = self._read().get(pipeline, [])
            for entry in known:
                if all(entry.get(key, value) == value for key, value in wanted.items()):
                    if not entry.keys() >= about.keys():
                        # An earlier release has not said it; from now on it is known.
                        entry.update(about)
                        self._save()
                    # It is in use; the next `put` stores that.
                    known.remove(entry)
                    known.insert(0, entry)
                    return self._to_value(entry[self._key])
        return None

    def put(
        self,
        pipeline: str,
        model: str,
        rule: str,
        value: T,
        about: Mapping[str, str] | None = None,
        *,
        arms: int = 1,
    ) -> None:
        """Store a value over restarts.

        What was learned of the version by another rule, or of something else, may be needed again;
        so is what was learned of the others that the pipeline's frames are split between, *arms* in
        all.
        """
        with self._lock:
            known = self._read()
            of = {"model": model, "rule": rule, **(about or {})}
            others = [
                each
                for each in known.get(pipeline, [])
                if {key: each[key] for key in each if key != self._key} != of
            ]
            known[pipeline] = [{**of, self._key: self._to_json(value)}, *others][: KEPT * arms]
            self._save()
        self.on_put()

    def _save(self) -> None:
        known = self._read().items()
        self._file.save({name: {**first, "before": rest} for name, (first, *rest) in known})

    def _read(self) -> dict[str, list[dict[str, Any]]]:
        if self._known is None:
            self._known = self._file.read(self._parse) or {}
        return self._known

    def _parse(self, content: Any) -> dict[str, list[dict[str, Any]]]:
        """Return the content if `put` has written it; raise ValueError, KeyError, … otherwise."""
        found = {}
        for name, entry in content.items():
            latest = dict(entry)
            found[name] = [latest, *map(dict, latest.pop("before", []))]
        for each in (each for known in found.values() for each in known):
            self._to_value(each[self._key])
            if not isinstance(each["rule"], str) or not isinstance(each["model"], str):
                raise TypeError(each)
        return found


def about(source: str = "", view: str = "", content: str = "", crops: str = "") -> dict[str, str]:
    """Return what a learned value depends on beside version and rule, as far as it is known.

    *view* is the part of a picture that the model sees, *content* the digest of its files: a
    version may be deleted, and pushed again with others. *crops* says which ones a second stage is
    given.
    """
    known = {
        "source": digest(source),
        "view": digest(view),
        "content": content[:16],
        "crops": digest(crops),
    }
    return {key: value for key, value in known.items() if value}


def digest(text: str) -> str:
    """Return what stands for a text, such as a source, which may hold a password."""
    import hashlib  # not needed for the first result

    return text and hashlib.sha256(text.encode()).hexdigest()[:16]


class Thresholds(Learned[float]):
    """Learned thresholds, and the scores that others are being learned from."""

    def __init__(self, folder: Path) -> None:
        """Store both in this folder."""
        file = StateFile(folder / "thresholds.json", "learned thresholds")
        super().__init__(file, "threshold", _number, float)
        file = StateFile(folder / "learning.json", "scores to learn thresholds from")
        self.so_far: Learned[list[float]] = Learned(file, "scores", _numbers, list)


class LearnedValues:
    """All values that pipelines learn and keep over restarts."""

    def __init__(self, folder: Path) -> None:
        """Store the values in this folder."""
        self._folder = folder
        self._contents: WeakKeyDictionary[Model, str] = WeakKeyDictionary()
        self.thresholds = Thresholds(folder)
        self.usual: Learned[drift.Usual] = Learned(
            StateFile(folder / "drift.json", "learned distributions"),
            "usual",
            drift.parse,
            drift.content,
        )

    def content(self, model: Model) -> str:
        """Return a digest of a model's files; empty if they cannot be read."""
        found = self._contents.get(model)
        if found is None:
            from ...inference.prepared.digests import model_digest

            try:
                found = model_digest(self._folder, model.folder.path)
            except ModelError:  # whoever loads it next says so
                found = ""
            self._contents[model] = found
        return found


def _number(content: Any) -> float:
    number = float(content)
    if not isfinite(number):
        raise ValueError(content)
    return number


def _numbers(content: Any) -> list[float]:
    return [_number(each) for each in content]


log = logging.getLogger(__name__)

_ANOMALOUS = "anomalous"


@dataclass(slots=True)
class _Memory:
    """State for one model version."""

    model: str
    about: Mapping[str, str]
    threshold: float | None = None
    scores: list[float] = field(default_factory=list)
    kept: int = 0
    """How many of them are kept over a restart."""
    kept_at: float = field(default_factory=time.monotonic)
    used: int = 0
    """The turn in which it was used last."""


class Decisions:
    """The decisions of one pipeline."""

    def __init__(
        self,
        pipeline: str,
        learned: Thresholds | None,
        source: str = "",
        view: str = "",
        crops: str = "",
        *,
        arms: int = 1,
    ) -> None:
        """Begin; *learned* None: learned values are not kept.

        Of another *source* (another machine), *view* or *crops* a threshold is learned anew. *arms*
        is the number of models that frames are split between.
        """
        self._pipeline = pipeline
        self._source = source
        self._view = view
        self._crops = crops
        self._learned = learned
        self._memories: dict[tuple[str, str], _Memory] = {}
        """Of each version and its content; those of a split take turns."""
        self._arms = arms
        self._turn = 0
        self._smoothing = _Smoothing()

    def look_at(self, view: str) -> None:
        """Judge another part of the pictures, of which a threshold is learned anew."""
        if view != self._view:
            self._view, self._memories = view, {}

    def decide(
        self,
        outcome: Outcome,
        spec: OutputSpec,
        *,
        follows: bool,
        override: float | None,
        content: str = "",
    ) -> Outcome:
        """Return the outcome as it will be reported.

        *follows*: nothing is missing since the previous window. *override*: the threshold of the
        settings, which has priority. *content*: of the model's files, see `about`.
        """
        if spec.smooth is None and not isinstance(spec.threshold, str):
            return outcome
        if not follows:
            self._smoothing.recent.clear()
        found: Findings = outcome.findings
        if isinstance(found, Anomaly) and isinstance(spec.threshold, str) and override is None:
            found = self.judge(found, spec, outcome.model, content)
        undecided: Collection[str] = ()
        if spec.smooth is not None:
            if isinstance(found, Anomaly) and found.threshold is None:
                if self._arms == 1:  # else windows of others come between
                    self._smoothing.recent.clear()
                    self._smoothing.last.clear()
            else:
                found, undecided = self._smoothing.apply(found, spec.smooth)
        return replace(outcome, findings=found, undecided=undecided)

    def judge(self, found: Anomaly, spec: OutputSpec, model: str, content: str) -> Anomaly:
        """Apply the learned threshold of a version to a score, or learn from it."""
        return self._judged(found, spec, self._memory(model, spec, content))

    def _memory(self, model: str, spec: OutputSpec, content: str) -> _Memory:
        self._turn += 1
        memory = self._memories.get((model, content))
        if memory is None:
            depends = about(self._source, self._view, content, self._crops)
            memory = _Memory(model, depends, used=self._turn)
            if self._learned is not None:
                memory.threshold = self.learned(model, spec, content)
                if memory.threshold is None:
                    so_far = self._learned.so_far.get(self._pipeline, model, _rule(spec), depends)
                    memory.scores = so_far or []
                    memory.kept = len(memory.scores)
                    words = "%s: learns the threshold of %s as %s of %d windows, %d of them so far"
                    of = self._pipeline, model, spec.threshold, spec.learn, memory.kept
                    log.info(words, *of)
            memories = {**self._memories, (model, content): memory}
            while len(memories) > KEPT * self._arms:
                del memories[min(memories, key=lambda key: memories[key].used)]
            self._memories = memories
        memory.used = self._turn
        return memory

    def learned(self, model: str, spec: OutputSpec, content: str = "") -> float | None:
        """Return the learned threshold for a version, from this run or earlier; None: not yet."""
        memory = self._memories.get((model, content))
        if memory is not None and memory.threshold is not None:
            return memory.threshold
        if self._learned is None:
            return None
        depends = about(self._source, self._view, content, self._crops)
        return self._learned.get(self._pipeline, model, _rule(spec), depends)

    def _judged(self, found: Anomaly, spec: OutputSpec, memory: _Memory) -> Anomaly:
        """Apply the learned threshold to a score, or learn from it."""
        if memory.threshold is None:
            memory.scores.append(found.score)
            if len(memory.scores) < spec.learn:
                self._keep(memory, spec)
                learning = len(memory.scores) / spec.learn
                return replace(found, threshold=None, learning=learning)
            memory.threshold = quantile(memory.scores, str(spec.threshold))
            memory.scores.clear()
            words = "%s: has learned the threshold of %s: %g"
            log.info(words, self._pipeline, memory.model, memory.threshold)
            if self._learned is not None:
                of = self._pipeline, memory.model, _rule(spec)
                self._learned.put(*of, memory.threshold, memory.about, arms=self._arms)
                if memory.kept:
                    self._learned.so_far.put(*of, [], memory.about, arms=self._arms)
        return replace(found, threshold=memory.threshold)

    def _keep(self, memory: _Memory, spec: OutputSpec) -> None:
        """Keep the scores so far now and then: a device that is switched off daily goes on."""
        if self._learned is None or spec.learn > MOST_KEPT:
            return
        new, now = len(memory.scores) - memory.kept, time.monotonic()
        if 100 * new < spec.learn or now < memory.kept_at + KEEP_SECONDS:
            return
        memory.kept, memory.kept_at = len(memory.scores), now
        of = self._pipeline, memory.model, _rule(spec)
        self._learned.so_far.put(*of, memory.scores, memory.about, arms=self._arms)


def _rule(spec: OutputSpec) -> str:
    return f"{spec.threshold}/{spec.learn}"


def quantile(scores: list[float], rule: str) -> float:
    """Return the quantile "p99" of scores, by nearest rank."""
    share = float(rule.removeprefix("p")) / 100
    return sorted(scores)[max(0, ceil(share * len(scores)) - 1)]


class _Smoothing:
    """What the last windows had, whichever version found it."""

    def __init__(self) -> None:
        self.recent: deque[str | None] = deque()
        """Since a gap."""
        self.last: deque[str | None] = deque()
        """Gaps or not."""
        self._told: set[str] = set()
        """What k of the last n had, as far as windows have decided."""

    def apply(self, found: Findings, smooth: str) -> tuple[Findings, set[str]]:
        """Report an anomaly or a class only if k of the last n windows, with this one, have it.

        Also returns what was so before and may still be, as there were not yet n windows since a
        gap. Where gaps come often, the last n decide.
        """
        needed, length = map(int, smooth.split("/"))
        if isinstance(found, Anomaly):
            had = _ANOMALOUS if found.anomalous else None
        elif isinstance(found, Classes):
            had = found.labels[0] if found.labels else None
        else:
            return found, set()
        for windows in (self.recent, self.last):
            windows.append(had)
            while len(windows) > length:
                windows.popleft()

        def may_be(each: str) -> bool:
            return all(
                windows.count(each) + length - len(windows) >= needed
                for windows in (self.recent, self.last)
            )

        # A version of another task may have served before.
        mine = isinstance(found, Anomaly)
        self._told = {each for each in self._told if (each == _ANOMALOUS) == mine}
        now = {each for each in self.recent if each and self.recent.count(each) >= needed}
        undecided = {each for each in self._told - now if may_be(each)}
        self._told = now | undecided
        if isinstance(found, Anomaly):
            return replace(found, held=found.anomalous and _ANOMALOUS not in now), undecided
        kept = [each for each in zip(found.labels, found.scores, strict=True) if each[0] in now]
        labels, scores = tuple(label for label, _ in kept), tuple(score for _, score in kept)
        return Classes(labels, scores), undecided
