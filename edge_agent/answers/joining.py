"""Several rows or texts of one question: each goes through the lanes separately, then joined."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import RequestError, SampleError
from ..core.text_findings import Embeddings
from ..core.types import Findings, Outcome, RawTensors, Timing
from ..inference.model import Model
from ..models.manifest import InputSpec
from ..runtime.scheduler.requests import RequestQueue
from .errors import RefusedError

if TYPE_CHECKING:
    from .question import Question  # and NumPy with it


class OtherWindowError(RequestError):
    """The version that computes a question takes other windows than the one it was cut for."""

    def __init__(self, version: str) -> None:
        super().__init__(f"version {version} takes other windows; ask again")
        self.version = version


def _why_unsuited(cut: InputSpec, model: Model) -> RequestError | None:
    """Return why a model must not answer for a window; None: it may."""
    from ..inference.preprocess.windowing import windows_apart

    apart = windows_apart(cut, model.manifest.input)
    return OtherWindowError(model.manifest.version) if apart else None


def submit_parts(
    queue: RequestQueue[Model], question: Question, full: RefusedError
) -> list[Future[Outcome]]:
    """Submit all parts of a question to the lanes."""
    inner: list[Future[Outcome]] = []
    refuse = None if question.cut is None else partial(_why_unsuited, question.cut)
    ask = partial(queue.submit, raw=question.raw, early=question.early, refuse=refuse)
    try:
        for data, tensors in question.parts():
            inner.append(ask(data, tensors=tensors))
    except RequestError:
        for one in inner:
            one.cancel()
        raise full from None
    return inner


def joined(outcomes: list[Outcome]) -> Outcome:
    """Return the outcomes of several rows or texts as one, joined along the first axis."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    import numpy as np

    tensors = [each.findings.numbers() for each in outcomes]
    for name, array in tensors[0].items():
        if array.shape[:1] != (1,):
            raise SampleError(f"output {name} has no entry for each row; ask one at a time")
    made = {name: np.concatenate([each[name] for each in tensors]) for name in tensors[0]}
    found: Findings = RawTensors(made)
    texts = [each.findings for each in outcomes if isinstance(each.findings, Embeddings)]
    if texts:
        found = Embeddings(made["embeddings"], sum(each.tokens for each in texts))
    spent = [each.timing for each in outcomes]
    timing = Timing(
        sum(each.preprocess_ms for each in spent),
        sum(each.infer_ms for each in spent),
        sum(each.postprocess_ms for each in spent),
    )
    return replace(first, findings=found, timing=timing)
