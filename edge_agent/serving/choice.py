"""Which engine a model is loaded on, and how: decided here; nothing is loaded.

Goes by the model's files, the device's profile and hardware, the memory that models may take, the
results of a tune, and the ledger of verdicts on models and engines.
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
"""Other names of an architecture, as variants may be called."""

LoadWay = Literal["whole", "reference", "prepared", "quick", "streamed"]
"""How a model is loaded on an engine: as the engine does it; without optimization, for others to be
compared with; from its prepared form; lightly optimized, to be there soon; or from its prepared
form with its weights read for every frame."""


@record
class EngineCandidate:
    """One way to load a model."""

    way: LoadWay
    choice: EngineChoice
    why: str = ""
    """Why it comes before the profile's preference; empty: it is that preference."""


def match_profile(settings: Settings) -> tuple[Match, Facts]:
    """Choose this device's profile.

    Raises:
        UsageError: the profile named is not there, or a profile is wrong.
    """
    facts = read_facts()
    return choose(load_profiles(default_dirs()), facts, settings.profile), facts


def variants_here(settings: Settings, match: Match, facts: Facts) -> tuple[str, ...]:
    """List the variants of a model that suit this device, the most specific first.

    They are named after the profile, its first engine that is installed, and the architecture.
    """
    wanted = settings.engine
    if wanted == "auto":
        listed = [line.engine for line in match.profile.engines]
        engines = [engine for engine in listed if is_installed(engine)][:1]
    else:
        engines = [wanted]
    return (match.name, *engines, facts.arch, *ARCHITECTURES.get(facts.arch, ()))


