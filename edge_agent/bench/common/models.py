"""Finds the models that are to be measured: as the agent finds them whose settings count here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...config.load import find_file, load
from ...models.manifest import MANIFEST
from .generated import find_model

if TYPE_CHECKING:
    from ...models.store.catalog import Library


def find_models(
    names: Sequence[str], config: str | None, report_progress: Callable[[str], None]
) -> list[Path]:
    """Find the folder of each: one named, a model of the agent's ("face@3"), or a generated one.

    *config* is the settings file; None: the one in its usual place, where there is one.

    Raises:
        UsageError: one is not there, or the settings are wrong.
        ModelError: one is broken.
    """
    named = any(not (name and (Path(name) / MANIFEST).is_file()) for name in names)
    file = find_file(config)
    if config is not None and file is not None:
        load(file)  # who names settings is told what is wrong with them, needed or not
    known = _library(file, config) if named else None
    return [find_model(name, report_progress, known) for name in names]


def _library(file: Path | None, config: str | None) -> Library | None:
    """Open the models of the agent whose settings these are; None: there is none to be seen."""
    from ...runtime.serving.loader import open_library, open_store

    if file is None or (config is None and not os.access(file, os.R_OK)):
        return None  # the service's own, for it and root alone
    settings = load(file)
    if config is None and not os.access(settings.state, os.W_OK):
        return None  # likewise
    return open_library(settings, open_store(settings))
