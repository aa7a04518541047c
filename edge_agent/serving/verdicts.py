"""A ledger of verdicts on each model and engine of this device, kept over restarts.

The key of an entry is everything that affects numbers and times, and how they are judged: the
model's files, the engine with its device, options and version, and the processor. An entry says
whether the engine computes the model correctly, and how it did in a race with the serving one.

Crashes and hangs are also counted here, from the flight recorder's record of calls: nothing else is
known about a crashed process. Otherwise a model whose engine crashes at every start would make the
service manager restart the agent forever. After LIMIT times in a row the engine is passed over for
that model; a good run clears counts below the limit. Those that a client's question has caused are
counted apart, for ever, and on all engines together, as the agent exchanges those by itself: after
LIMIT of them the model is not asked any more, and pipelines keep it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .. import __version__
from ..core.errors import ModelError
from ..core.flight_recorder import EngineCall, PreviousCrash, short_name
from ..core.frozen import record
from ..core.state_file import StateFile
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import installed
from ..inference.prepared.artifact import processor
from ..inference.prepared.digests import model_digest

log = logging.getLogger(__name__)

FILE = "engines.json"
MOST = 200
"""Most entries of each kind; the oldest are removed first."""
LIMIT = 3
"""Crashes in a row after which a model is no longer loaded on that engine."""
GOOD_SECONDS = 300.0
"""Seconds after which a run counts as good."""
NOT_FASTER = "not faster"
"""Beginning of the reason if the challenger agreed but was not faster."""
_ASKED = "asked "
"""Begins the keys of crashes in questions."""
_VERBS = {"load": "loading", "infer": "running", "ask": "answering a client with"}

Load = Literal["whole", "prepared"]
"""Whether a model is loaded by its engine or from its prepared form."""


@record(kw_only=True)
class Decision:
    """The outcome of a race between the serving engine and a challenger."""

    engine: str
    """The challenger's label, or its name if it was not built."""
    takes_over: bool
    why: str
    incumbent_ms: float | None = None
    """Median run of the serving engine; None: it was not measured."""
    challenger_ms: float | None = None

    def reversed(self, engine: str) -> Decision | None:
        """Return the decision with challenger and incumbent swapped.

        Returns:
            None if they were not measured against each other.
        """
        if self.incumbent_ms is None or self.challenger_ms is None:
            return None
        how = f"{NOT_FASTER}: " if self.takes_over else ""
        if not self.takes_over and self.incumbent_ms >= self.challenger_ms:
            how = "about as fast: "  # what was not faster by a margin had not taken over
        return Decision(
            engine=engine,
            takes_over=not self.takes_over,
            why=f"{how}{self.incumbent_ms:.2f} ms beside {self.challenger_ms:.2f} ms of "
            f"{self.engine}",
            incumbent_ms=self.challenger_ms,
            challenger_ms=self.incumbent_ms,
        )


class _Crashes(NamedTuple):
    times: int
    why: str


class _Known(NamedTuple):
    """The content of the file."""

    wrong: dict[str, str]
    """Why the engine computes the model wrongly, by key; empty: it does not."""
    races: dict[str, Decision]
    crashes: dict[str, _Crashes]


