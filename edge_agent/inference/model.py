"""A model as one value: manifest, engine, preprocessing, and decoder that fit each other.

Independent of pipelines, the broker, and where the model came from.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..core.containment import contained, converted
from ..core.errors import AgentError, EngineError, ModelError, SampleError
from ..core.flight_recorder import call_target, recorder
from ..core.types import (
    Array,
    Findings,
    Kind,
    Outcome,
    RawTensors,
    Request,
    Sample,
    State,
    Tensors,
    Timing,
)
from ..models.decoders import BOXED
from ..models.manifest import MANIFEST, Manifest, ModelFolder
from .decode.decoder import Decoder
from .engines.engine import Engine, EngineChoice, check_inputs
from .engines.registry import engine_words, open_engine
from .fit import fit
from .preprocess.inputs import constants, fixed_shapes, result_outputs
from .preprocess.placement import ClientInputs, PreparedSample, Region, cut, like
from .preprocess.preprocessor import Preprocessor
from .statistics import Cost, Statistics

if TYPE_CHECKING:
    from .preprocess.windowing import Windower

log = logging.getLogger(__name__)


class BatchRunner(Protocol):
    """Runs several samples at a time; see `batching`."""

    def infer_all(self, requests: Sequence[Request]) -> list[Outcome | AgentError]:
        """Return for each request the result of `Model.infer`, or the error it would raise."""

    def close(self) -> None:
        """Release resources other than the model's engine."""


