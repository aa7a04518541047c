"""Results of tuning on this device: the engine, threads, lanes and batch that suit each model.

`tuning.json` in the state folder holds measurements, not decisions, and is valid only while
processor, cores, engines and profile are unchanged. Tuning never goes beyond the profile: it puts
one of its engines first, and fills in values that it leaves open. A file that is damaged or from
another device counts as absent. It is not a `core.state_file`, because it is read again whenever a
tune has changed it, and health gives the reason why it is not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from .. import __version__
from ..config.device_profile import DeviceProfile
from ..core.constraints import Ge, Gt, Le, MinLength
from ..core.files import replace_file
from ..core.frozen import record
from ..core.plain_file import read_plain_bytes
from ..core.plain_record import DoubtError, read_plain
from ..device.hardware import Facts
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import installed
from ..inference.prepared.digests import model_digest

log = logging.getLogger(__name__)

FILE = "tuning.json"
SCHEMA = 1
MARGIN = 0.05
"""Share by which another way must be faster to replace the profile's own."""
MOST_MODELS = 64
"""Most models in the file; the oldest are removed first."""
_MOST_BYTES = 1 << 20


@record
class Way:
    """One way of running a model, and its throughput."""

    engine: str
    device: str
    threads: Annotated[int, Ge(1), Le(1024)]
    """Threads of one inference."""
    lanes: Annotated[int, Ge(1), Le(64)]
    """Inferences at a time."""
    batch: Annotated[int, Ge(1), Le(256)]
    """Frames in one inference."""
    fps: Annotated[float, Gt(0), Le(1e11)]
    """Frames per second, all lanes together."""

    def __str__(self) -> str:
        batch = f", {self.batch} frames at a time" if self.batch > 1 else ""
        return (
            f"{self.engine}:{self.device}, {self.lanes} lane(s) of {self.threads} thread(s)"
            f"{batch}: {self.fps:.0f} frames a second"
        )


@record
class Tune:
    """Measurements of one model, in the profile's order."""

    model: str
    made: Annotated[float, Ge(0), Le(253_402_300_799)]
    """Seconds since 1970, at most to the year 9999."""
    ways: Annotated[tuple[Way, ...], MinLength(1)]

    def best(self, lanes: int, choices: Sequence[EngineChoice]) -> Way | None:
        """Return the best way with this many lanes, among the available engines.

        The first one in the profile is kept unless another is clearly faster.
        """
        here = {choice.place for choice in choices}
        best: Way | None = None
        for way in self.ways:
            allowed = way.lanes == lanes and (way.engine, way.device.upper()) in here
            if allowed and (best is None or way.fps > best.fps * (1 + MARGIN)):
                best = way
        return best


