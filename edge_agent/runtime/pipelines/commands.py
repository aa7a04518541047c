"""The commands about pipelines: set, snapshot. Section 3 of the interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from ...config.settable import SETTABLE, read_bare
from ...core.errors import RequestError
from ...core.frozen import record
from ...core.parameters import CLEARED, NAMED, Flag, Text, clearable, parse
from ...models.decoders import threshold_troubles
from ...mqtt.requests import Command
from .device_mode import DEVICE, modes_of
from .pipeline import Pipeline
from .runner import Runner


@record
class Set:
    """Change a pipeline until the next start, or with `persist` permanently; or the mode."""

    pipeline: Text
    enabled: Annotated[bool, clearable(SETTABLE["enabled"])] | None = None
    threshold: Annotated[float, clearable(SETTABLE["threshold"])] | None = None
    rate: Annotated[float, clearable(SETTABLE["rate"])] | None = None
    labels: Annotated[tuple[str, ...], clearable(SETTABLE["labels"])] | None = None
    thresholds: Annotated[Mapping[str, float], clearable(SETTABLE["thresholds"])] | None = None
    min_box: Annotated[tuple[int, ...], clearable(SETTABLE["min_box"])] | None = None
    masks: Annotated[tuple[Any, ...], clearable(SETTABLE["masks"])] | None = None
    mode: Annotated[str, clearable(NAMED)] | None = None
    """Of the device, in place of a pipeline; always permanent."""
    persist: Flag = False

    @property
    def changes(self) -> dict[str, Any]:
        """The keys to change, with their values."""
        given = {key: getattr(self, key) for key in SETTABLE}
        return {key: value for key, value in given.items() if value not in (None, CLEARED)}


@record
class Snapshot:
    """Request a picture of a pipeline's next frame."""

    pipeline: Text


class PipelineCommands:
    """The commands about pipelines, carried out by the thread of requests."""

    def __init__(self, runner: Runner, changed: Callable[[], object]) -> None:
        """Set up; *changed* is called after something was set."""
        self._runner = runner
        self._changed = changed
        self.commands: tuple[Command[Any], ...] = (
            Command("set", Set, self.set),
            Command("snapshot", Snapshot, self.snapshot, changes=False),
        )

    def set(self, request: Set) -> Mapping[str, Any]:
        """Change a pipeline while it runs; return its settable keys with their values."""
        if request.pipeline == DEVICE or request.mode is not None:
            return self._set_mode(request)
        pipeline = find_pipeline(self._runner, request.pipeline)
        changes = request.changes
        back = [key for key in SETTABLE if getattr(request, key) is CLEARED]
        if not changes and not back:
            raise RequestError(f"nothing to set: give {', '.join(SETTABLE)}")
        given = changes.get("threshold"), changes.get("thresholds", {})
        for serving in pipeline.servings:
            if serving.model is None:
                continue
            for key, trouble in threshold_troubles(serving.model.manifest.task, *given):
                raise RequestError(f"{key}: {trouble}")
        may = self._runner.settings.remote.may
        for key in (*changes, *back):
            if key not in may:
                raise RequestError(
                    f"{key}: may not be set from afar; [remote] may does not name it"
                )
        overrides = self._runner.overrides
        known = set(pipeline.doubts())
        try:
            if back:
                overrides.take_back(pipeline.name, back, kept=request.persist)
                held = overrides.applied(overrides.given(pipeline.settings))
                changes |= {key: getattr(held, key) for key in back}
            pipeline.apply(replace(pipeline.settings, **changes))
            overrides.set_until_restart(
                pipeline.name, {key: changes[key] for key in changes if key not in back}
            )
            if request.persist and changes.keys() - set(back):
                overrides.persist(
                    pipeline.name, {key: changes[key] for key in changes if key not in back}
                )
        finally:
            self._changed()
        done = {"pipeline": pipeline.name, **states(pipeline)}
        # Earlier doubts about others than these keys have already been logged.
        own = tuple(changes)
        doubts = [line for line in pipeline.doubts() if line not in known or line.startswith(own)]
        return {**done, "warnings": doubts} if doubts else done

    def _set_mode(self, request: Set) -> Mapping[str, Any]:
        """Set the mode of the device; return it."""
        others = [key for key in SETTABLE if getattr(request, key) is not None]
        if request.pipeline != DEVICE or request.mode is None or others:
            raise RequestError(f"mode is what can be set of {DEVICE}, and of nothing else")
        mode = "null" if request.mode is CLEARED else request.mode
        warnings = self.set_bare(DEVICE, "mode", mode.encode())
        return {"pipeline": DEVICE, "mode": self._runner.common.mode.current, **warnings}

    def set_bare(self, name: str, key: str, payload: bytes) -> Mapping[str, Any]:
        """Set one key of a pipeline, or of the device, to a bare value."""
        if name == DEVICE:
            mode = self._runner.common.mode
            kept = mode.set_bare(key, payload)
            self._changed()
            known = modes_of(self._runner.settings)
            doubts = [] if kept else ["until the restart only: mode.json cannot be written"]
            if mode.current not in {None, *known}:
                doubts.append(f"no rule names this mode; there are {', '.join(known) or 'none'}")
            return {"warnings": doubts} if doubts else {}
        return self.set(parse(Set, {"pipeline": name, key: read_bare(key, payload)}))

    def snapshot(self, request: Snapshot) -> Mapping[str, Any]:
        """Request a picture of a pipeline's next frame; return the topic for it."""
        pipeline = find_pipeline(self._runner, request.pipeline)
        if pipeline.spec.kind != "picture":
            raise RequestError(
                f"pipeline: {pipeline.name} reads a signal, there is no picture of it"
            )
        if not pipeline.settings.enabled:
            raise RequestError(
                f"pipeline: {pipeline.name} is switched off, no picture comes; set its `enabled`"
            )
        if pipeline.state == "ended":
            raise RequestError(
                f"pipeline: the source of {pipeline.name} has ended, no picture comes"
            )
        if pipeline.state == "lost":
            raise RequestError(
                f"pipeline: the source of {pipeline.name} is lost: {pipeline.error}; "
                "ask again when it runs"
            )
        problems = [serving.problem for serving in pipeline.servings if serving.model is None]
        if problems and len(problems) == len(pipeline.servings) and all(problems):
            raise RequestError(f"pipeline: {pipeline.name} has no model: {problems[0]}")
        pipeline.snapshots.request()
        return {"topic": self._runner.topics.snapshot(pipeline.name)}


def find_pipeline(runner: Runner, name: str) -> Pipeline:
    """Find the pipeline of a request.

    Raises:
        RequestError: no pipeline has this name.
    """
    pipelines = runner.pipelines
    if name not in pipelines:
        from ...core.schema import nearest  # rarely needed

        raise RequestError(f"pipeline: there is no {name!r}{nearest(name, pipelines)}")
    return pipelines[name]


def states(pipeline: Pipeline) -> dict[str, Any]:
    """Return the settable keys of a pipeline with their current values, for JSON."""
    settings = pipeline.settings
    return {
        "enabled": settings.enabled,
        "threshold": pipeline.lowest,
        "rate": pipeline.rate,
        "labels": list(settings.labels),
        "thresholds": dict(settings.thresholds),
        "min_box": list(settings.min_box),
        "masks": [[list(point) for point in polygon] for polygon in settings.masks],
    }
