"""A plan for a start without one: settings, device, and models are read, the models in part.

Everything is read as in a normal start, and nothing is assumed. The difference: a model is loaded
from its prepared form if that is still valid, or else the quick way, while the rest of the program
is imported (`drafting`). `serving` later finds the best engine for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...config.load import load
from ...config.overrides import FILE, Overrides
from ...config.settings import Arm, Settings, parse_route
from ...core.codec import pack
from ...core.errors import AgentError
from ...core.state_file import only_looking
from ...core.types import Kind
from ...inference.prepared.artifact import FOLDER
from ...models.store.catalog import Catalog, untried
from ...models.store.pointers import same_version
from ...serving.planned_model import PlannedModel
from ...sources.spec import parse_source
from ..inventory import Inventory
from .plan import Plan


def draft(config: str, origins: str) -> Plan | None:
    """Make a plan; None: everything must be opened before the first result, or is wrong."""
    try:
        settings = load(Path(config))
        with only_looking():  # a damaged file is left for the agent's own start, which reports it
            overrides = Overrides(settings.state / FILE)
        settings = overrides.lay_over(settings)
        inventory = Inventory(settings)
        store = inventory.store
        if any(store.pointers(name).marks for name in store.names()):
            return None  # a crash would have to be undone before anything is loaded
        lazy = inventory.match.profile.unload_idle_s > 0
        # Read once: with two hundred models, each would read the manifests of all.
        catalog = inventory.catalog.now()
        models: dict[tuple[str, Kind], PlannedModel] = {}
        for arm, kind in _arms(settings, lazy=lazy):
            planned = _planned(inventory, catalog, arm, kind)
            if planned is not None:
                # A pipeline pinned to the live version later shares its model.
                models.setdefault((str(planned.folder["path"]), kind), planned)
        lanes = inventory.loader.engines.lanes
    except AgentError:
        return None  # the normal start reports it
    if not models:
        return None
    return Plan(str(settings.state), origins, lanes, lazy, pack(settings), list(models.values()))


def _arms(settings: Settings, *, lazy: bool) -> Iterator[tuple[Arm, Kind]]:
    """Yield the models needed at once, each only once, the most urgent first."""
    found: dict[tuple[str, Kind], Arm] = {}
    for pipeline in settings.pipelines:
        kind = parse_source(pipeline.source, settings.base).kind
        for arm in pipeline.arms:
            found.setdefault((arm.reference, kind), arm)
        for stage in () if lazy else pipeline.stages:
            arm = parse_route(stage.model)[0]
            found.setdefault((arm.reference, "picture"), arm)
    urgency = settings.urgency
    for (_, kind), arm in sorted(found.items(), key=lambda each: -urgency[each[1].reference]):
        yield arm, kind


def _planned(inventory: Inventory, catalog: Catalog, arm: Arm, kind: Kind) -> PlannedModel | None:
    """Return how to load a model at once; None: only in the usual way."""
    loader, engines = inventory.loader, inventory.loader.engines
    waits = untried(inventory.store, arm.name) if arm.version else None
    if arm.version and waits and same_version(waits, arm.version):
        return None  # its trial is first
    try:
        folder = catalog.find(arm.name, arm.version)
        if arm.version is None and catalog.stands_in(folder) is not None:
            return None  # it is checked first
        loader.verify(folder)
        engines.budget.take(folder, live=arm.version is None)
        form = None
        # Without any forms, the model need not be read for a form's key.
        if any((inventory.store.root / FOLDER).glob("*/")):
            form = loader.prepared_form(folder, kind)
        start = engines.at_start(folder, engines.prepared_choice(folder) if form else None)
    except (AgentError, OSError):
        return None  # the problem is reported when it is loaded
    if start is None:
        return None
    place = form.folder if form is not None and start.way == "prepared" else ""
    unverified = bool(place) and engines.unverified(folder, start.choice)
    return PlannedModel(
        *(arm.name, arm.version, kind, pack(folder), pack(start.choice)),
        *(place, start.way, unverified),
    )
