"""Checks a serving model against its golden outputs before its second result."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core.errors import EngineError, ModelError, SampleError

if TYPE_CHECKING:
    from ..core.types import Tensors
    from ..inference.model import Model
    from ..models.manifest import ModelFolder


def is_held_to_golden(folder: ModelFolder) -> bool:
    """Whether a model has golden outputs that decide whether it may serve."""
    return folder.manifest.trial.golden is not False and folder.golden.is_file()


def why_not_golden(model: Model) -> str | None:
    """Return how a model differs from its golden outputs; None: it does not.

    Raises:
        ModelError: the golden file is damaged.
        EngineError: the engine failed on it.
    """
    from ..inference.golden import compare_golden  # not needed for the first result

    try:
        agreement = compare_golden(model)
    except SampleError as problem:
        return f"golden: {problem}"
    return None if agreement is None or agreement.passed else f"golden: {agreement.why}"


class GoldenCheck:
    """Answers for a model until it has produced its golden outputs, after its first result.

    Any number of threads may call it; one of them runs the golden inputs while the others wait.
    """

    def __init__(self) -> None:
        """Set up without comparing anything."""
        self.why: str | None = None
        self.satisfied = False
        self._answered = False
        self._damaged: ModelError | None = None
        """The error in the golden file."""
        self._turn = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether the golden outputs have been compared."""
        return self.satisfied or self.why is not None

    def answer(self, model: Model, tensors: Tensors) -> tuple[Tensors, str]:
        """Return the outputs for an input, and the label of the engine that computed them.

        Raises:
            EngineError: the engine failed, or does not produce the golden outputs.
            SampleError: the engine's outputs are not finite.
        """
        with self._turn:
            first, self._answered = not self._answered, True
        why = None
        if not first:
            with suppress(ModelError):  # reported where the engine is checked, for health
                why = self.compare(model)
        if why is not None:
            raise EngineError(f"{model.id}: {model.engine.label} computes it wrongly: {why}")
        return model.run(tensors), model.engine.label

    def compare(self, model: Model) -> str | None:
        """Compare once; return why the engine must not serve, or None: its outputs are correct.

        Raises:
            EngineError: the engine failed.
            ModelError: the golden file is damaged.
        """
        with self._turn:
            if self._damaged is not None:
                raise self._damaged
            if not self.settled:
                try:
                    self.why = why_not_golden(model)
                except ModelError as problem:
                    self._damaged = problem
                    raise
                self.satisfied = self.why is None
            return self.why

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
