"""Every engine is checked: its findings in real frames are compared with a plain session's.

An engine may compute a network wrongly with plausible scores. If there are golden outputs, they
decide. Otherwise the reference is a session that computes each operator as it is in the file: slow,
and usually correct. It is not always correct for quantized networks whose original used integers
only; so if an engine differs from it, another engine is asked, and two against one decide.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from ..core.containment import contained
from ..core.errors import AgentError, EngineError
from ..core.files import size_of
from ..core.frozen import record
from ..core.types import Kind, Tensors
from ..device.headroom import has_room
from ..inference.agreement import (
    Answer,
    InNoise,
    answer_in_noise,
    answer_of,
    compare_answers,
    compare_models,
)
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import plain_choice, readers
from ..inference.model import Model, load_model
from ..inference.preprocess.placement import ClientInputs
from ..models.manifest import ModelFolder
from .golden_check import GoldenCheck, is_held_to_golden

log = logging.getLogger(__name__)

INPUTS = 3
"""Number of live inputs on which an engine must agree."""


def open_plain(folder: ModelFolder, kind: Kind) -> Model | None:
    """Load a model in a session that optimizes nothing; if that fails, log it and return None.

    Its network has already been checked.

    Raises:
        ModelError: the model itself is not fit to run.
    """
    choice = plain_choice(folder.network.suffix)
    if choice is None:
        return None
    try:
        return load_model(folder, [choice], kind, checked=True)
    except EngineError as problem:
        log.info("model %s: nothing to compare engines with: %s", folder.manifest.id, problem)
        return None


class ReferenceCheck:
    """A session without optimization, next to an engine until both agree on a few live inputs.

    If they disagree on an input, the session answers it and all later ones until another engine
    serves. Any number of threads may call it; they take turns.
    """

    def __init__(self, plain: Model) -> None:
        """Start without any results."""
        self.why: str | None = None
        self._plain = plain
        self._agreed = self._mute = 0
        self._open = True
        self._turn = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether it has reached a decision."""
        return self.why is not None or not self._open

    @property
    def satisfied(self) -> bool:
        """Whether the engine has agreed on enough inputs."""
        return self._agreed >= INPUTS

    def answer(self, model: Model, tensors: Tensors) -> tuple[Tensors, str]:
        """Return the outputs for an input of the model, and the label of their engine.

        Raises:
            EngineError: an engine failed, possibly the reference session's.
            SampleError: the engine's outputs are not finite, or cannot be decoded.
        """
        with self._turn:
            if self._open:
                return self._beside(model, tensors)
        return model.run(tensors), model.engine.label

    def _beside(self, model: Model, tensors: Tensors) -> tuple[Tensors, str]:
        """Return the engine's outputs if they are correct, or else the session's."""
        client, counts = isinstance(tensors, ClientInputs), model.counts(tensors)
        given = model.unfolded(tensors)
        if self.why is not None:
            return self._plain.run(given), self._plain.engine.label
        # Failures are handled by `failover`; they are no evidence of wrong results.
        numbers = model.run(tensors)
        found = Answer(numbers, model.decode(numbers, given))
        try:
            with contained(model.id):
                expected = answer_of(self._plain, given)
        except AgentError as problem:
            if client:
                raise  # what the reference refuses, the engine may have made up
            # No evidence against the engine, which may be the last one left when another fails.
            self._count_mute(model, str(problem))
            return numbers, model.engine.label
        label = self._plain.engine.label
        in_noise = partial(answer_in_noise, self._plain, given)
        agreement = compare_answers(model, expected, found, in_noise)
        if not agreement.passed:
            if agreement.evidence and counts:
                self.why = f"beside {label} without optimization: {agreement.why}"
            elif not client:
                self._count_mute(model, agreement.why)
            return expected.outputs, label
        self._agreed += 1
        if self.satisfied:
            self._close()
        return numbers, model.engine.label

    def _count_mute(self, model: Model, why: str) -> None:
        """Count an input that tells nothing; a network to which all are so cannot be compared."""
        self._mute += 1
        if self._mute >= INPUTS:
            log.warning("model %s: nothing to compare engines with: %s", model.id, why)
            self._close()

    def close(self) -> None:
        """Stop answering and release the session."""
        with self._turn:
            self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._plain.close()