class DeviceEngines:
    """The engines of this device, and the order and way in which a model may be loaded on them."""

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
    ) -> None:
        """Set up the choice; nothing is probed yet.

        Args:
            profile: of this device.
            facts: the machine.
            wanted: the engine that the settings insist on.
            state: the state folder; None: nothing is kept, and a model is loaded whole, whatever
                it takes.
            tuning: results of a tune; None: those in the state folder.
            batching: how many frames of several pipelines go through a model at a time.
            verdicts: the ledger of verdicts on engines; None: the one in the state folder.
        """
        if state is not None:
            tuning = tuning or TuningResults(state, profile, facts)
            verdicts = verdicts or Verdicts(state)
        self.profile = profile
        self.batching = batching or Batching()
        self.tuning = tuning
        """Results of a tune, or None if nothing is known, nor to be kept."""
        self.verdicts = verdicts
        """Verdicts on models and engines, or None if nothing is kept."""
        self._facts = facts
        self._wanted = wanted
        self._keeps_forms = state is not None

    # The device

    @cached_property
    def lanes(self) -> int:
        """How many frames are inferred at a time: as the profile says, or a tune, else two."""
        usual = self.profile.lanes or min(2, self._facts.cpus)
        return usual if self.tuning is None else self.tuning.lanes(usual)

    @cached_property
    def lineup(self) -> Lineup:
        """The engines to try; probes them, in child processes, only if there is an accelerator."""
        from ..inference.engines.probe import probe

        return lineup(self.profile, self._facts, probe, self._wanted)

    # A model's engines

    def candidates(self, folder: ModelFolder) -> list[EngineCandidate]:
        """List the ways to load a model for the long run; the first one that loads serves.

        Raises:
            EngineError: the engine that the settings insist on cannot read its file, or it exceeds
                the memory budget and nothing here can run it so.
            BarredError: every engine has crashed on it again and again, or computes it wrongly.
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
                why = f"{way.choice} is loaded once this has said what is in some inputs"
                choice = self._within_budget(reference)
                return [*ways[:at], EngineCandidate("reference", choice, why), *ways[at:]]
        return ways

    def choices_for(self, folder: ModelFolder) -> list[EngineChoice]:
        """List the engines to try for a model, in order: the best one by a tune comes first.

        Raises:
            EngineError: as for `allowed`.
        """
        choices = self.allowed(folder)
        if self.tuning is None:
            return choices
        try:
            return self.tuning.order(folder.path, self.lanes, choices)
        except ModelError:
            return choices  # what is wrong with its files is reported when they are loaded

    def left_for(self, folder: ModelFolder) -> list[EngineChoice]:
        """List the engines to try for a model, as `choices_for`; empty where it raises."""
        try:
            return self.choices_for(folder)
        except EngineError:
            return []

    def allowed(self, folder: ModelFolder) -> list[EngineChoice]:
        """List the engines that may run a model, in the profile's order.

        Raises:
            EngineError: the engine that the settings insist on cannot read such a file.
            BarredError: on every one of them it has taken the agent down, again and again, or is
                computed wrongly.
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
        """Return the choice by which a start runs a model, or None if no form can be prepared.

        On an engine whose prepared form is a graph, wherever it stands in the profile, with all
        cores for its first frame; else on the first engine, if that imports a prepared blob.
        """
        choices = self.left_for(folder)
        for choice in choices:
            if prepared_kind(choice) == "graph":
                return replace(choice, threads=usable_cpus(), lanes=1)
        first = choices[0] if choices else None
        return first if first is not None and prepared_kind(first) is not None else None

    def quick_choice(self, folder: ModelFolder) -> EngineChoice | None:
        """Return the fastest way to a model's first right result; None: there is none quicker.

        Not where memory holds no second copy of a model, nor with an engine that the settings or
        the profile rule out, or that has crashed on it.
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

        A prepared form that nothing was compared with yet needs a check, which the quick way does
        not.
        """
        quick = self.quick_choice(folder)
        if prepared is not None and (quick is None or not self.unverified(folder, prepared)):
            if self.unverified_alone(folder, prepared):
                return None  # it is compared first
            return EngineCandidate("prepared", prepared)
        return None if quick is None else EngineCandidate("quick", quick)

    def streamed(self, folder: ModelFolder) -> EngineChoice | None:
        """Return the choice for a model beyond the memory budget, or None if it is within.

        Raises:
            EngineError: it is beyond, and nothing here can run it.
        """
        if not self._keeps_forms or not self.exceeds_budget(folder):
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
        """Whether a prepared form was measured as no slower than the engine preferred to it.

        Else a start that is not from a plan would ignore what this device has measured.
        """
        if prepared.place == preferred.place or self.verdicts is None:
            return False
        # A tune knows better.
        return self.best_way(folder) is None and self.verdicts.has_lost(folder.path, preferred)

    def _plain(self, folder: ModelFolder) -> EngineChoice | None:
        """Return a session without optimization, where every engine is wrong; None: none may be."""
        plain = plain_choice(folder.network.suffix)
        if plain is None or self._wanted not in {"auto", plain.engine}:
            return None
        plain = self._within_budget(plain)
        return plain if self._barred(folder, plain) is None else None

    def _within_budget(self, choice: EngineChoice) -> EngineChoice:
        """Return an engine with the lanes of this device, and no more threads than cores for each.

        However many models take turns in a lane, and on whichever engines: never more threads
        compute than there are cores.
        """
        threads = choice.threads
        if choice.device.upper() == "CPU":
            threads = min(threads, max(1, self._facts.cpus // self.lanes))
        return replace(choice, lanes=self.lanes, threads=threads)

    def _barred(self, folder: ModelFolder, choice: EngineChoice) -> str | None:
        """Return why a model is not to be loaded on an engine: it crashes there, or is wrong."""
        if self.verdicts is None:
            return None
        place = folder.manifest.id, choice.engine, choice.device, str(folder.network)
        why = self.verdicts.why_left_alone(call_target(*place))
        return why or self.verdicts.why_wrong(folder.path, choice)

    # What is known

    def best_way(self, folder: ModelFolder) -> Way | None:
        """Return how a model runs best, as a tune has measured, or None if nothing is known."""
        if self.tuning is None:
            return None
        try:
            return self.tuning.best(folder.path, self.lanes, self.allowed(folder))
        except (ModelError, EngineError):
            return None

    def wants_tune(self, folder: ModelFolder) -> bool:
        """Whether the profile asks the agent to tune its models, and this one is not tuned yet."""
        return (
            self.profile.tune
            and self.tuning is not None
            and not self.exceeds_budget(folder)
            and self.best_way(folder) is None
        )

    def max_batch(self, folder: ModelFolder) -> int:
        """Return how many samples a model is to infer at a time, by settings or tune."""
        if self.batching.max_batch:
            return self.batching.max_batch
        best = self.best_way(folder)
        return 1 if best is None else best.batch

    def exceeds_budget(self, folder: ModelFolder) -> bool:
        """Whether a model's weights alone are more than all models may take."""
        budget = self.profile.memory_budget_mb * 2**20
        return 0 < budget < size_of(folder.path)

    def may_stand_beside(self, folder: ModelFolder) -> bool:
        """Whether a model may be in memory twice, as profile and budget have it."""
        return self.profile.swap != "replace" and not self.exceeds_budget(folder)

    def unverified(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine has yet to be compared on a model, and may be in memory beside another.

        One that is held to golden outputs needs no other beside it.
        """
        if is_held_to_golden(folder):
            return self.verdicts is not None and not self.verdicts.is_correct(folder.path, choice)
        return self.may_stand_beside(folder) and self._is_unverified(folder, choice)

    def unverified_alone(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine has yet to be compared on a model that memory holds only once.

        A session without optimization serves then until both have been, one after another. Not
        for a model that exceeds the budget: no session could load it.
        """
        alone = self.profile.swap == "replace" and not self.exceeds_budget(folder)
        return alone and not is_held_to_golden(folder) and self._is_unverified(folder, choice)

    def wants_check(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether a model that is about to serve is checked on its first inputs."""
        if not self.unverified(folder, choice):
            return False
        return is_held_to_golden(folder) or has_room(size_of(folder.path))

    def _is_unverified(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine has no verdict, and another session could be compared with it."""
        if self.verdicts is None or self.verdicts.is_correct(folder.path, choice):
            return False
        plain = plain_choice(folder.network.suffix)
        if plain is None:
            return False
        return (plain.engine, plain.options) != (choice.engine, choice.options)
