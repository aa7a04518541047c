"""Decides which engine a model is loaded on, and how, without loading anything.

Uses the model's files, the device's profile and hardware, the memory budget of models, the results
of a tune, and the ledger of verdicts on models and engines.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..config.device_profile import (
    DeviceProfile,
    Lineup,
    Match,
    choose,
    default_dirs,
    lineup,
    load_profiles,
)
from ..config.settings import Batching, Settings
from ..core.errors import BarredError, EngineError, ModelError
from ..core.files import size_of
from ..core.flight_recorder import call_target
from ..core.frozen import record
from ..device.hardware import Facts, read_facts
from ..device.headroom import has_room
from ..device.resources import usable_cpus
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import (
    QUICK_WAY,
    WantedEngine,
    engine_order,
    is_installed,
    plain_choice,
    prepared_kind,
    quick_engines,
    titles,
)
from .budget import MemoryBudget
from .golden_check import is_held_to_golden
from .tuning_results import TuningResults, Way
from .verdicts import Verdicts

if TYPE_CHECKING:
    from ..models.manifest import ModelFolder

ARCHITECTURES = {
    "x86_64": ("x86",),
    "aarch64": ("arm64", "arm"),
    "armv7l": ("arm",),
    "armv6l": ("arm",),
}
"""Other names of an architecture, used for variants."""

LoadWay = Literal["whole", "reference", "prepared", "quick", "streamed"]
"""How a model is loaded on an engine: as the engine normally does; without optimization, as a
reference for others; from its prepared form; lightly optimized, for a quick start; or from its
prepared form with the weights read for every frame."""


@record
class EngineCandidate:
    """One way to load a model."""

    way: LoadWay
    choice: EngineChoice
    why: str = ""
    """Why it has priority over the profile's preference; empty: it is that preference."""


def match_profile(settings: Settings) -> tuple[Match, Facts]:
    """Choose this device's profile.

    Raises:
        UsageError: the chosen profile does not exist, or a profile is invalid.
    """
    facts = read_facts()
    return choose(load_profiles(default_dirs()), facts, settings.profile), facts


def variants_here(settings: Settings, match: Match, facts: Facts) -> tuple[str, ...]:
    """List the variants of a model that suit this device, the most specific first.

    They are named after the profile, its first installed engine, and the architecture.
    """
    wanted = settings.engine
    if wanted == "auto":
        listed = [line.engine for line in match.profile.engines]
        engines = [engine for engine in listed if is_installed(engine)][:1]
    else:
        engines = [wanted]
    return (match.name, *engines, facts.arch, *ARCHITECTURES.get(facts.arch, ()))


