"""Chooses the engine of a model on this device, and loads the model on it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

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
from ..core.bundled import bundled
from ..core.containment import contained
from ..core.errors import AgentError, BarredError, EngineError, ModelError
from ..core.files import make_state_folder, size_of
from ..core.flight_recorder import call_target
from ..core.types import Kind
from ..device.hardware import Facts, read_facts
from ..device.headroom import has_room
from ..device.resources import usable_cpus
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import (
    WantedEngine,
    engine_order,
    is_installed,
    plain_choice,
    prepared_kind,
    titles,
)
from ..inference.prepared.artifact import Artifact, ArtifactError
from ..inference.prepared.compile.cache import find, prepare
from ..inference.quick_check import QUICK_WAY, quick_engines
from ..models.files.check_onnx import check_network
from ..models.manifest import ModelFolder
from ..models.store.catalog import Library
from ..models.store.store import Store
from .golden_check import is_held_to_golden
from .out_of_core import OutOfCore
from .tuning_results import TuningResults, Way
from .verdicts import Verdicts

if TYPE_CHECKING:
    from ..inference.model import Model

log = logging.getLogger(__name__)

ARCHITECTURES = {
    "x86_64": ("x86",),
    "aarch64": ("arm64", "arm"),
    "armv7l": ("arm",),
    "armv6l": ("arm",),
}
"""Other names of an architecture, as variants may be called."""


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


def open_library(settings: Settings, store: Store) -> Library:
    """Open the three places where models are."""
    return Library(store, [Path(folder) for folder in settings.models_dirs], bundled("models"))


def open_store(settings: Settings) -> Store:
    """Open the store, making its folder.

    Raises:
        UsageError: it cannot be made or written.
    """
    make_state_folder(settings.state)
    return Store(settings.state)


class ModelLoader:
    """Loads models on the engines of this device."""

    def __init__(
        self,
        profile: DeviceProfile,
        facts: Facts,
        wanted: WantedEngine,
        store: Store | None = None,
        *,
        tuning: TuningResults | None = None,
        batching: Batching | None = None,
        verdicts: Verdicts | None = None,
    ) -> None:
        """Probe nothing yet.

        Args:
            profile: of this device.
            facts: the machine.
            wanted: the engine that the settings insist on.
            store: keeps prepared forms; None: a model is loaded whole, whatever it takes.
            tuning: what a tune has measured; None: the store's, if there is a store.
            batching: how many frames of several pipelines go through a model at a time.
            verdicts: what is known of models on engines; None: what the store holds of that.
        """
        self._store = store
        if tuning is None and store is not None:
            tuning = TuningResults(store.root, profile, facts)
        self.tuning = tuning
        """What a tune has measured, or None if nothing is known, nor to be kept."""
        self._profile = profile
        self._facts = facts
        self._wanted = wanted
        self.batching = Batching() if batching is None else batching
        if verdicts is None and store is not None:
            verdicts = Verdicts(store.root)
        self.verdicts = verdicts
        """What is known of models on engines, or None if nothing is kept."""

    @property
    def profile(self) -> DeviceProfile:
        """The device's profile."""
        return self._profile

    @cached_property
    def lanes(self) -> int:
        """How many frames are inferred at a time: as the profile says, or a tune, else two."""
        usual = self._profile.lanes or min(2, self._facts.cpus)
        return usual if self.tuning is None else self.tuning.lanes(usual)

    @cached_property
    def lineup(self) -> Lineup:
        """The engines to try; asks them, in child processes, only where there is an accelerator."""
        from ..inference.engines.probe import probe

        return lineup(self._profile, self._facts, probe, self._wanted)

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
            self._profile.tune
            and self.tuning is not None
            and not self.exceeds_budget(folder)
            and self.best_way(folder) is None
        )

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

    def load(
        self, folder: ModelFolder, kind: Kind, *, checked: bool = False
    ) -> tuple[Model, list[str]]:
        """Load a model on the first engine that can run it, see also `attach_check`.

        Returns:
            The model, and why each engine before its own was passed over.

        Raises:
            ModelError: the model is not fit to run.
            EngineError: no engine can run it.
        """
        with contained(folder.manifest.id):
            model, passed = self._load(folder, kind, checked=checked)
        self.attach_check(model, kind)
        return model, passed

    def attach_check(self, model: Model, kind: Kind) -> None:
        """Have a model checked where its engine is not known to compute it rightly.

        Args:
            model: about to serve.
            kind: of sample that it will be given.
        """
        held = is_held_to_golden(model.folder)
        if self.unverified(model.folder, model.choice) and (
            held or has_room(size_of(model.folder.path))
        ):
            from .reference_check import attach_check  # of no use from the second start on

            attach_check(model, kind)

    def unverified(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine has yet to be compared on a model, and may be in memory beside another.

        One that is held to golden outputs needs no other beside it.
        """
        if is_held_to_golden(folder):
            return self.verdicts is not None and not self.verdicts.is_correct(folder.path, choice)
        return self.may_stand_beside(folder) and self._is_unverified(folder, choice)

    def unverified_alone(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether an engine has yet to be compared on a model that memory holds only once.

        A session without optimization serves then until both have been, one after the other. Not
        of what exceeds the budget: no session could load it.

        Args:
            folder: of the model.
            choice: of the engine.
        """
        alone = self._profile.swap == "replace" and not self.exceeds_budget(folder)
        return alone and not is_held_to_golden(folder) and self._is_unverified(folder, choice)

    def _is_unverified(self, folder: ModelFolder, choice: EngineChoice) -> bool:
        """Whether nothing is known of an engine that could be compared with another session."""
        if self.verdicts is None or self.verdicts.is_correct(folder.path, choice):
            return False
        plain = plain_choice(folder.network.suffix)
        if plain is None:
            return False
        return (plain.engine, plain.options) != (choice.engine, choice.options)

    def _load(self, folder: ModelFolder, kind: Kind, *, checked: bool) -> tuple[Model, list[str]]:
        from ..inference.model import load_model  # a start chooses models without it

        choices = self.choices_for(folder)
        out_of_core = self.out_of_core(folder)
        if out_of_core is not None:
            return out_of_core.load(folder, kind, checked=checked), []
        model = self._known_better(folder, kind, choices, checked=checked)
        passed: list[str] = []
        if model is None:
            model, passed = load_model(folder, choices, kind, checked=checked)
        if self.unverified_alone(folder, model.choice):
            model = self._reference_instead(model, kind)
        return model, self.passed_over(folder) + passed

    def _reference_instead(self, model: Model, kind: Kind) -> Model:
        """Unload a model, and load it in a session without optimization; where that runs, too."""
        from ..inference.model import load_model

        plain = plain_choice(model.folder.network.suffix)
        if plain is None:
            return model
        model.close()
        try:
            found = load_model(model.folder, [self._within_budget(plain)], kind, checked=True)[0]
        except EngineError as problem:
            log.info("model %s: nothing to compare engines with: %s", model.id, problem)
            return load_model(model.folder, [model.choice], kind, checked=True)[0]
        found.is_reference = True
        return found

    def _known_better(
        self, folder: ModelFolder, kind: Kind, choices: list[EngineChoice], *, checked: bool
    ) -> Model | None:
        """Load a model from its form, where the engine preferred to it was measured as no faster.

        Else a start that is not from a plan would ignore what this device has measured.
        """
        choice = self.prepared_choice(folder)
        if choice is None or not choices or choice.place == choices[0].place:
            return None
        if self.best_way(folder) is not None:
            return None  # a tune knows better
        try:
            form = self.prepared_form(folder, kind)
            lost = self.verdicts is not None and self.verdicts.has_lost(folder.path, choices[0])
            if form is None or not lost:
                return None
            if not checked:
                check_network(folder.network)
            return self.load_prepared(folder, form, kind)
        except EngineError as problem:
            log.info("model %s: not from its form: %s", folder.manifest.id, problem)
            return None

    def prepared_form(
        self, folder: ModelFolder, kind: Kind, *, make: bool = False
    ) -> Artifact | None:
        """Find the prepared form of a model, or make it, or None.

        Raises:
            ModelError: a file of the model cannot be read.
        """
        choice, budget = self.prepared_choice(folder), self._profile.memory_budget_mb
        if self._store is None or choice is None:
            return None
        form = find(self._store.root, folder.path, choice, kind, budget)
        if form is None and make:
            try:
                form = prepare(self._store, folder, choice, kind, budget_mb=budget)
            except ArtifactError as problem:
                log.warning("model %s: no prepared form: %s", folder.manifest.id, problem)
        return form

    def load_prepared(
        self, folder: ModelFolder, form: Artifact, kind: Kind, threads: int | None = None
    ) -> Model:
        """Load a model from its prepared form, for the long run.

        Args:
            folder: of the model.
            form: to load.
            kind: of sample that it will be given.
            threads: of one inference; None: as many as its engine has on this device.

        Raises:
            EngineError: it cannot be run so.
        """
        from ..inference.prepared.fallback import load_prepared

        choice = self.prepared_choice(folder)
        if choice is None:
            raise EngineError(f"{folder.manifest.id}: no engine may run its prepared form")
        own = next((one for one in self.choices_for(folder) if one.place == choice.place), choice)
        model = load_prepared(folder, choice, form, kind)
        try:
            if model.engine.prepared is not None:
                model.engine.prepared.finish_load(threads or own.threads or None)
            model.warm_up()
        except AgentError:
            model.close()
            raise
        return model

    def max_batch(self, folder: ModelFolder) -> int:
        """Return how many samples a model is to infer at a time, by settings or tune."""
        if self.batching.max_batch:
            return self.batching.max_batch
        best = self.best_way(folder)
        return 1 if best is None else best.batch

    def exceeds_budget(self, folder: ModelFolder) -> bool:
        """Whether a model's weights alone are more than all models may take."""
        budget = self._profile.memory_budget_mb * 2**20
        return 0 < budget < size_of(folder.path)

    def may_stand_beside(self, folder: ModelFolder) -> bool:
        """Whether a model may be in memory twice, as profile and budget have it."""
        return self._profile.swap != "replace" and not self.exceeds_budget(folder)

    def prepared_choice(self, folder: ModelFolder) -> EngineChoice | None:
        """Return how a start runs a model, or None if nothing can be prepared for it.

        On an engine whose prepared form is a graph, wherever it stands in the profile, with all
        cores for its first frame; else on the first engine, if that imports a prepared blob.
        """
        try:
            choices = self.choices_for(folder)
        except EngineError:
            return None
        for choice in choices:
            if prepared_kind(choice) == "graph":
                return replace(choice, threads=usable_cpus(), lanes=1)
        first = choices[0] if choices else None
        return first if first is not None and prepared_kind(first) is not None else None

    def quick_choice(self, folder: ModelFolder) -> EngineChoice | None:
        """Return what gives a model's first right result soonest; None: there is nothing quicker.

        Not where memory holds no second copy of a model, nor with an engine that the settings or
        the profile rule out, or that has crashed on it.
        """
        if not self.may_stand_beside(folder):
            return None
        listed = {line.engine for line in self._profile.engines}
        for engine in quick_engines(folder.network):
            choice = EngineChoice(engine, threads=usable_cpus(), lanes=self.lanes)
            wanted = engine == self._wanted or (self._wanted == "auto" and engine in listed)
            ways = choice, replace(choice, options=QUICK_WAY)
            barred = any(self._barred(folder, way) is not None for way in ways)
            if wanted and is_installed(engine) and not barred:
                return choice
        return None

    def passed_over(self, folder: ModelFolder) -> list[str]:
        """List the engines of the profile that cannot run a model here, each with the reason."""
        absent = [*self.lineup.absent]
        for choice in self.lineup.choices:
            why = self._barred(folder, choice)
            absent += [(choice, why)] if why is not None else []
        return [f"{c.engine}:{c.device}: {why}" for c, why in absent]

    def out_of_core(self, folder: ModelFolder) -> OutOfCore | None:
        """Return how a model is loaded that exceeds the memory budget, or None if it does not.

        Raises:
            EngineError: it is, and nothing here can run it.
        """
        if self._store is None or not self.exceeds_budget(folder):
            return None
        choice = self.prepared_choice(folder)
        budget = self._profile.memory_budget_mb
        if choice is None or prepared_kind(choice) != "graph":
            engines = ", ".join(one.engine for one in self.choices_for(folder)) or "none"
            raise EngineError(
                f"{folder.manifest.id}: is larger than memory_budget_mb = {budget}, and only "
                f"{titles('graph')} can run such a model (here: {engines}); raise the budget"
            )
        return OutOfCore(self._store.root, choice, budget)