class Verdicts:
    """The verdicts on engines. Only the agent writes them."""

    def __init__(self, state: Path) -> None:
        """Read the ledger."""
        self._state = state
        self._file = StateFile(state / FILE, "what is known of models on engines")
        self._known = self._file.read(_parse) or _Known({}, {}, {})
        self._recent: set[str] = set()
        """Keys of the crashes in questions that this run has counted, until it is a good one."""

    # Whether an engine is correct

    def mark_wrong(self, folder: Path, choice: EngineChoice, why: str) -> None:
        """Record that an engine computes a model wrongly."""
        self._put(self._known.wrong, folder, choice, why)

    def mark_correct(self, folder: Path, choice: EngineChoice) -> None:
        """Record that an engine computes a model correctly."""
        self._put(self._known.wrong, folder, choice, "")

    def why_wrong(self, folder: Path, choice: EngineChoice) -> str | None:
        """Return why an engine must not serve a model, or None if there is no reason."""
        why = self._get(self._known.wrong, folder, choice)
        return f"computes it wrongly here: {why}" if why else None

    def is_correct(self, folder: Path, choice: EngineChoice) -> bool:
        """Whether an engine is known to compute a model correctly."""
        return bool(self._get(self._known.wrong, folder, choice) == "")

    # Whether it is faster

    def race(self, folder: Path, choice: EngineChoice, load: Load = "whole") -> Decision | None:
        """Return how an engine did as a challenger; None: it was not tried."""
        known: Decision | None = self._get(self._known.races, folder, choice, load)
        return known

    def record_race(
        self, folder: Path, choice: EngineChoice, decision: Decision, load: Load = "whole"
    ) -> None:
        """Record how an engine did as a challenger."""
        self._put(self._known.races, folder, choice, decision, load)

    def has_lost(self, folder: Path, choice: EngineChoice) -> bool:
        """Whether an engine is known not to be better here."""
        known = self.race(folder, choice)
        return known is not None and not known.takes_over

    # Whether it crashes the agent

    def add_crash(self, last: PreviousCrash) -> None:
        """Count an abnormal end of the last run against the models then in use.

        Of several, only against those that were in use at most of the ends before, too: the others
        are less likely to be the cause.
        """
        suspects = {_crash_key(each): each for each in last.calls}
        before = {key: self._times(key) for key in suspects}
        for key, each in suspects.items():
            if before[key] < max(before.values()):
                continue
            times = before[key] + 1
            why = f"the agent {last.why} while {_VERBS[each.kind]} it"
            self._known.crashes[key] = _Crashes(times, why)
            told = short_name(each.target), why, times
            if asked := each.kind == "ask":
                self._recent.add(key)
            if times >= LIMIT:
                end = "takes no more questions" if asked else "is left alone"
                log.error("model %s: %s, %d times in a row: it %s", *told, end)
            else:
                log.warning("model %s: %s (%d of %d times)", *told, LIMIT)
        if last.calls:
            self._save()

    def _times(self, key: str) -> int:
        return self._known.crashes.get(key, _Crashes(0, "")).times

    def why_left_alone(self, target: str) -> str | None:
        """Return why a model may not be loaded on an engine, or None if it may."""
        times, why = self._known.crashes.get(target, _Crashes(0, ""))
        if times < LIMIT:
            return None
        return f"{why}, {times} times in a row; use another version or engine, {self._again}"

    def why_not_asked(self, target: str) -> str | None:
        """Return why a model takes no questions, or None if it does; the engine does not matter."""
        times, why = self._known.crashes.get(_asked_key(target), _Crashes(0, ""))
        if times < LIMIT:
            return None
        return f"takes no questions: {why}, {times} times; use another version, {self._again}"

    @property
    def _again(self) -> str:
        return f"or remove {self._file.path} and restart to try it again"

    def problems(self) -> list[str]:
        """List the counted crashes that are below the limit."""
        return [
            f"model {short_name(key.removeprefix(_ASKED))}: {why} ({times} of {LIMIT} times)"
            for key, (times, why) in self._known.crashes.items()
            if times < LIMIT and (key in self._recent or not key.startswith(_ASKED))
        ]

    def forgive(self) -> None:
        """Clear the counts below the limit because this run is good.

        Not those in questions: whoever sends such a one could wait for that each time.
        """
        self._recent.clear()
        crashes = self._known.crashes
        below = [
            key
            for key, (times, _) in crashes.items()
            if times < LIMIT and not key.startswith(_ASKED)
        ]
        for key in below:
            del crashes[key]
        if below:
            self._save()

    # The file

    def _get(
        self, table: dict[str, Any], folder: Path, choice: EngineChoice, load: Load = "whole"
    ) -> Any:
        if not table:
            return None
        try:
            return table.get(self._key(folder, choice, load))
        except ModelError:
            return None  # errors in its files are reported when they are loaded

    def _put(
        self,
        table: dict[str, Any],
        folder: Path,
        choice: EngineChoice,
        value: Any,
        load: Load = "whole",
    ) -> None:
        try:
            key = self._key(folder, choice, load)
        except ModelError as problem:
            log.warning("%s: %s", folder, problem)
            return
        table.pop(key, None)
        table[key] = value
        for oldest in list(table)[:-MOST]:
            del table[oldest]
        self._save()

    def _key(self, folder: Path, choice: EngineChoice, load: Load) -> str:
        """Return the key of a model and an engine; the number of threads does not matter."""
        options = json.dumps(dict(choice.options), sort_keys=True)
        words = (
            model_digest(self._state, folder, goldens=True),
            *choice.place,
            choice.precision,
            options,
            installed().get(choice.engine),
            processor(),
        )
        return " ".join([*(str(word) for word in words), *(["prepared"] * (load == "prepared"))])

    def _save(self) -> None:
        self._file.save(
            {
                "schema": 2,
                "found": self._known.wrong,
                "races": {key: asdict(each) for key, each in self._known.races.items()},
                # Another version of this program may no longer crash.
                "crashes": {"agent": __version__, "counts": self._known.crashes},
            }
        )


def _crash_key(call: EngineCall) -> str:
    return _asked_key(call.target) if call.kind == "ask" else call.target


def _asked_key(target: str) -> str:
    """Return the key of crashes in questions: the model and the stamp of its network file."""
    model, _, place = target.partition(" ")
    return f"{_ASKED}{model} {place.rpartition(' ')[2]}"


def _parse(content: Any) -> _Known:
    wrong = {str(key): str(why) for key, why in content["found"].items()}
    races = {str(key): Decision(**each) for key, each in content.get("races", {}).items()}
    counted = content.get("crashes", {})
    counts = counted.get("counts", {}) if counted.get("agent") == __version__ else {}
    crashes = {str(key): _Crashes(int(times), str(why)) for key, (times, why) in counts.items()}
    return _Known(wrong, races, crashes)
