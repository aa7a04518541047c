"""The child of a trial: loads a candidate on the engine that it will use, and runs it.

It may be started while the candidate is still arriving; then it follows it (`early.follow`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ...core.child import die_with_parent, run_in_background
from ...core.containment import contained
from ...core.errors import AgentError, EngineError, ModelError, SampleError
from ...device.allocator import trim_memory
from ...inference.engines.engine import EngineChoice
from ...inference.engines.registry import load_library

if TYPE_CHECKING:
    from ...core.types import Array, Kind, TensorSpec
    from ...inference.compare import Agreement
    from ...inference.model import Model
    from ..early.follow import Followed

TIMED_RUNS = 5
COSINE = 0.9
"""How alike two engines' outputs must be on the same input. INT8 differs by quantisation steps
between engines; a broken kernel gives no likeness at all (openvino#37446: -0.08)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the child found."""

    passed: bool
    why: str
    engine: str = ""
    infer_ms: float = 0.0
    first_at: float | None = None
    """Monotonic clock at the end of the first inference on a live frame, if that counts."""
    streamed: str = ""
    """How running it while it arrived ended; empty: it was not tried."""


class Channel:
    """Messages between the agent and the child: a line of JSON each, on stdin and stdout."""

    def __init__(self) -> None:
        self.questions: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._frames: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._saying = threading.Lock()

    def listen(self) -> None:
        """Sort the messages that come, until the agent ends."""
        rest = b""
        # Not by `sys.stdin`: an engine that forks would inherit the lock that this thread holds.
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
        """Return the newest frame, as inputs of the network; None where there is none.

        Args:
            memory: descriptor of the memory that the agent writes them into.
            specs: of the network's inputs.

        """
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
    """Answer the questions on stdin: perhaps one to follow a model, then one to judge it."""
    # It must not outlive an agent that is killed, nor slow its frames, nor fill its disk.
    die_with_parent()
    run_in_background()
    progress, memory = (int(text) for text in sys.argv[1:])
    channel = Channel()
    threading.Thread(target=channel.listen, name="channel", daemon=True).start()
    engines = channel.questions.get()["engines"]
    _load_libraries(engines[:1])
    libraries = _memory_mb()
    channel.send(libraries_mb=libraries)
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
        _free_memory()
        question = channel.questions.get()
    before = _memory_mb()
    _load_libraries(engines[1:])
    import_module(
        "edge_agent.runtime.serving.out_of_core"
        if question["oversize"]
        else "edge_agent.inference.model"
    )
    parts = zip(libraries, _memory_mb(), before, strict=True)
    channel.send(libraries_mb=[sooner + now - then for sooner, now, then in parts])
    try:
        with contained("its trial", ModelError):
            verdict = judge(question, followed)
    except AgentError as problem:
        verdict = Verdict(False, str(problem))
    channel.send(verdict=asdict(verdict))
    # Engines may crash on their way out; that says nothing about the model.
    os._exit(0)


def _load_libraries(engines: list[str]) -> None:
    """Load what any model needs, so that it is not counted as this one's."""
    for engine in engines:
        # One that is not installed is passed over later, with its reason.
        with contextlib.suppress(ImportError):
            load_library(engine)


def _free_memory() -> None:
    """Free what the stages took, so that it is not counted as the complete network's."""
    gc.collect()
    trim_memory()


def _memory_mb() -> tuple[float, float]:
    """Return the memory of this process, and how much of it is not of files, in MB."""
    numbers = Path("/proc/self/statm").read_text(encoding="ascii").split()
    resident, shared = (int(pages) * resource.getpagesize() / 2**20 for pages in numbers[1:3])
    return resident, resident - shared


def judge(question: Mapping[str, Any], followed: Followed | None) -> Verdict:
    """Load and run the candidate, and return the verdict.

    Args:
        question: `folder`, `choices`, `kind`, whether to run `golden` inputs, and how to load
            it if it is `oversize`.
        followed: what was found while it arrived.

    Raises:
        AgentError: it does not load, or fails.

    """
    from ...inference.compare import probe_inputs, race
    from ...inference.model import load_model
    from ...models.manifest import load

    folder = load(Path(question["folder"]))
    choices = [EngineChoice(**choice) for choice in question["choices"]]
    if question["oversize"] is None:
        model, _ = load_model(folder, choices, question["kind"])
    else:
        from ...runtime.serving.out_of_core import from_json

        model = from_json(question["oversize"]).load(folder, question["kind"], checked=False)
        choices = [model.choice]  # no other engine could load it
    tensors = probe_inputs(model.engine.inputs, seed=7)
    outputs = model.raw(tensors)
    _check_finite(outputs)
    ready = model.ready(tensors)
    infer_ms = round(statistics.median(race([lambda _: model.raw(ready)], TIMED_RUNS)[0]), 3)
    found = Verdict(True, "", model.engine.label, infer_ms)
    if followed is not None:
        found = _compare_stages(found, followed, model, choices, question["kind"])
    if question["golden"]:
        agreement = _golden(model, followed if found.first_at is not None else None)
        if agreement is not None:
            return replace(found, passed=agreement.passed, why=f"golden: {agreement.why}")
        other = next((c for c in choices if not found.engine.startswith(c.engine)), None)
        if other is not None:
            passed, why = _second_opinion(model, other, question["kind"], tensors, outputs)
            return replace(found, passed=passed, why=why)
    return replace(found, why="loads and runs; there is nothing to compare it with")


def _compare_stages(
    found: Verdict, followed: Followed, model: Model, choices: list[EngineChoice], kind: Kind
) -> Verdict:
    """Compare what the stages gave while they arrived with what the complete network gives."""
    from ...inference.compare import compare_outputs
    from ...inference.model import load_model

    if followed.why:
        return replace(found, streamed=f"not run while it arrived: {followed.why}")
    whole = model
    if found.engine != followed.label:
        quick = [choice for choice in choices if followed.label.startswith(choice.engine)]
        whole, _ = load_model(model.folder, quick, kind, checked=True)
    if not followed.same(whole.raw):
        return replace(found, streamed="its stages gave other numbers than the whole: not counted")
    tolerance = model.manifest.trial.tolerance
    for inputs, outputs in followed.runs if whole is not model else ():
        agreement = compare_outputs(model, inputs, model.raw(inputs), outputs, tolerance)
        if not agreement.passed:
            return replace(
                found, streamed=f"{whole.engine.label} and {found.engine}: {agreement.why}"
            )
    words = f"{followed.stages} stages, bit for bit as the whole on {followed.label}"
    return replace(found, first_at=followed.first_at, streamed=words)


def _golden(model: Model, followed: Followed | None) -> Agreement | None:
    """Compare with the golden outputs, unless the stages have been compared already."""
    from ...inference.golden import compare_golden

    if followed is not None and followed.agreement and followed.label == model.engine.label:
        return followed.agreement
    return compare_golden(model)


def _check_finite(outputs: dict[str, Any]) -> None:
    import numpy as np

    for name, array in outputs.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SampleError(f"output {name} is not finite (NaN or infinite) on an ordinary input")


def _second_opinion(
    model: Model, other: EngineChoice, kind: Kind, tensors: Any, outputs: Any
) -> tuple[bool, str]:
    """Compare with another engine, where the model has no golden outputs."""
    import numpy as np

    from ...inference.compare import cosine
    from ...inference.model import engine_order, load_model

    label = model.engine.label
    try:
        if not engine_order([other], "auto", model.folder.network):
            raise EngineError("cannot read it")
        second, _ = load_model(model.folder, [other], kind)
    except (EngineError, ModelError) as problem:
        return True, f"loads and runs; {other.engine} cannot compare: {problem}"
    reference = second.raw(tensors)
    for name, one in outputs.items():
        if name not in reference or not np.issubdtype(one.dtype, np.number):
            continue
        if one.size != reference[name].size:
            return False, f"output {name}: {label} and {second.engine.label} give different sizes"
        alike = cosine(one, reference[name])
        if alike < COSINE:
            return False, (
                f"output {name}: {label} and {second.engine.label} disagree (cosine {alike:.2f})"
            )
    return True, f"no golden.npz; agrees with {second.engine.label}"


if __name__ == "__main__":
    main()
