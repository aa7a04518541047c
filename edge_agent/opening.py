"""What models there are for this device, and how they are opened on it."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from .bundled import bundled
from .durable import size_of
from .engines import EngineChoice, EngineName
from .engines.probe import probe
from .errors import EngineError, UsageError
from .facts import Facts, read_facts
from .forms.prepare import find, prepare
from .machine import usable_cpus
from .manifest import ModelFolder
from .model import Model, engine_order, open_model
from .networks.modelfile import check_network
from .profile import DeviceProfile, Lineup, Match, choose, default_dirs, lineup, load_profiles
from .quick import quick_model
from .settings import Settings
from .sources import Kind
from .store.catalog import Library
from .store.store import Store


def match_profile(settings: Settings) -> tuple[Match, Facts]:
    """Choose this device's profile.

    Raises:
        UsageError: the profile named is not there, or a profile is wrong.

    """
    facts = read_facts()
    return choose(load_profiles(default_dirs()), facts, settings.profile), facts


def library_of(settings: Settings, store: Store) -> Library:
    """Open the three places where models are."""
    return Library(store, [Path(folder) for folder in settings.models_dirs], bundled("models"))


def open_store(settings: Settings) -> Store:
    """Open the store, making its folder.

    Raises:
        UsageError: it cannot be made or written.

    """
    try:
        settings.state.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"state_dir: {settings.state}: {problem.strerror}") from None
    if not os.access(settings.state, os.W_OK | os.X_OK):
        raise UsageError(f"state_dir: {settings.state}: may not be written by this user") from None
    return Store(settings.state)


class Engines:
    """How models are opened on this device."""

    def __init__(
        self,
        profile: DeviceProfile,
        facts: Facts,
        wanted: EngineName | Literal["auto"],
        store: Store | None = None,
    ) -> None:
        """Prepare.

        Args:
            profile: of this device.
            facts: the machine.
            wanted: the engine that the settings insist on.
            store: keeps prepared forms; None: a model is loaded whole, whatever it takes.

        """
        self._store = store
        self.lanes = profile.lanes or min(2, facts.cpus)
        self._profile = profile
        self._facts = facts
        self._wanted = wanted

    @cached_property
    def lineup(self) -> Lineup:
        """The engines to try; asks them, in child processes, only where there is an accelerator."""
        return lineup(self._profile, self._facts, probe, self._wanted)

    def choices_for(self, folder: ModelFolder) -> list[EngineChoice]:
        """List the engines to try for a model, in order.

        Raises:
            EngineError: the engine that the settings insist on cannot read such a file.

        """
        choices = [replace(choice, lanes=self.lanes) for choice in self.lineup.choices]
        return engine_order(choices, self._wanted, folder.network)

    def open(
        self, folder: ModelFolder, kind: Kind, *, checked: bool = False
    ) -> tuple[Model, list[str]]:
        """Load a model on the first engine that can run it; says why others were passed over.

        Raises:
            ModelError: the model is not fit to run.
            EngineError: no engine can run it.

        """
        choices = self.choices_for(folder)
        if self._store is not None and self.exceeds_budget(folder):
            return self._open_streaming(self._store, folder, choices, kind, checked=checked), []
        model, passed = open_model(folder, choices, kind, checked=checked)
        absent = [f"{choice.engine}:{choice.device}: {why}" for choice, why in self.lineup.absent]
        return model, absent + passed

    def exceeds_budget(self, folder: ModelFolder) -> bool:
        """Whether a model's weights alone are more than all models may take."""
        budget = self._profile.memory_budget_mb * 2**20
        return 0 < budget < size_of(folder.path)

    def quick_choice(self, folder: ModelFolder) -> EngineChoice | None:
        """Say how a start runs a model: on ONNX Runtime, with all cores for its first frame.

        What only OpenVINO can run, or is to run, is imported by it; None: nothing can be prepared.
        """
        try:
            choices = self.choices_for(folder)
        except EngineError:
            return None
        for choice in choices:
            if choice.engine == "onnxruntime" and choice.device.upper() == "CPU":
                return replace(choice, threads=usable_cpus(), lanes=1)
        first = choices[0] if choices else None
        here = first is not None and (first.engine, first.device.upper()) == ("openvino", "CPU")
        return first if here else None

    def _open_streaming(
        self,
        store: Store,
        folder: ModelFolder,
        choices: list[EngineChoice],
        kind: Kind,
        *,
        checked: bool,
    ) -> Model:
        """Load a model whose weights come and go: slower, but it runs at all.

        Raises:
            ModelError: the model is not fit to run.
            EngineError: it cannot be run so.

        """
        choice = self.quick_choice(folder)
        budget = self._profile.memory_budget_mb
        if choice is None or choice.engine != "onnxruntime":
            engines = ", ".join(choice.engine for choice in choices) or "none"
            raise EngineError(
                f"{folder.manifest.id}: is larger than memory_budget_mb = {budget}, and only "
                f"ONNX Runtime can run such a model (here: {engines}); raise the budget"
            )
        if not checked:
            check_network(folder.network)
        found = find(store.root, folder.path, choice, kind, budget)
        form = found or prepare(store, folder, choice, kind, budget_mb=budget)
        return quick_model(folder, choice, form, kind)
