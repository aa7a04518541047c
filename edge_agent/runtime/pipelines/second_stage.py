"""Second stages: a second model on crops of the first one's detections."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...config.settings import SecondStage
from ...core.errors import AgentError
from ...core.types import Classes, Detections, Findings, Outcome, Request, Sample, Second
from ...inference.model import Model
from ...inference.preprocess.placement import Region, outside


def concerns(stage: SecondStage, found: Detections) -> bool:
    """Whether a stage applies to any of the detections."""
    return any(not stage.labels or label in stage.labels for label in found.labels)


Seen = Callable[[SecondStage, Request, Outcome | AgentError], None]
"""Takes each question to a second model, and its answer."""


def _ignore(_stage: SecondStage, _request: Request, _answer: Outcome | AgentError) -> None:
    """See nothing."""


def add(
    outcome: Outcome,
    sample: Sample,
    first: Model,
    stages: Iterable[tuple[SecondStage, Model | str]],
    seen: Seen = _ignore,
) -> Outcome:
    """Add to an outcome of the *first* model the findings of second stages in its detections.

    *stages*: with the model of each, or why there is none. An error of one is in its `Second`.
    """
    found = outcome.findings
    if not isinstance(found, Detections):
        return outcome
    known = list(stages)
    below = {id(each) for stage, _ in known for each in stage.then}
    first_ones = [stage for stage, _ in known if id(stage) not in below]
    models = {id(stage): model for stage, model in known}
    then = _infer_all(first_ones, models, sample, found, seen)
    if not then:
        return outcome
    looked = list(_looked(first_ones, models, then))
    lost = tuple([finds for finds, failed in looked if failed])
    told = (first.folder.finds, *[finds for finds, failed in looked if not failed]) if lost else ()
    return replace(outcome, findings=_read(found, then), then=then, told=told, lost=lost)


def _looked(
    stages: Sequence[SecondStage],
    models: Mapping[int, Model | str],
    then: Mapping[str, Second],
    *,
    failed: bool = False,
) -> Iterator[tuple[Sequence[str], bool]]:
    """Yield what each stage finds, and whether it has *failed*, or one above it has."""
    for stage in stages:
        model, second = models.get(id(stage)), then.get(stage.name)
        fails = failed or (second is not None and second.error is not None)
        if fails or isinstance(model, Model):
            yield (model.folder.finds if isinstance(model, Model) else ()), fails
        below = {} if second is None else second.then
        yield from _looked(stage.then, models, below, failed=fails)


def whole(then: Mapping[str, Second]) -> Iterator[Second]:
    """Yield the findings of all stages, and of those below them."""
    for second in then.values():
        yield second
        yield from whole(second.then)


def _read(first: Detections, then: Mapping[str, Second]) -> Detections:
    """Return the detections with the text that second stages have read in them."""
    texts = [""] * len(first)
    for second in then.values():
        for place, found in enumerate(second.found):
            if isinstance(found, Detections) and found.texts:
                texts[place] = found.texts[0]
    return replace(first, texts=tuple(texts)) if any(texts) else first


def _infer_all(
    stages: Sequence[SecondStage],
    models: Mapping[int, Model | str],
    sample: Sample,
    first: Detections,
    seen: Seen,
) -> dict[str, Second]:
    """Run each stage on the detections, then its descendants."""
    then: dict[str, Second] = {}
    for stage in stages:
        model = models.get(id(stage))
        if isinstance(model, str):
            failed = [i for i, crop in enumerate(regions(stage, first)) if crop is not None]
            if failed:
                then[stage.name] = Second(
                    (None,) * len(first), 0, 0, 0.0, error=model, failed=frozenset(failed)
                )
        if not isinstance(model, Model):
            continue
        second = infer(stage, model, sample, first, seen)
        found = [each for each in second.found if isinstance(each, Detections)]
        if stage.then and found:
            boxes = np.concatenate([each.boxes for each in found])
            scores = np.concatenate([each.scores for each in found])
            labels = tuple([label for each in found for label in each.labels])
            inner = _infer_all(stage.then, models, sample, Detections(boxes, scores, labels), seen)
            second = replace(second, then=inner)
        then[stage.name] = second
    return then


def labels_found(count: int, then: Mapping[str, Second]) -> list[dict[str, frozenset[str] | None]]:
    """Return the labels found in each of *count* detections, by stage; None: it has failed there.

    Those found below a stage are among its own.
    """
    labels: list[dict[str, frozenset[str] | None]] = [{} for _ in range(count)]
    for name, second in then.items():
        boxes = sum(len(found) for found in second.found if isinstance(found, Detections))
        below = iter(labels_found(boxes, second.then))
        for index, found in enumerate(second.found):
            parts: list[frozenset[str] | None] = [None] if index in second.failed else []
            if isinstance(found, Detections):
                parts += [frozenset(found.labels)]
                parts += [part for _ in found.labels for part in next(below).values()]
            elif isinstance(found, Classes):
                parts += [frozenset(found.labels[:1])]  # the best
            known = [part for part in parts if part is not None]
            complete = len(known) == len(parts)
            labels[index][name] = frozenset[str]().union(*known) if complete else None
    return labels


def infer(
    stage: SecondStage, model: Model, sample: Sample, first: Detections, seen: Seen = _ignore
) -> Second:
    """Infer the detections that the stage applies to; their crops share batches.

    Errors of the model on crops of a frame are counted as one of its own; the first one is told.
    """
    begin = time.perf_counter()
    # Detections outside of the picture have no pixels.
    crops = [
        None if crop is None or outside(sample.data, crop) else crop
        for crop in regions(stage, first)
    ]
    asked = [Request(sample, stage.threshold, crop) for crop in crops if crop is not None]
    answers = model.infer_all(asked)
    for request, each in zip(asked, answers, strict=True):
        seen(stage, request, each)
    waiting = iter(answers)
    found: list[Findings | None] = []
    together, error, failed = 1, None, set[int]()
    for index, crop in enumerate(crops):
        answer = next(waiting) if crop is not None else None
        if isinstance(answer, AgentError):
            failed.add(index)
            answer, error = None, error or str(answer)
        if answer is not None:
            together = max(together, answer.timing.together)
        found.append(None if answer is None else answer.findings)
    model.stats.errors += bool(failed)  # by frame, as of a first stage
    took_ms = (time.perf_counter() - begin) * 1e3
    return Second(
        *(tuple(found), len(asked), together, took_ms),
        by=model,
        error=error,
        failed=frozenset(failed),
    )


def regions(stage: SecondStage, first: Detections) -> Sequence[Region | None]:
    """Return the crop of each detection, or None if it is skipped."""
    left = stage.limit
    found: list[Region | None] = []
    for label, (x1, y1, x2, y2) in zip(first.labels, first.boxes.tolist(), strict=True):
        other = bool(stage.labels) and label not in stage.labels
        if left == 0 or other or x2 - x1 < 1 or y2 - y1 < 1:
            found.append(None)
            continue
        left -= 1
        mx, my = stage.margin * (x2 - x1), stage.margin * (y2 - y1)
        # All pixels where the box begins, none that it barely touches: small objects are sensitive
        # to a missing line.
        corner = (math.floor(x1 - mx), math.floor(y1 - my))
        found.append((*corner, round(x2 + mx), round(y2 + my)))
    return found