class OutputCheck(Protocol):
    """Answers for an engine until it is known to compute its model correctly."""

    why: str | None
    """Why the engine must not serve; None: no reason so far."""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to check."""

    @property
    def satisfied(self) -> bool:
        """Whether the engine has agreed on as many inputs as it must."""

    def answer(self, model: Model, tensors: Tensors) -> tuple[Tensors, str]:
        """Return the outputs for an input of the model, and the label of the engine that made them.

        Raises:
            EngineError: the engine or the reference session failed, or the engine must not serve.
            SampleError: the engine's outputs are not finite, or cannot be decoded.
        """

    def close(self) -> None:
        """Stop answering; the engine answers instead."""


class Model:
    """A loaded model. `infer` may be called by as many threads at a time as it was opened for."""

    def __init__(
        self,
        folder: ModelFolder,
        choice: EngineChoice,
        engine: Engine,
        prepare: Preprocessor,
        decode: Decoder,
    ) -> None:
        self.folder = folder
        self.choice = choice
        self.engine = engine
        self.users = 0
        """Frames being inferred with it; counted by the board."""
        self.stats = Statistics()
        self.last: Tensors | None = None
        """Inputs of the last inference; once it has had samples, those of the last sample."""
        self.batch: BatchRunner | None = None
        """Runs several samples at a time; None: they go one by one."""
        self.cost = Cost()
        """Lane time per frame; measured by the board."""
        self.together = 1
        """Most frames, from any pipelines, that are inferred together."""
        self.loaded_quickly = False
        """Whether it was loaded the quick way, and its permanent engine is still to be chosen."""
        self.is_reference = False
        """Whether it is a session without optimization, used first because memory has no room for
        it beside the engine that will be compared with it."""
        self.check: OutputCheck | None = None
        """Answers until the engine is known to be correct; None: it is, or cannot be compared."""
        self._prepare = prepare
        self._decode = decode
        self.threshold = default_threshold(folder)
        """Lowest score of a result if a request sets none."""

    @property
    def manifest(self) -> Manifest:
        return self.folder.manifest

    @property
    def id(self) -> str:
        return self.folder.manifest.id

    @property
    def first_at(self) -> float | None:
        """Monotonic time when its first inference on a frame ended; None: there was none."""
        return self.stats.first_at

    @cached_property
    def place(self) -> str:
        """What the flight recorder notes as the target of a call."""
        choice = self.choice
        return call_target(self.id, choice.engine, choice.device, str(self.folder.network))

    def windower(self, columns: tuple[str, ...]) -> Windower:
        """Return a windower for a signal whose channels have these names.

        Raises:
            ModelError: the signal lacks a channel that the model takes.
        """
        from .preprocess.windowing import Windower  # not needed for pictures

        return Windower(self.manifest.input, columns)

    @property
    def in_order(self) -> bool:
        """Whether each window needs the state left by the one before: one at a time, in order."""
        return bool(self.manifest.input.state)

    def infer(
        self,
        sample: Sample,
        *,
        threshold: float | None = None,
        region: Region | None = None,
        state: State | None = None,
    ) -> Outcome:
        """Run the model on *sample*; findings are in pixels of the frame, not of the region.

        Raises:
            SampleError: the sample does not fit, or the outputs are not finite.
            EngineError: the engine failed.
        """
        return self._infer(Request(sample, threshold, region, state=state))

    def _infer(self, request: Request) -> Outcome:
        if self.in_order and request.state is not None:
            return self._infer_on(request, request.state)
        return self._infer_one(request, self.prepare(request))

    def _infer_on(self, request: Request, state: State) -> Outcome:
        """Infer a window with the state from the previous one."""
        sample, before = request.sample, state.tensors
        if state.of != self.id or not sample.follows or sample.seq != state.seq + 1:
            before = {}
        # If this one fails, the next starts without state.
        state.tensors, state.of, state.seq = {}, self.id, sample.seq
        prepared = self.prepare(request)
        kind = ClientInputs if request.foreign else dict
        prepared = replace(prepared, tensors=kind({**prepared.tensors, **before}))
        left: dict[str, Array] = {}
        outcome = self._infer_one(request, prepared, left)
        state.tensors = left
        return outcome

    def _infer_one(
        self, request: Request, prepared: PreparedSample, left: dict[str, Array] | None = None
    ) -> Outcome:
        """Run and decode one sample; *left* receives the network's state for the next one."""
        start = time.perf_counter()
        check, by = self.check, self.engine.label
        try:
            if check is None:
                outputs: Tensors = self.run(prepared.tensors)
            else:
                outputs, by = check.answer(self, prepared.tensors)
        except (EngineError, SampleError) as problem:
            self.stats.add_failure(problem, request)
            raise
        took = (time.perf_counter() - start) * 1e3
        if left is not None:
            states = self.manifest.input.state
            # Copies: an engine may reuse the memory.
            left.update({name: np.array(outputs[out]) for name, out in states.items()})
        return self.conclude(request, prepared, outputs, took, by=by)

    def counts(self, inputs: Tensors) -> bool:
        """Whether engines may be compared on inputs: on those of clients if there are no others."""
        others = self.last is not None and not isinstance(self.last, ClientInputs)
        return not (others and isinstance(inputs, ClientInputs))

    def prepare(self, request: Request) -> PreparedSample:
        """Make the network's inputs from a sample.

        Raises:
            SampleError: the sample does not fit.
        """
        sample, early, region = request.sample, request.sample.early, request.region
        if request.tensors is not None:
            found = self._given(request.tensors)
        elif isinstance(early, PreparedSample) and (early.by, early.region) == (self, region):
            found = early
        else:
            live = sample.file is None and not request.foreign
            found = self.prepare_data(sample.data, region, stream=live)
        return replace(found, tensors=ClientInputs(found.tensors)) if request.foreign else found

    def _given(self, tensors: Tensors) -> PreparedSample:
        """Accept ready inputs of the network from outside; constants may be left out."""
        filled = {**constants(self.manifest.input, self.engine.inputs), **tensors}
        try:
            check_inputs(self.engine.inputs, filled)
        except EngineError as problem:
            raise SampleError(str(problem)) from None
        for name, array in tensors.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise SampleError(f"input {name}: holds values that are not finite")
        return PreparedSample(self.ready(filled), None, 0, 0, 0.0, self)

    def prepare_data(
        self, data: Array, region: Region | None = None, *, stream: bool = False
    ) -> PreparedSample:
        """Make the network's inputs from a picture or window; see `prepare` and `Preprocessor`.

        Raises:
            SampleError: the sample does not fit.
        """
        start = time.perf_counter()
        try:
            seen, dx, dy = (data, 0, 0) if region is None else cut(data, region)
            tensors, placement = self._prepare(seen, stream=stream)
        except AgentError:
            raise
        except Exception as problem:
            raise converted(problem, f"{self.id}: preparing its input", SampleError) from problem
        took = (time.perf_counter() - start) * 1e3
        size = (0, 0) if placement is None else data.shape[1::-1]
        return PreparedSample(tensors, placement, dx, dy, took, self, region, size)

    def conclude(
        self,
        request: Request,
        prepared: PreparedSample,
        outputs: Tensors,
        infer_ms: float,
        together: int = 1,
        by: str | None = None,
    ) -> Outcome:
        """Make a result from the network's outputs for one sample, and count it.

        *infer_ms* is for all samples inferred together; *by* is the label of another engine used.

        Raises:
            SampleError: the outputs are not finite.
        """
        start = time.perf_counter()
        threshold = self.threshold if request.threshold is None else request.threshold
        # For anomalies the threshold itself decides, so nothing weaker is wanted.
        if request.least is not None and self.manifest.task != "anomaly":
            threshold = min(threshold, request.least)
        try:
            raw = RawTensors(outputs) if request.raw else None
            found: Findings = raw or self._decode(outputs, prepared.tensors, threshold)
            decoded = found
            if prepared.placement is not None:
                found = found.moved(prepared)
            self.stats.look(decoded, found)
            if self.stats.unseen and decoded.best_score == 0:
                every = partial(self._decode, outputs, prepared.tensors, 0.0)
                self.stats.look_at_all(every, outputs, self.folder)
            self.stats.listen(decoded, partial(_thumbnail, request, prepared), outputs, self.folder)
            # Decoders check what they read; JSON has no infinity.
            if not found.finite:
                raise SampleError("outputs: the decoded values are not finite")
        except AgentError as problem:
            self.stats.add_failure(problem, request)
            raise
        except Exception as problem:
            failure = converted(problem, f"{self.id}: decoding its outputs", SampleError)
            self.stats.add_failure(failure, request)
            raise failure from problem
        done = time.perf_counter()
        self.stats.add(infer_ms / together)
        if self.counts(prepared.tensors):
            self.last = prepared.tensors
        return Outcome(
            self.id,
            self.engine.label if by is None else by,
            found,
            Timing(prepared.took_ms, infer_ms, (done - start) * 1e3, together),
        )

    def infer_all(self, requests: Sequence[Request]) -> list[Outcome | AgentError]:
        """Return what `answer` returns for each request; in one batch if the network allows it."""
        if (
            self.batch is not None
            and len(requests) > 1
            and self.check is None
            # Inputs other than the sample are taken from the first request.
            and all(each.tensors is None or len(each.tensors) == 1 for each in requests)
        ):
            try:
                with contained(f"{self.id}: {len(requests)} samples together"):
                    return self.batch.infer_all(requests)
            except AgentError as problem:
                log.debug("%s; one by one", problem)
        return [self.answer(request) for request in requests]

    def answer(self, request: Request) -> Outcome | AgentError:
        """Return the result of `infer`, or the error that it raises."""
        try:
            return self._infer(request)
        except AgentError as problem:
            return problem

    def ready(self, tensors: Tensors) -> Tensors:
        """Return inputs of the network as `infer` passes them to the engine, for timing it."""
        if self.engine.fold is None:
            return tensors
        with contained(f"{self.id}: preparing its input"):
            return like(tensors, self.engine.fold.feed(tensors))

    def unfolded(self, tensors: Tensors) -> Tensors:
        """Return the engine's inputs as inputs of the original network, for other engines."""
        if self.engine.fold is None:
            return tensors
        with contained(f"{self.id}: preparing its input"):
            return like(tensors, self.engine.fold.unfold(tensors))

    def run(self, tensors: Tensors, engine: Engine | None = None) -> dict[str, Array]:
        """Call the engine, or another one of this model; the call is noted in case of a crash.

        Raises:
            EngineError: it failed.
        """
        kind = "ask" if isinstance(tensors, ClientInputs) else "infer"
        number = recorder.enter(kind, self.place)
        try:
            return (engine or self.engine).infer(tensors)
        except AgentError:
            raise
        except Exception as problem:
            raise converted(problem, self.id, EngineError) from problem
        finally:
            recorder.leave(number)

    def decode(self, outputs: Tensors, inputs: Tensors) -> Findings:
        """Decode ready outputs, as `infer` does, in pixels of the network's input.

        Raises:
            SampleError: the outputs are not finite, or cannot be decoded.
        """
        with contained(f"{self.id}: decoding its outputs", SampleError):
            return self._decode(outputs, inputs, self.threshold)

    def warm_up(self) -> None:
        """Run once on zeros and constants, so that the first frame is not slowed by lazy setup.

        Raises:
            EngineError: it fails on them.
        """
        # Noted as part of the load: on a GPU the first inference spends long building kernels.
        with recorder.call("load", self.place), contained(f"{self.id}: warming it up"):
            zeros = {
                spec.name: np.zeros([size or 1 for size in spec.shape], spec.dtype)
                for spec in self.engine.inputs
            }
            self.engine.infer({**zeros, **constants(self.manifest.input, self.engine.inputs)})

    def close(self) -> None:
        self.engine.close()
        for each in (self.batch, self.check):
            if each is not None:
                each.close()