class TuningResults:
    """The file of tunes in a state folder."""

    def __init__(self, state: Path, profile: DeviceProfile, facts: Facts) -> None:
        """Set up without reading the file."""
        self._state = state
        self._path = state / FILE
        self._fill_lanes = profile.lanes == 0
        self._fill_threads = {
            (line.engine, line.device.upper())
            for line in profile.engines
            if not (profile.threads if line.threads is None else line.threads)
        }
        self._cores = facts.cpus
        self._of = profile, facts
        self._seen: tuple[object, dict[str, Tune], str | None] | None = None

    @cached_property
    def _here(self) -> dict[str, Any]:
        return _here(*self._of)

    @property
    def problem(self) -> str | None:
        """Why the file is not used, or None if it is used or does not exist."""
        return self._read()[1]

    def all(self) -> list[Tune]:
        """Return the tunes that are valid on this device."""
        return list(self._read()[0].values())

    def lanes(self, usual: int) -> int:
        """Return the best number of lanes for the tuned models together, or *usual* if unknown.

        All models share the agent's lanes: each number is rated by the share of every model's best
        rate that it keeps.
        """
        tunes = self.all()
        if not self._fill_lanes or not tunes:
            return usual
        scores = {usual: _score(tunes, usual)}
        for lanes in sorted({way.lanes for tune in tunes for way in tune.ways}):
            score = _score(tunes, lanes)
            if score > max(scores.values()) * (1 + MARGIN):
                scores[lanes] = score
        return max(scores, key=lambda lanes: scores[lanes])

    def best(self, folder: Path, lanes: int, choices: Sequence[EngineChoice]) -> Way | None:
        """Return the best way to run a model, or None if none is known.

        Raises:
            ModelError: a file of the model cannot be read.
        """
        tunes = self._read()[0]
        if not tunes:
            return None
        tune = tunes.get(model_digest(self._state, folder))
        return None if tune is None else tune.best(lanes, choices)

    def order(
        self, folder: Path, lanes: int, choices: Sequence[EngineChoice]
    ) -> list[EngineChoice]:
        """Put the best engine first, with its best number of threads; keep the order of the rest.

        Raises:
            ModelError: a file of the model cannot be read.
        """
        best = self.best(folder, lanes, choices)
        ordered: list[EngineChoice] = []
        for choice in choices:
            key = choice.place
            first = best is not None and key == (best.engine, best.device.upper())
            if key in self._fill_threads:
                usual = max(1, self._cores // lanes)
                threads = best.threads if best and first else usual
                ordered.insert(0 if first else len(ordered), replace(choice, threads=threads))
            else:
                ordered.insert(0 if first else len(ordered), choice)
        return ordered

    def write(self, folder: Path, model: str, ways: Sequence[Way]) -> None:
        """Write the measurements of a model, and drop outdated ones.

        Raises:
            ModelError: a file of the model cannot be read.
            OSError: the file cannot be written.
        """
        tunes = dict(self._read()[0])
        tunes[model_digest(self._state, folder)] = Tune(model, time.time(), tuple(ways))
        newest = sorted(tunes.items(), key=lambda item: item[1].made)[-MOST_MODELS:]
        content = {
            "schema": SCHEMA,
            "here": self._here,
            "models": {digest: asdict(tune) for digest, tune in newest},
        }
        replace_file(self._path, json.dumps(content, indent=1).encode())
        self._seen = None

    def _read(self) -> tuple[dict[str, Tune], str | None]:
        """Return the valid tunes, and why others are not; reread the file after a change."""
        try:
            known = self._path.stat()
        except OSError:
            return {}, None
        stamp = (known.st_size, known.st_mtime_ns, known.st_ino)
        if self._seen is None or self._seen[0] != stamp:
            tunes, problem = self._parse(known.st_size)
            if problem is not None:
                log.warning("%s: %s", FILE, problem)
            self._seen = (stamp, tunes, problem)
        return self._seen[1], self._seen[2]

    def _parse(self, size: int) -> tuple[dict[str, Tune], str | None]:
        if size > _MOST_BYTES:
            return {}, "is too large for tuning results; it is not used"
        try:
            content = json.loads(read_plain_bytes(self._path))
        except (OSError, ValueError, RecursionError):
            return {}, "is damaged; it is not used"
        if not isinstance(content, dict) or not isinstance(content.get("models"), dict):
            return {}, "is damaged; it is not used"
        if content.get("schema") != SCHEMA:
            return {}, "is from another version of edge-agent; it is not used"
        if content.get("here") != self._here:
            return {}, _stale(content.get("here"), self._here)
        tunes = {}
        for digest, entry in content["models"].items():
            with suppress(DoubtError):
                tunes[digest] = read_plain(Tune, entry)
        damaged = len(content["models"]) - len(tunes)
        return tunes, f"{damaged} entries are damaged and are not used" if damaged else None


def _here(profile: DeviceProfile, facts: Facts) -> dict[str, Any]:
    """Return everything that a tune depends on, except the model."""
    flags = " ".join(sorted(facts.flags))
    return {
        "agent": __version__,
        "processor": f"{facts.arch} {facts.vendor} {facts.cpu}",
        "instructions": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "cores": facts.cpus,
        "engines": {name: installed()[name] for name in sorted(installed())},
        # All of it matters: options, precision, and which values it sets or leaves open.
        "profile": hashlib.sha256(repr(profile).encode()).hexdigest()[:16],
    }


def _stale(there: Any, here: Mapping[str, Any]) -> str:
    changed = [
        name for name in here if not isinstance(there, dict) or there.get(name) != here[name]
    ]
    return (
        f"is from another device or configuration ({', '.join(changed)} changed); it is not used: "
        "tune again with `edge-agent bench pipeline --tune`"
    )


def _score(tunes: Sequence[Tune], lanes: int) -> float:
    """Return the geometric mean, over models, of the share of the best rate with these lanes."""
    logs = []
    for tune in tunes:
        most = max(way.fps for way in tune.ways)
        with_lanes = max((way.fps for way in tune.ways if way.lanes == lanes), default=0.0)
        if with_lanes <= 0:
            return 0.0
        logs.append(math.log(with_lanes / most))
    return math.exp(sum(logs) / len(logs))
