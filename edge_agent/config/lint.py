"""Settings that have no effect with the models they refer to.

They are warnings: the agent runs anyway and logs them; `check` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..models.decoders import BOXED, WITHOUT_THRESHOLD
from ..models.idle_keys import doubtful_keys
from ..models.manifest import ModelFolder
from .settings import Pipeline, SecondStage, Settings
from .surroundings import Surroundings


def surroundings(settings: Settings, size: tuple[int, int] | None = None) -> Surroundings:
    """Return what settings say: the topics of sources that are not switched off."""
    from ..sources.spec import parse_source

    on = [each for each in settings.pipelines if each.enabled]
    topics = {parse_source(each.source, settings.base).topic for each in on}
    return Surroundings(size=size, reads=topics.__contains__, device=settings.device_id)


def lint_settings(settings: Settings) -> Iterator[str]:
    """Yield a line for each pipeline setting that another setting leaves without effect."""
    if settings.rules:
        from .reach_checks import lint_combined

        for name, line in lint_combined(settings, surroundings(settings)):
            yield f"pipeline {name}: {line}"
    if settings.evidence.keep_mb:
        return
    for pipeline in settings.pipelines:
        for rule in pipeline.rules:
            if rule.clip:
                why = "evidence.keep_mb is 0; set it to the space for clips"
                yield f"pipeline {pipeline.name}: rules[{rule.name}].clip keeps nothing: {why}"


def lint_pipeline(
    pipeline: Pipeline,
    firsts: Sequence[ModelFolder | None],
    seconds: Sequence[ModelFolder | None],
    around: Surroundings | None = None,
) -> list[str]:
    """List a pipeline's settings without effect, and routes that mix tasks.

    *around*: where it runs; None: nothing is known of it.
    """
    known = [folder for folder in firsts if folder is not None]
    lines = []
    tasks = dict.fromkeys(folder.manifest.task for folder in known)
    if len(tasks) > 1:
        each = ", ".join(f"{folder.manifest.id} is of {folder.manifest.task}" for folder in known)
        lines.append(
            f"model = {pipeline.model!r} splits frames between different tasks ({each}): its "
            "results change their kind from frame to frame; split it into several pipelines"
        )
    if len(known) > 1:
        from ..inference.preprocess.windowing import split_troubles

        lines += split_troubles([folder.manifest for folder in known])
    lines += [
        f"{folder.manifest.id}: {line}"
        for folder in (*known, *seconds)
        if folder is not None
        for line in doubtful_keys(folder.manifest)
    ]
    if pipeline.threshold is not None and known and WITHOUT_THRESHOLD.issuperset(tasks):
        lines.append(_without("threshold", known[0]))
    if pipeline.snapshot and known and all(one.manifest.input.is_signal for one in known):
        lines.append(f"snapshot has no effect: {known[0].manifest.id} is for sensors")
    if pipeline.labels or pipeline.thresholds or any(pipeline.min_box):
        from .rule_checks import lint_filters

        lines += lint_filters(pipeline, firsts)
    if pipeline.needs_rule_engine:
        from .rule_checks import lint_rules

        lines += lint_rules(pipeline, firsts, seconds)
    whole = len(known) == len(firsts)
    if (any(pipeline.roi) or any(pipeline.min_box)) and (not whole or BOXED & tasks.keys()):
        from .reach_checks import lint_areas

        lines += lint_areas(pipeline, None if around is None else around.size)
    if around is not None and pipeline.rules:
        from .reach_checks import lint_publish

        for rule in pipeline.rules:
            lines += lint_publish(rule, pipeline.name, around)
    lines += _lint_stages(pipeline.then, iter(seconds), known if whole else ())
    return lines


def _lint_stages(
    stages: Sequence[SecondStage],
    folders: Iterator[ModelFolder | None],
    firsts: Sequence[ModelFolder],
    above: str = "",
) -> Iterator[str]:
    """Yield the keys of second stages that have no effect; *firsts* find their objects."""
    for stage in stages:
        second = next(folders)
        subject = f"{above}then[{stage.name}]"
        aimless = second is not None and second.manifest.task in WITHOUT_THRESHOLD
        if second is not None and aimless and stage.threshold is not None:
            yield _without(f"{subject}.threshold", second)
        if second is not None and second.manifest.output.smooth is not None:
            yield (
                f"{subject}: output.smooth of {second.manifest.id} has no effect: what it looks at "
                "is another object from frame to frame; rules have `frames`"
            )
        if firsts:
            yield from (f"{subject}{line}" for line in _idle(stage, firsts))
        below = () if second is None else (second,)
        yield from _lint_stages(stage.then, folders, below, f"{subject}.")


def _without(key: str, folder: ModelFolder) -> str:
    return (
        f"{key} has no effect: {folder.manifest.id} is of task {folder.manifest.task}, whose "
        "numbers are all published"
    )


def _idle(stage: SecondStage, firsts: Sequence[ModelFolder]) -> Iterator[str]:
    """Yield why a second stage never runs, or never for some of its labels."""
    from .rule_checks import NEVER_ACTS, few

    finders = [folder for folder in firsts if folder.manifest.task in BOXED]
    names = ", ".join(folder.manifest.id for folder in finders or firsts)
    if not finders:
        task = firsts[0].manifest.task
        yield f": {NEVER_ACTS} {names}: it looks at detections, {names} is of task {task}"
        return
    if not all(folder.finds for folder in finders):
        return  # classes without names are labeled by number, however many there are
    found = {label for folder in finders for label in folder.finds}
    absent = [label for label in stage.labels if label not in found]
    if not absent:
        return
    words = ", ".join(repr(label) for label in absent)
    if len(absent) == len(stage.labels):
        yield f".labels: {NEVER_ACTS} {names}: {words} is not among what it finds ({few(found)})"
    else:
        yield f".labels: {words} is not among what {names} finds ({few(found)})"
