"""Settings without effect because of what a source shows, or because it reads a topic."""

from __future__ import annotations

from collections.abc import Iterator

from .rule_checks import LEAVES_NOTHING
from .rules import CombinedRule, Rule
from .settings import Pipeline, Settings
from .shapes import apart
from .surroundings import Surroundings
from .templates import filled


def lint_areas(pipeline: Pipeline, size: tuple[int, int] | None) -> Iterator[str]:
    """Yield a line for each zone and line outside `roi`, and for a `min_box` that nothing has."""
    x1, y1, x2, y2 = pipeline.roi
    where = f"roi {[x1, y1, x2, y2]}" if any(pipeline.roi) else ""
    if size is not None:
        width, height = size
        if not where:
            x2, y2 = size
        x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
        if x2 <= x1 or y2 <= y1:
            return  # nothing can be found, which is an error of each frame
        seen = (x1 / width, y1 / height, x2 / width, y2 / height)
        at = f"lies wholly outside {where}, as pictures are {width}x{height}; move it, or widen roi"
        for zone in pipeline.zones if where else ():
            if apart(zone.polygon, seen, closed=True):
                yield f"zones[{zone.name}] never has anything in it: {at}"
        for line in pipeline.lines if where else ():
            if apart(line.points, seen, closed=False):
                yield f"lines[{line.name}] is never crossed: {at}"
    elif not where:
        return
    wide, high = pipeline.min_box
    if wide > x2 - x1 or high > y2 - y1:
        room = where or "the picture"
        yield (
            f"min_box: {[wide, high]} {LEAVES_NOTHING}: boxes within {room} are at most "
            f"{x2 - x1}x{y2 - y1}; lower it"
        )


def lint_publish(rule: Rule | CombinedRule, pipeline: str, around: Surroundings) -> Iterator[str]:
    """Yield a line for each action that would publish on a topic that a source reads.

    Args:
        rule: the rule.
        pipeline: the pipeline on whose topic its events are.
        around: where it runs.
    """
    values = {"rule": rule.name, "pipeline": pipeline, "device": around.device}
    for place, action in enumerate(rule.do):
        if action.publish is not None and around.reads(filled(action.publish, values)):
            yield (
                f"rules[{rule.name}].do[{place}].publish: is never sent: a source of this device "
                f"reads {action.publish!r}, so it might loop forever; name another topic"
            )


def lint_combined(settings: Settings, around: Surroundings) -> Iterator[tuple[str, str]]:
    """Yield the same of rules over several pipelines: that of the rule's topic, and a line."""
    for rule in settings.rules:
        for line in lint_publish(rule, rule.pipeline, around):
            yield rule.pipeline, line
