"""What models there are for this device, and how they are opened on it."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from .bundled import bundled
from .engines import EngineChoice, EngineName
from .engines.probe import probe
from .errors import UsageError
from .facts import Facts, read_facts
from .manifest import ModelFolder
from .model import Model, engine_order, open_model
from .profile import DeviceProfile, Lineup, Match, choose, default_dirs, lineup, load_profiles
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
        self, profile: DeviceProfile, facts: Facts, wanted: EngineName | Literal["auto"]
    ) -> None:
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
        model, passed = open_model(folder, self.choices_for(folder), kind, checked=checked)
        absent = [f"{choice.engine}:{choice.device}: {why}" for choice, why in self.lineup.absent]
        return model, absent + passed