class DeviceEngines:
    """The engines of this device, and in which order and way they may load a model."""

    def __init__(
        self,
        profile: DeviceProfile,
        facts: Facts,
        wanted: WantedEngine,
        *,
        state: Path | None = None,
        tuning: TuningResults | None = None,
        batching: Batching | None = None,
        verdicts: Verdicts | None = None,
        kv_cache_mb: int = 0,
    ) -> None:
        """Set up the choice without probing anything.

        Args:
            profile: this device's profile.
            facts: the machine.
            wanted: the engine required by the settings.
            state: the state folder; None: nothing is kept, and a model is loaded whole, whatever
                its size.
            tuning: results of a tune; None: those in the state folder.
            batching: the settings for batches of several pipelines' frames.
            verdicts: the ledger of verdicts on engines; None: the one in the state folder.
            kv_cache_mb: what a language model takes besides its files.
        """
        if state is not None:
            tuning = tuning or TuningResults(state, profile, facts)
            verdicts = verdicts or Verdicts(state)
        self.profile = profile
        self.budget = MemoryBudget(profile.memory_budget_mb, kv_cache_mb)
        self.batching = batching or Batching()
        self.tuning = tuning
        """Results of a tune, or None if there are none and none are kept."""
        self.verdicts = verdicts
        """Verdicts on models and engines, or None if nothing is kept."""
        self._facts = facts
        self._wanted = wanted
        self._keeps_forms = state is not None

    # The device

    @cached_property
    def lanes(self) -> int:
        """Number of frames inferred at a time: from the profile, or a tune, or else two."""
        usual = self.profile.lanes or min(2, self._facts.cpus)
        return usual if self.tuning is None else self.tuning.lanes(usual)

    @cached_property
    def lineup(self) -> Lineup:
        """The engines to try; probed in child processes, but only if there is an accelerator."""
        from ..inference.engines.probe import probe

        return lineup(self.profile, self._facts, probe, self._wanted)

    # A model's engines

    def candidates(self, folder: ModelFolder) -> list[EngineCandidate]:
        """List the ways to load a model for the long run; the first one that loads serves.

        Raises:
            EngineError: the engine required by the settings cannot read its file, or the model
                exceeds the memory budget and nothing here can run it, or does so along with the
                others that serve.
            BarredError: every engine has crashed on it repeatedly or computes it wrongly.
        """
        streamed = self.streamed(folder)
        if streamed is not None:
            why = f"larger than memory_budget_mb = {self.profile.memory_budget_mb}"
            return [EngineCandidate("streamed", streamed, why)]
        choices, prepared = self.choices_for(folder), self.prepared_choice(folder)
        ways = [EngineCandidate("whole", choice) for choice in choices]
        if prepared is not None and choices and self._has_won(folder, prepared, choices[0]):
            ways.insert(0, EngineCandidate("prepared", prepared, f"faster than {choices[0]} here"))
        reference = plain_choice(folder.network.suffix)
        for at, way in enumerate(ways):
            if reference is not None and self.unverified_alone(folder, way.choice):
                why = f"{way.choice} is loaded after this has answered some inputs"
                choice = self._within_budget(reference)
                return [*ways[:at], EngineCandidate("reference", choice, why), *ways[at:]]
        return ways

    def choices_for(self, folder: ModelFolder) -> list[EngineChoice]:
        """List the engines to try for a model in order, the best one by a tune first.

        Raises:
            EngineError: as for `allowed`.
        """
        choices = self.allowed(folder)
        if self.tuning is None:
            return choices
        try:
            return self.tuning.order(folder.path, self.lanes, choices)
        except ModelError:
            return choices  # errors in its files are reported when they are loaded

    def left_for(self, folder: ModelFolder) -> list[EngineChoice]:
        """List the engines to try for a model like `choices_for`; empty if that raises."""
        try:
            return self.choices_for(folder)
        except EngineError:
            return []

    def allowed(self, folder: ModelFolder) -> list[EngineChoice]:
        """List the engines that may run a model, in the profile's order.

        Raises:
            EngineError: the engine required by the settings cannot read such a file.
            BarredError: on each of them it has crashed the agent repeatedly, or is computed
                wrongly.
        """
        choices = [self._within_budget(choice) for choice in self.lineup.choices]
        choices = engine_order(choices, self._wanted, folder.network)
        barred = [self._barred(folder, choice) for choice in choices]
        if choices and all(barred):
            plain = self._plain(folder)
            if plain is not None:
                return [plain]
            raise BarredError(f"{folder.manifest.id}: is not loaded: {barred[0]}")
        return [choice for choice, why in zip(choices, barred, strict=True) if why is None]

    def passed_over(self, folder: ModelFolder) -> list[str]:
        """List the engines of the profile that cannot run a model here, each with the reason."""
        absent = [*self.lineup.absent]
        for choice in self.lineup.choices:
            why = self._barred(folder, choice)
            absent += [(choice, why)] if why is not None else []
        return [f"{c.engine}:{c.device}: {why}" for c, why in absent]

    def prepared_choice(self, folder: ModelFolder) -> EngineChoice | None:
        """Return the choice for running a model at a start; None: no form can be prepared.

        It is an engine whose prepared form is a graph, at any place in the profile, with all cores
        for its first frame; or else the first engine, if that imports a prepared blob.
        """
        choices = self.left_for(folder)
        for choice in choices:
            if prepared_kind(choice) == "graph":
                return replace(choice, threads=usable_cpus(), lanes=1)
        first = choices[0] if choices else None
        return first if first is not None and prepared_kind(first) is not None else None

    def quick_choice(self, folder: ModelFolder) -> EngineChoice | None:
        """Return the fastest way to a model's first correct result; None: no other is faster.

        None also if memory has no space for a second copy of a model, or if the settings, the
        profile or a crash rule the engine out.
        """
        if not self.may_stand_beside(folder):
            return None
        listed = {line.engine for line in self.profile.engines}
        for engine in quick_engines(folder.network):
            choice = EngineChoice(engine, threads=usable_cpus(), lanes=self.lanes)
            wanted = engine == self._wanted or (self._wanted == "auto" and engine in listed)
            ways = choice, replace(choice, options=QUICK_WAY)
            barred = any(self._barred(folder, way) is not None for way in ways)
            if wanted and is_installed(engine) and not barred:
                return choice
        return None

    def at_start(
        self, folder: ModelFolder, prepared: EngineChoice | None
    ) -> EngineCandidate | None:
        """Return the fastest way to a model's first result; None: only `candidates` applies.

        A prepared form that has not been compared yet needs a check; the quick way does not.
        """
        quick = self.quick_choice(folder)
        if prepared is not None and (quick is None or not self.unverified(folder, prepared)):
            if self.unverified_alone(folder, prepared):
                return None  # it is compared first
            return EngineCandidate("prepared", prepared)
        return None if quick is None else EngineCandidate("quick", quick)

    def streamed(self, folder: ModelFolder, *, serves: bool = True) -> EngineChoice | None:
        """Return the choice for a model beyond the memory budget, or None if it is within.

        *serves*: whether it will be in memory along with all others that serve.

        Raises:
            EngineError: it exceeds the budget, and nothing here can run it, or it does so along
                with the others that serve.
        """
        if serves:
            self.budget.check(folder)
        if not self._keeps_forms or not self.budget.exceeds(folder):
            return None
        choice, budget = self.prepared_choice(folder), self.profile.memory_budget_mb
        if choice is None or prepared_kind(choice) != "graph":
            engines = ", ".join(one.engine for one in self.choices_for(folder)) or "none"
            raise EngineError(
                f"{folder.manifest.id}: is larger than memory_budget_mb = {budget}, and only "
                f"{titles('graph')} can run such a model (here: {engines}); raise the budget"
            )
        return choice

    def _has_won(
        self, folder: ModelFolder, prepared: EngineChoice, preferred: EngineChoice
    ) -> bool:
        """Whether a prepared form was measured to be no slower than the preferred engine.

        Otherwise a start without a plan would ignore this device's measurements.
        """
        if prepared.place == preferred.place or self.verdicts is None:
            return False
        # A tune has priority.
        return self.best_way(folder) is None and self.verdicts.has_lost(folder.path, preferred)

    def _plain(self, folder: ModelFolder) -> EngineChoice | None:
        """Return a session without optimization if every engine is wrong; None: not allowed."""
        plain = plain_choice(folder.network.suffix)
        if plain is None or self._wanted not in {"auto", plain.engine}:
            return None
        plain = self._within_budget(plain)
        return plain if self._barred(folder, plain) is None else None

    def _within_budget(self, choice: EngineChoice) -> EngineChoice:
        """Return an engine with this device's lanes, each with its share of the cores as threads.

        However many models and engines share a lane, there are never more computing threads than
        cores.
        """
        threads = choice.threads
        if choice.device.upper() == "CPU":
            threads = min(threads, max(1, self._facts.cpus // self.lanes))
        return replace(choice, lanes=self.lanes, threads=threads)

    def _barred(self, folder: ModelFolder, choice: EngineChoice) -> str | None:
        """Return why a model must not be loaded on an engine: it crashes or is wrong there."""
        if self.verdicts is None:
            return None
        why = _left_alone(self.verdicts, folder, choice)
        return why or self.verdicts.why_wrong(folder.path, choice)

    # What is known

    def best_way(self, folder: ModelFolder) -> Way | None:
        """Return the best way to run a model according to a tune, or None if unknown."""
        if self.tuning is None:
            return None
        try:
            return self.tuning.best(folder.path, self.lanes, self.allowed(folder))
        except (ModelError, EngineError):
            return None

    def wants_tune(self, folder: ModelFolder) -> bool:
        """Whether the profile requests tuning, and this model is not tuned yet."""
        return (
            self.profile.tune
            and self.tuning is not None
            and not self.budget.exceeds(folder)
            and self.best_way(folder) is None
        )

    def max_batch(self, folder: ModelFolder) -> int:
        """Return how many samples a model infers at a time, by settings or tune."""
        if self.batching.max_batch:
            return self.batching.max_batch
        best = self.best_way(folder)
        return 1 if best is None else best.batch

    def may_stand_beside(self, folder: ModelFolder) -> bool:
        """Whether profile and budget allow a model to be in memory twice."""
        return self.profile.swap != "replace" and not self.budget.exceeds(folder)

    def unverified(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine must still be compared on a model, with a second one in memory.

        A model checked by golden outputs needs no second engine.
        """
        if is_held_to_golden(folder):
            return self.verdicts is not None and not self.verdicts.is_correct(folder.path, choice)
        return self.may_stand_beside(folder) and self._is_unverified(folder, choice)

    def unverified_alone(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine must still be compared on a model that fits in memory only once.

        Then a session without optimization serves first, and the engine follows. Not for a model
        that exceeds the budget: no session could load it.
        """
        alone = self.profile.swap == "replace" and not self.budget.exceeds(folder)
        return alone and not is_held_to_golden(folder) and self._is_unverified(folder, choice)

    def wants_check(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether a model about to serve must be checked on its first inputs."""
        if not self.unverified(folder, choice):
            return False
        return is_held_to_golden(folder) or has_room(size_of(folder.path))

    def _is_unverified(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine has no verdict but could be compared with another session."""
        if self.verdicts is None or self.verdicts.is_correct(folder.path, choice):
            return False
        plain = plain_choice(folder.network.suffix)
        if plain is None or _left_alone(self.verdicts, folder, plain) is not None:
            return False
        return (plain.engine, plain.options) != (choice.engine, choice.options)


def _left_alone(verdicts: Verdicts, folder: ModelFolder, choice: EngineChoice) -> str | None:
    """Return why a model may not even be compared on an engine: it ends the agent there."""
    place = folder.manifest.id, choice.engine, choice.device, str(folder.network)
    return verdicts.why_left_alone(call_target(*place))
