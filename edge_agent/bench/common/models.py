"""The models that are measured: folders, an agent's, or random ones, kept in a cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ...config.load import find_file, load
from ...core.bundled import bundled
from ...core.errors import UsageError
from ...models.manifest import MANIFEST
from ...models.store.catalog import Catalog
from ...tools.random_networks import NAMES, generated
from .report import cache_folder


def find_model(
    text: str, report_progress: Callable[[str], None], catalog: Catalog | None = None
) -> Path:
    """Find the folder of a model named by the user: a folder, "face", "face@3" or one of `NAMES`.

    *catalog* is the agent's, whose live versions count; None: only bundled models do.
    """
    if text and (Path(text) / MANIFEST).is_file():
        return Path(text)
    name, at, version = text.partition("@")
    if catalog is not None and catalog.entries(name):
        return catalog.find(name, version if at else None, on_trial=True).path
    if text and (bundled("models") / text / MANIFEST).is_file():
        return bundled("models") / text
    if text in NAMES:
        return generated(text, cache_folder(), report_progress)
    known = f" (there are {', '.join(catalog.names())})" if catalog is not None else ""
    raise UsageError(
        f"{text!r}: no model folder (one with {MANIFEST}; `edge-agent try … --save` makes one), "
        f"no model of the agent's{known}, and none of the generated ones: {', '.join(NAMES)}"
    )


def find_models(
    names: Sequence[str], config: str | None, report_progress: Callable[[str], None]
) -> list[Path]:
    """Find the folder for each name: a folder, an agent's model ("face@3"), or a generated one.

    *config* is the settings file; None: the one in its usual place, if it exists.
    """
    file = find_file(config)
    if config is not None and file is not None:
        load(file)  # errors in named settings are reported even if they are not needed
    named = any(not (name and (Path(name) / MANIFEST).is_file()) for name in names)
    known = _catalog(file, config) if named else None
    return [find_model(name, report_progress, known) for name in names]


def _catalog(file: Path | None, config: str | None) -> Catalog | None:
    """Open the catalog of the agent with these settings, or return None if it is not accessible."""
    from ...serving.loader import open_library, open_store

    if file is None or (config is None and not os.access(file, os.R_OK)):
        return None  # only the service and root may read it
    settings = load(file)
    if config is None and not os.access(settings.state, os.W_OK):
        return None  # likewise
    return open_library(settings, open_store(settings, make=False))