def attach_check(model: Model, kind: Kind) -> None:
    """Attach a check by golden outputs, or else by a second session for the first inputs."""
    if is_held_to_golden(model.folder):
        model.check = GoldenCheck()
        return
    try:
        plain = open_plain(model.folder, kind)
    except AgentError as problem:
        log.info("model %s: nothing to compare engines with: %s", model.id, problem)
        return
    if plain is not None:
        model.check = ReferenceCheck(plain)


@record(eq=False)
class Statement:
    """The answer of a session without optimization to an input."""

    tensors: Tensors
    """Inputs of the unfolded network."""
    answer: Answer
    in_noise: Callable[[], InNoise]
    label: str
    """Label of the session's engine."""


KEPT = 2
"""Answers in noise of rounding that are kept of each input."""


def state(plain: Model, tensors: Tensors) -> Statement:
    """Return a session's answer to an unfolded input, to use after the session is closed.

    Raises:
        AgentError: the session failed.
    """
    with contained(plain.id):
        kept = {name: np.array(array) for name, array in tensors.items()}
        answer, noisy = answer_of(plain, kept), answer_in_noise(plain, kept)
        # Its session is closed before they are needed.
        noisy = replace(noisy, of_rounding=list(islice(noisy.of_rounding, KEPT)))
    return Statement(kept, answer, lambda: noisy, plain.engine.label)


def why_unlike(statements: Iterable[Statement], model: Model) -> str | None:
    """Return why an engine must not serve a model, or None if it agrees with the statements."""
    proven, unsure = False, None
    for said in statements:
        try:
            with contained(model.id):
                given = answer_of(model, said.tensors)
                agreement = compare_answers(model, said.answer, given, said.in_noise)
        except AgentError as problem:
            return str(problem)
        why = f"beside {said.label} without optimization: {agreement.why}"
        if agreement.evidence and not agreement.passed:
            return why
        proven = proven or agreement.passed
        unsure = unsure if agreement.evidence else why
    return None if proven else unsure


def is_confirmed(model: Model, kind: Kind, inputs: Sequence[Tensors]) -> bool:
    """Whether a session of another engine gives the same answers for a model.

    Called if the engine differs from the reference; the session is loaded only for this.
    """
    folder = model.folder
    if not inputs or not has_room(size_of(folder.path)):
        return False
    for engine in readers(folder.network.suffix):
        if engine == model.choice.engine:
            continue
        try:
            other = load_model(folder, [EngineChoice(engine)], kind, checked=True)
        except AgentError as problem:
            log.debug("model %s: no second opinion by %s: %s", model.id, engine, problem)
            continue
        try:
            agree = all(compare_models(other, model, tensors).passed for tensors in inputs)
        except AgentError as problem:
            log.debug("model %s: no second opinion by %s: %s", model.id, engine, problem)
            continue  # outputs that cannot be compared confirm nothing
        finally:
            other.close()
        if agree:
            told = model.id, model.engine.label, other.engine.label
            log.info("model %s: %s and %s agree against the session without optimization", *told)
            return True
    return False


def why_wrong(reference: Model, model: Model, kind: Kind, inputs: Iterable[Tensors]) -> str | None:
    """Return why an engine must not serve a model, or None if it may.

    It may if it agrees with the reference on unfolded inputs, or if another engine agrees with it.
    """
    given = list(inputs)
    why = why_unlike_session(reference, model, given)
    return None if why is None or is_confirmed(model, kind, given) else why


def why_unlike_session(reference: Model, model: Model, inputs: Iterable[Tensors]) -> str | None:
    """Return how a model differs from a session of another engine, or None if it does not."""
    return why_unlike(_statements(reference, inputs), model)


def _statements(reference: Model, inputs: Iterable[Tensors]) -> Iterator[Statement]:
    for tensors in inputs:
        try:
            answer = answer_of(reference, tensors)
        except AgentError:
            continue  # no evidence about another engine
        in_noise = partial(answer_in_noise, reference, tensors)
        yield Statement(tensors, answer, in_noise, reference.engine.label)