def default_threshold(folder: ModelFolder) -> float:
    """Return the manifest's threshold, or its task's usual one."""
    given = folder.manifest.output.threshold
    if isinstance(given, str):
        return inf  # a pipeline learns it; until then no score is above it
    usual = 0.5 if folder.manifest.task in BOXED else 0.0
    return usual if given is None else given


def load_model(
    folder: ModelFolder, choices: Sequence[EngineChoice], kind: Kind, *, checked: bool = False
) -> Model:
    """Load a model on the first engine that can run it, and warm it up.

    A model that has been *checked* already, as in a trial, is not checked again: that parses the
    file and blocks all other threads, 55 ms for 100 MB (measured).

    Raises:
        ModelError: the model cannot run on any engine.
        EngineError: no engine can run it; says why for each.
    """
    if folder.manifest.task == "generate":
        raise ModelError(f"{folder.manifest.id}: is of task generate, which pipelines cannot run")
    with contained(folder.manifest.id, ModelError):
        if not checked:
            from ..models.files import check_onnx

            check_onnx.check_network(folder.network)
        from .folding.find import cut_for

        cut_off = cut_for(folder, kind)
    passed: list[str] = []
    for choice in choices:
        place = call_target(folder.manifest.id, choice.engine, choice.device, str(folder.network))
        try:
            with recorder.call("load", place), contained(f"{choice.engine}:{choice.device}"):
                engine = open_engine(
                    choice, folder.network, fixed_shapes(folder.manifest.input, kind), cut_off
                )
        except EngineError as problem:
            name = f"{choice.engine}:{choice.device}: "
            passed.append(f"{name}{str(problem).removeprefix(name)}")
            continue
        except ModelError as problem:
            raise ModelError(f"{folder.path / MANIFEST}: {problem}") from None
        try:
            with contained(folder.manifest.id, ModelError):
                model = assemble(folder, choice, engine, kind)
            model.warm_up()
        except EngineError as problem:
            engine.close()
            said = str(problem).removeprefix(f"{engine.label}: ")
            passed.append(f"{engine_words(engine.label)}: {said}")
        except AgentError:
            engine.close()
            raise
        else:
            return model
    raise EngineError(f"{folder.manifest.id}: no engine can run it: {'; '.join(passed)}")


def _thumbnail(request: Request, prepared: PreparedSample) -> Array | None:
    """Return a thumbnail of a pipeline's picture, or None."""
    if prepared.placement is None or request.foreign or request.tensors is not None:
        return None
    return prepared.thumbnail(request.sample.data)


def assemble(folder: ModelFolder, choice: EngineChoice, engine: Engine, kind: Kind) -> Model:
    """Make a model from an engine that has loaded its network.

    Raises:
        ModelError: manifest and network do not fit each other.
    """
    if folder.network.suffix == ".tflite":
        from ..models.files.tflite_ssd import check_labels  # other starts do without

        check_labels(folder)
    try:
        outputs = result_outputs(folder.manifest.input, engine)
        prepare, decode = fit(folder, engine.inputs, outputs, kind, engine.fold)
    except ModelError as problem:
        raise ModelError(f"{folder.path / MANIFEST}: {problem}") from None
    return Model(folder, choice, engine, prepare, decode)
