"""No engine serves on trust: what it finds in real frames is compared with a plain session's.

An engine may compute a network wrongly, with scores that look well. A session that computes each
operator as it stands in the file is slow, and right.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from ..core.containment import contained
from ..core.errors import AgentError, EngineError
from ..core.types import Classes, Detections, Findings, Kind, Tensors
from ..models.manifest import ModelFolder
from .compare import Agreement, compare_findings, cosine
from .engines.registry import plain_choice
from .model import Model, default_threshold, load_model

log = logging.getLogger(__name__)

DOUBT = 0.05
"""How far above the threshold of a score a box is in doubt, and how far two best classes may be
apart: INT8 differs by quantisation steps from engine to engine."""
LIKENESS = 0.9
"""Least cosine of two outputs, where nothing is found that could be compared. A broken kernel gives
no likeness at all (openvino#37446: -0.08)."""


def open_plain(folder: ModelFolder, kind: Kind) -> Model | None:
    """Load a model in a session that optimises nothing; None where there is none for it.

    Args:
        folder: of the model; its network has been checked already.
        kind: of sample that it will be given.

    Raises:
        ModelError: the model itself is not fit to run.

    """
    choice = plain_choice(folder.network.suffix)
    if choice is None:
        return None
    try:
        return load_model(folder, [choice], kind, checked=True)[0]
    except EngineError as problem:
        log.info("model %s: nothing to compare engines with: %s", folder.manifest.id, problem)
        return None


def compare_models(reference: Model, model: Model, tensors: Tensors) -> Agreement:
    """Compare what a model finds on two engines in one input.

    Args:
        reference: on the engine that is believed.
        model: on the other.
        tensors: inputs of the network, unfolded.

    Raises:
        AgentError: one of them fails.

    """
    with contained(model.id):
        outputs = reference.raw(tensors)
        return _compare(model, tensors, outputs, reference.decode(outputs, tensors))


def _compare(model: Model, tensors: Tensors, outputs: Tensors, expected: Findings) -> Agreement:
    """Compare what a model finds with what is expected; *outputs* are those it was found in."""
    numbers = model.raw(tensors)
    found = model.decode(numbers, tensors)
    agreement = compare_findings(
        expected,
        found,
        model.manifest.trial.tolerance,
        doubt=default_threshold(model.folder) + DOUBT,
    )
    if not agreement.passed and _tie(expected, found):
        return Agreement(True, f"{agreement.why}, as good as equal")
    if agreement.passed and _nothing(expected) and _nothing(found):
        return _alike(outputs, numbers)
    return agreement


def why_wrong(reference: Model, model: Model, inputs: Iterable[Tensors]) -> str | None:
    """Return why an engine must not serve a model; None: it agrees with the reference.

    Args:
        reference: see `open_plain`.
        model: on the engine in question.
        inputs: of the network, unfolded, made of real frames.

    """
    for tensors in inputs:
        try:
            outputs = reference.raw(tensors)
            expected = reference.decode(outputs, tensors)
        except AgentError:
            continue  # says nothing about the other engine
        try:
            with contained(model.id):
                agreement = _compare(model, tensors, outputs, expected)
        except AgentError as problem:
            return str(problem)
        if not agreement.passed:
            return f"beside {reference.engine.label} without optimisation: {agreement.why}"
    return None


def compare_numbers(reference: Model, model: Model, tensors: Tensors) -> Agreement:
    """Compare the outputs of a model on two engines, whatever they mean: for inputs of noise.

    Args:
        reference: on the engine that is believed.
        model: on the other.
        tensors: inputs of the network, unfolded.

    Raises:
        AgentError: one of them fails.

    """
    agreement = _alike(reference.raw(tensors), model.raw(tensors))
    if agreement.passed:
        return agreement
    pair = f"{model.engine.label} and {reference.engine.label} without optimisation disagree"
    return Agreement(False, f"{pair}: {agreement.why}")


def _tie(expected: Findings, found: Findings) -> bool:
    """Whether two classes are best that are as likely."""
    if not isinstance(expected, Classes) or not isinstance(found, Classes) or not found.labels:
        return False
    scores = dict(zip(expected.labels, expected.scores, strict=True))
    return scores.get(found.labels[0], -1.0) >= float(expected.scores[0]) - DOUBT


def _nothing(findings: Findings) -> bool:
    return isinstance(findings, Detections) and not len(findings)


def _alike(expected: Tensors, found: Tensors) -> Agreement:
    for name, one in expected.items():
        other = found.get(name)
        if other is None or not np.issubdtype(one.dtype, np.number):
            continue
        if one.size != other.size:
            return Agreement(False, f"output {name}: {one.size} numbers and {other.size}")
        likeness = cosine(one, other)
        if likeness < LIKENESS:
            return Agreement(False, f"output {name}: cosine {likeness:.2f}, {LIKENESS} wanted")
    return Agreement(True, "outputs are alike")
