"""The child of a trial: loads a candidate on the engine that it will use, and runs it.

If it is started while the candidate is still arriving, it first follows it (`early.follow`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ...core.child import die_with_parent, run_in_background
from ...core.containment import contained
from ...core.errors import AgentError, ModelError, SampleError
from ...device.allocator import trim_memory
from ...inference.engines.engine import EngineChoice
from ...inference.engines.registry import load_library

if TYPE_CHECKING:
    from ...core.types import Array, Kind, Tensors, TensorSpec
    from ...inference.model import Model
    from ...models.manifest import ModelFolder
    from ..early.follow import Followed
    from .live_frames import FrameSource

TIMED_RUNS = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """The child's verdict."""

    passed: bool
    why: str
    engine: str = ""
    infer_ms: float = 0.0
    first_at: float | None = None
    """Monotonic time when the first inference on a live frame ended, if that counts."""
    streamed: str = ""
    """The result of running it while it arrived; empty: that was not tried."""
    wrong: Sequence[tuple[int, str]] = ()
    """The indices of choices that compute it wrongly, and why."""
    proven: int | None = None
    """The index of the choice that gave the golden outputs, or agreed on enough live frames."""


class Channel:
    """Messages between the agent and the child: lines of JSON on stdin and stdout."""

    def __init__(self) -> None:
        self.questions: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._frames: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._saying = threading.Lock()

    def listen(self) -> None:
        """Receive and sort messages until the agent ends."""
        rest = b""
        # Not through `sys.stdin`: an engine that forks would inherit the lock held by this thread.
        while data := os.read(0, 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                heard = json.loads(line)
                if "frame" in heard:
                    self._frames.put(heard["frame"])
                else:
                    self.questions.put(heard)
        os._exit(1)  # the agent has ended

    def send(self, **what: Any) -> None:
        """Send a message to the agent."""
        with self._saying:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()

    def frame(self, memory: int, specs: Sequence[TensorSpec]) -> dict[str, Array] | None:
        """Return the newest frame, written into *memory* by the agent, or None if there is none."""
        import numpy as np

        self.send(frame=[(spec.name, spec.shape, spec.dtype) for spec in specs])
        given = self._frames.get()
        if given is None:
            return None
        found = {}
        for name, dtype, shape, start, stop in given:
            data = np.frombuffer(os.pread(memory, stop - start, start), dtype)
            found[name] = data.reshape(shape)
        return found


def main() -> None:
    """Answer the questions on stdin: optionally one to follow a model, then one to judge it."""
    # It must not outlive a killed agent, slow down its frames, or fill its disk.
    die_with_parent()
    run_in_background()
    # A service is stopped by a signal to all of its processes; the agent says when this one ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    progress, memory = (int(text) for text in sys.argv[1:])
    channel = Channel()
    threading.Thread(target=channel.listen, name="channel", daemon=True).start()
    engines = channel.questions.get()["engines"]
    _load_libraries(engines[:1])
    libraries = _memory_mb()
    channel.send(libraries_mb=libraries, judges=False)
    question = channel.questions.get()
    followed: Followed | None = None
    if "choice" in question:
        from ..early.follow import follow

        followed = follow(
            question,
            socket.socket(fileno=progress),
            lambda start, stop: channel.send(wish=[start, stop]),
            lambda specs: channel.frame(memory, specs),
        )
        # Memory of the stages must not be counted for the complete network.
        gc.collect()
        trim_memory()
        question = channel.questions.get()
    before = _memory_mb()
    _load_libraries(engines[1:])
    library = "prepared.compile.cache" if question["forms"] else "model"
    import_module(f"edge_agent.inference.{library}")
    parts = zip(libraries, _memory_mb(), before, strict=True)
    mine = [sooner + now - then for sooner, now, then in parts]
    channel.send(libraries_mb=mine, judges=True)
    try:
        with contained("its trial", ModelError):
            verdict = judge(question, followed, lambda specs: channel.frame(memory, specs))
    except AgentError as problem:
        verdict = Verdict(False, str(problem))
    channel.send(verdict=asdict(verdict))
    # Engines may crash at exit, which says nothing about the model.
    os._exit(0)


def _load_libraries(engines: list[str]) -> None:
    """Load libraries that any model needs, so that their memory is not counted for this one."""
    for engine in engines:
        # A missing one is skipped later, with its reason.
        with contextlib.suppress(ImportError):
            load_library(engine)


def _memory_mb() -> tuple[float, float]:
    """Return the memory of this process in MB: in total, and without mapped files."""
    numbers = Path("/proc/self/statm").read_text(encoding="ascii").split()
    resident, shared = (int(pages) * resource.getpagesize() / 2**20 for pages in numbers[1:3])
    return resident, resident - shared


def judge(
    question: Mapping[str, Any], followed: Followed | None, frame: FrameSource = lambda _specs: None
) -> Verdict:
    """Load and run the candidate of `TrialProcess.judge`, and return the verdict.

    Raises:
        AgentError: it does not load, or fails.
    """
    from ...inference.model import load_model
    from ...models.manifest import load

    folder = load(Path(question["folder"]))
    if folder.manifest.task == "generate":
        from ...inference.engines.generator import LABEL, try_out

        took, golden = try_out(folder, golden=question["golden"])
        why = "loads, and answers; no golden.json" if golden is None else f"golden: {golden}"
        return Verdict(True, why, LABEL, round(took, 3))
    choices = [EngineChoice(**choice) for choice in question["choices"]]
    if question["forms"] is not None:
        from ...serving.open import Forms, open_streamed

        forms = Forms(Path(question["forms"]["state"]), question["forms"]["budget_mb"])
        model = open_streamed(folder, choices[0], question["kind"], forms, checked=False)
        # No other engine or session could load it.
        return replace(_judge_on(model, [model.choice], question, followed, None), proven=None)
    trust = Trust(folder, question["kind"], frame)
    wrong: list[tuple[int, str]] = []
    left = choices
    while True:
        model = load_model(folder, left, question["kind"], checked=bool(wrong))
        found = replace(_judge_on(model, choices, question, followed, trust), wrong=tuple(wrong))
        at = choices.index(model.choice)
        left = choices[at + 1 :]
        if found.passed or not left:
            break
        # Another engine may compute it correctly.
        wrong.append((at, found.why))
        model.close()
    if wrong and not found.passed:
        return replace(found, why=wrong[0][1], wrong=())
    for number, why in wrong:
        words = f"{choices[number].engine} computes it wrongly: {why}"
        found = replace(found, why=f"{found.why}; {words}")
    return found


def _judge_on(
    model: Model,
    choices: Sequence[EngineChoice],
    question: Mapping[str, Any],
    followed: Followed | None,
    trust: Trust | None,
) -> Verdict:
    """Return the verdict on a candidate as loaded by one engine."""
    from ...inference.golden import compare_golden
    from ...inference.probe import probe_inputs, race
    from ...serving.reference_check import INPUTS

    tensors = probe_inputs(model.engine.inputs, seed=7)
    _check_finite(model.run(tensors))
    ready = model.ready(tensors)
    infer_ms = round(statistics.median(race([lambda _: model.run(ready)], TIMED_RUNS)[0]), 3)
    found = Verdict(True, "", model.engine.label, infer_ms)
    if followed is not None:
        found = _compare_stages(found, followed, model, choices, question["kind"])
    if question["golden"]:
        agreement = compare_golden(model)
        if agreement is not None:
            proven = choices.index(model.choice) if agreement.passed else None
            why = f"golden: {agreement.why}"
            return replace(found, passed=agreement.passed, why=why, proven=proven)
    if trust is None:
        return replace(found, why="loads and runs; there is nothing to compare it with")
    passed, why = trust.judge(model, tensors)
    proven = choices.index(model.choice) if passed and trust.frames == INPUTS else None
    return replace(found, passed=passed, why=why, proven=proven)


class Trust:
    """The comparison for a model without golden outputs."""

    def __init__(self, folder: ModelFolder, kind: Kind, frame: FrameSource) -> None:
        """Prepare; *frame* returns a live frame, as inputs of the network, or None."""
        self._folder = folder
        self._kind = kind
        self._frame = frame
        self._plain: Model | None = None
        self._frames: list[Tensors] = []

    @property
    def frames(self) -> int:
        """Number of different live frames it was compared on."""
        return len({b"".join(one.tobytes() for one in each.values()) for each in self._frames})

    def judge(self, model: Model, noise: Tensors) -> tuple[bool, str]:
        """Return whether an engine computes the model as a plain session does, and why."""
        from ...inference.agreement import compare_on_noise
        from ...serving.reference_check import is_confirmed, open_plain, why_wrong

        if self._plain is None:
            self._plain = open_plain(self._folder, self._kind)
        if self._plain is None:
            return True, "loads and runs; there is nothing to compare it with"
        agreement = compare_on_noise(self._plain, model, noise)
        if not agreement.passed and not is_confirmed(model, self._kind, [noise]):
            return False, agreement.why
        why = why_wrong(self._plain, model, self._kind, self._live(model.engine.inputs))
        if why is not None:
            return False, why
        frames = len(self._frames)
        seen = {0: "noise", 1: "a live frame"}.get(frames, f"{frames} live frames")
        words = f"{self._plain.engine.label} without optimization on {seen}"
        return True, f"no golden.npz; agrees with {words}"

    def _live(self, specs: tuple[TensorSpec, ...]) -> Iterator[Tensors]:
        """Yield the frames that the previous engine was compared on, then newer ones.

        Each is taken after the previous one was compared, so that the picture has changed.
        """
        from ...serving.reference_check import INPUTS

        yield from self._frames
        while len(self._frames) < INPUTS:
            tensors = self._frame(specs)
            if tensors is None:
                return
            self._frames.append(tensors)
            yield tensors


def _compare_stages(
    found: Verdict, followed: Followed, model: Model, choices: Sequence[EngineChoice], kind: Kind
) -> Verdict:
    """Compare the outputs of stages run during arrival with those of the complete network."""
    from ...inference.agreement import compare_outputs
    from ...inference.model import load_model

    if followed.why:
        return replace(found, streamed=f"not run while it arrived: {followed.why}")
    whole = model
    if found.engine != followed.label:
        quick = [choice for choice in choices if followed.label.startswith(choice.engine)]
        whole = load_model(model.folder, quick, kind, checked=True)
    inputs, outputs = followed.inputs, followed.outputs
    if not followed.same(whole.run(inputs)):
        return replace(found, streamed="its stages gave other numbers than the whole: not counted")
    if whole is not model:
        agreement = compare_outputs(model, inputs, model.run(inputs), outputs)
        if not agreement.passed:
            return replace(
                found, streamed=f"{whole.engine.label} and {found.engine}: {agreement.why}"
            )
    words = f"{followed.stages} stages, bit for bit as the whole on {followed.label}"
    return replace(found, first_at=followed.first_at, streamed=words)


def _check_finite(outputs: dict[str, Any]) -> None:
    import numpy as np

    for name, array in outputs.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SampleError(f"output {name} is not finite (NaN or infinite) on an ordinary input")


if __name__ == "__main__":
    main()
