"""The route of a pipeline's frames: their model, its requests, and the sinks of the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from ...config.settings import Arm, SecondStage
from ...config.settings import Pipeline as PipelineSettings
from ...core.containment import contained, reason
from ...core.errors import AgentError, EngineError
from ...core.types import Detections, Outcome, Request, Sample
from ...inference.model import Model
from ...serving.active import Serving
from ..scheduler.board import Job
from .frame_path import FramePath
from .sinks import ResultStage, Sink, Stream
from .snapshots import Snapshots
from .status import Common, FrameErrors

if TYPE_CHECKING:
    from ...models.manifest import InputSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Serves(Protocol[T_co]):
    """What serves one arm."""

    @property
    def model(self) -> T_co | None:
        """None: not loaded."""


class PipelineRoute:
    """Splits frames between the arms, adds second stages and shadows, and calls the sinks."""

    def __init__(
        self,
        settings: PipelineSettings,
        servings: Sequence[Serving],
        seconds: Sequence[tuple[SecondStage, Serving]],
        common: Common,
        *,
        stream: Stream,
        snapshots: Snapshots,
        errors: FrameErrors,
        stage: ResultStage | None = None,
    ) -> None:
        """Build the route of one pipeline, with one of *servings* for each arm."""
        self.path = FramePath(settings, stage, common.learned)
        """The path of each frame; if frames are split, drift is of the first model."""
        self._name = settings.name
        self._servings = servings
        self._seconds = seconds
        self._common = common
        self._stream = stream
        self._snapshots = snapshots
        self._errors = errors
        self._split = Split(settings.arms, servings, _share_windows)
        self.advance = self._split.advance
        self.request = self.path.request
        self._loaded = False
        """Whether loading of the models of all arms has ended, successfully or not."""

    # Before inference

    def choose(self) -> Model | None:
        # The frames go through all arms of the settings from the first one on, and each through all
        # stages: while one is exchanged, another arm takes its frames, but no other stage does.
        self._loaded = self._loaded or not any(each.awaited for each in self._servings)
        if not self._loaded or any(serving.awaited for _, serving in self._seconds):
            return None
        return self._split.choose()

    def beside(self) -> list[Model | None]:
        # One that is lazy may be idle though frames are in lanes; it is not in use by these.
        return [None if serving.lazy else serving.model for _, serving in self._seconds]

    def suits(self, model: Model, sample: Sample) -> bool:
        cut, own = sample.cut, model.manifest.input
        if cut is None or cut is own:
            return True
        from ...inference.preprocess.windowing import windows_apart

        return not windows_apart(cast("InputSpec", cut), own)

    # After inference

    def complete(self, job: Job[Model], answer: Outcome | AgentError) -> None:
        asked: list[Callable[[], None]] = []
        deliver = None
        try:
            if isinstance(answer, AgentError):
                job.model.stats.errors += 1
                raise answer
            outcome, weak = self.path.filter(job.model, answer)
            outcome = self._add_second_stages(job, outcome, asked)
            self._common.identity.timeline.record("first_inference", outcome.timing.infer_ms / 1e3)
            deliver = partial(self._deliver, job.model, job.sample, outcome, weak)
        except AgentError as problem:
            self._errors.record(problem)
        self._common.board.finish(job, deliver)
        self._shadow(job, None if isinstance(answer, AgentError) else answer)
        for compare in asked:
            compare()

    def _add_second_stages(
        self, job: Job[Model], outcome: Outcome, asked: list[Callable[[], None]]
    ) -> Outcome:
        """Run the second stages on the detections; what candidates for them compare is *asked*."""
        if not self._seconds or not isinstance(outcome.findings, Detections):
            return outcome
        from . import second_stage

        below = {id(each) for stage, _ in self._seconds for each in stage.then}
        concerned, needed = False, list[Serving]()
        for stage, serving in self._seconds:
            if id(stage) not in below:
                concerned = second_stage.concerns(stage, outcome.findings)
            if concerned:
                needed.append(serving)
        with contained(self._name), self._in_hand(job, needed) as models:
            there: list[tuple[SecondStage, Model | str]] = []
            for (stage, serving), model in zip(self._seconds, models, strict=True):
                if model is not None:
                    there.append((stage, model))
                elif serving in needed:
                    why = serving.problem or "is not loaded now"
                    there.append((stage, f"model {serving.reference}: {why}"))
            outcome = second_stage.add(
                *(outcome, job.sample, job.model, there, partial(self._see, asked))
            )
            for second in second_stage.whole(outcome.then):
                if second.error is not None and second.by is not None:  # else health has it
                    self._errors.record(second.error, "a second stage has failed")
            return outcome

    @contextmanager
    def _in_hand(
        self, job: Job[Model], needed: Sequence[Serving]
    ) -> Iterator[Sequence[Model | None]]:
        """Hold the second stages' models, once all *needed* are there or have a problem.

        Raises:
            EngineError: one of them is not: the agent ends, or it was unloaded at once.
        """

        def there() -> list[Model | None]:
            beside = zip(job.beside, self._seconds, strict=True)
            return [taken or serving.model for taken, (_, serving) in beside]

        with ExitStack() as held:
            while True:
                # Held while another is loaded, or it may be unloaded meanwhile, being idle.
                models = held.enter_context(self._common.board.using(there))
                pairs = zip(self._seconds, models, strict=True)
                empty = [one for (_, one), model in pairs if not (model or one.problem)]
                first = next((one for one in empty if one in needed), None)
                if first is None:
                    yield models
                    return
                if not self._bring(first, held):
                    raise EngineError(f"model {first.reference} is unloaded, or the agent ends")

    def _bring(self, serving: Serving, held: ExitStack) -> bool:
        """Load a model, or wait for the version that it was unloaded for; False: neither came."""
        if serving.swapping:
            # The old version is not loaded again while another is coming. That one may wait for a
            # frame that waits for another swap, and that swap for what is held here.
            held.close()
            return self._common.board.wait(lambda: not serving.swapping)
        self._common.load(serving)
        return bool(serving.model or serving.problem or serving.swapping)

    def _see(
        self,
        asked: list[Callable[[], None]],
        stage: SecondStage,
        request: Request,
        answer: Outcome | AgentError,
    ) -> None:
        """Have a candidate for a second stage infer the same crop, once the frame is finished."""
        serving = next(serving for each, serving in self._seconds if each is stage)
        if (shadow := serving.shadow) is not None:
            incumbent = None if isinstance(answer, AgentError) else answer
            asked.append(
                partial(shadow.compare, request.sample, incumbent, stage.threshold, request.region)
            )

    def _deliver(
        self, model: Model, sample: Sample, outcome: Outcome, weak: Detections | None
    ) -> None:
        """Decide, call stage and sinks, measure drift; the board does so in the order of capture.

        If a sink raises, that is counted; the other sinks still get the result, and the lane
        continues.
        """
        found = outcome.findings
        path, stage = self.path, self.path.stage
        outcome = path.decide(model, sample, outcome)
        if stage is not None:
            # Before the sinks: an event must be stored before its result is published.
            try:
                outcome = stage.process(sample, outcome, weak)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is the stage's
                self._errors.record_sink(type(stage).__name__, reason(problem))
        if self._stream.began is None:
            self._stream.began = time.monotonic()
        self._stream.together = sample.since == self._stream.latest
        self._stream.latest = sample.since
        takers: tuple[Sink | Snapshots, ...] = (*self._common.sinks.all, self._snapshots)
        for taker in takers:
            self._give(taker, partial(taker.result, self._stream, sample, outcome))
        if model is self._servings[0].model:
            path.learn(model, sample, found)

    def _give(self, taker: object, take: Callable[[], None]) -> None:
        try:
            take()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the sink's
            self._errors.record_sink(type(taker).__name__, reason(problem))

    def _shadow(self, job: Job[Model], outcome: Outcome | None) -> None:
        """Pass the frame to a candidate, which infers and compares, before any filter."""
        for serving in self._servings:
            shadow = serving.shadow  # may be removed by another thread
            if shadow is not None and serving.model is job.model:
                if outcome is not None:
                    outcome = self.path.asked_of_candidates(job.model, outcome)
                shadow.compare(job.sample, outcome, self.path.threshold, self.path.region)


class Split(Generic[T]):
    """Smooth weighted round robin over the arms of a route that have a model.

    Both methods are called with the board's lock held, or another one.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        servings: Sequence[_Serves[T]],
        fits: Callable[[T, T], bool] = lambda _first, _other: True,
    ) -> None:
        """*fits* tells whether a model can take frames that are made for the first one."""
        self._servings = servings
        self._fits = fits
        self._judged: tuple[list[T | None], list[int]] = [], []
        """The models of all arms, and the arms that take frames."""
        # Per pipeline: others may split their frames between the same models differently.
        self._weights = [arm.weight for arm in arms]
        self._credit = [0] * len(arms)

    def choose(self) -> T | None:
        if len(self._servings) == 1:
            return self._servings[0].model
        arm = self._arm()
        return None if arm is None else self._servings[arm].model

    def advance(self) -> None:
        """Charge a frame to the chosen arm."""
        if len(self._servings) == 1:
            return
        arm = self._arm()
        for index, serving in enumerate(self._servings):
            if serving.model is not None and arm is not None and index in self._judged[1]:
                self._credit[index] += self._weights[index]
                self._credit[arm] -= self._weights[index]

    def _arm(self) -> int | None:
        models = [serving.model for serving in self._servings]
        if models != self._judged[0]:
            first = next((model for model in models if model is not None), None)
            there = [
                index
                for index, model in enumerate(models)
                if model is not None and (model is first or (first and self._fits(first, model)))
            ]
            self._judged = models, there
        return max(
            self._judged[1],
            key=lambda index: self._credit[index] + self._weights[index],
            default=None,
        )


def _share_windows(first: Model, other: Model) -> bool:
    """Whether windows cut for one model suit another, and it may miss some of them."""
    from ...inference.preprocess.windowing import split_trouble

    return split_trouble(first.manifest, other.manifest) is None
