"""A candidate in a process of its own: loaded on the engine that it will use, golden inputs run.

A native crash, a hang or too much memory ends the child, never the agent. Run as
`python -m edge_agent.deploy.trial`, with the question as JSON on stdin and the verdict as the
last line of stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..engines import MODULES, EngineChoice
from ..errors import AgentError, EngineError, ModelError, SampleError
from ..sources import Kind

POLL_SECONDS = 0.05
TIMED_RUNS = 5
COSINE = 0.9
"""How alike two engines' outputs must be on the same input. INT8 differs by quantisation steps
between engines; a broken kernel gives no likeness at all (openvino#37446: -0.08)."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the child found."""

    passed: bool
    why: str
    engine: str = ""
    infer_ms: float = 0.0


def run_trial(
    folder: Path,
    choices: Sequence[EngineChoice],
    kind: Kind,
    *,
    golden: bool,
    timeout_s: float,
    memory_mb: int,
    stopped: Callable[[], str | None] = lambda: None,
) -> Verdict:
    """Try a model in a child process.

    Args:
        folder: of the model.
        choices: engines to try, in order.
        kind: of sample that it will be given.
        golden: whether to run its golden inputs.
        timeout_s: after which it counts as hung.
        memory_mb: what the child may take beyond what it takes with no model; 0: no bound.
        stopped: says why it need not go on; None: it shall.

    """
    question = {
        "folder": str(folder),
        "kind": kind,
        "golden": golden,
        "choices": [asdict(choice) for choice in choices],
    }
    ready, told = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "edge_agent.deploy.trial", str(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(told,),
        )
        watch = _Watch(child, ready, timeout_s, memory_mb, stopped)
        watcher = threading.Thread(target=watch.run, daemon=True)
        watcher.start()
        output, words = child.communicate(json.dumps(question).encode())
        watcher.join()
    finally:
        os.close(ready)
        os.close(told)
    if watch.why is not None:
        return Verdict(False, watch.why)
    if child.returncode != 0:
        return Verdict(False, _death(child.returncode, words))
    try:
        return Verdict(**json.loads(output.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return Verdict(False, "its trial ended without a verdict")


def _death(status: int, words: bytes) -> str:
    """Say how a child ended."""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"crashes the engine ({name})"
    last = words.decode(errors="replace").strip().splitlines()
    return f"its trial failed: {last[-1] if last else f'status {status}'}"


class _Watch:
    """Ends a child that hangs, takes too much, or is not needed any more."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        ready: int,
        timeout_s: float,
        memory_mb: int,
        stopped: Callable[[], str | None],
    ) -> None:
        self._child = child
        self._ready = ready
        """Gives what the child takes, MiB, when it has its libraries and not yet the model."""
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._stopped = stopped
        self.why: str | None = None

    def run(self) -> None:
        import psutil

        try:
            process = psutil.Process(self._child.pid)
            baseline: float | None = None
            while self._child.poll() is None:
                used = process.memory_info().rss / 2**20
                if self._memory_mb and baseline is not None and used - baseline > self._memory_mb:
                    self._end(f"takes more than the {self._memory_mb} MB that models may take here")
                    return
                if time.monotonic() > self._deadline:
                    self._end(f"hangs: no verdict within {self._timeout_s:g} s")
                    return
                why = self._stopped()
                if why is not None:
                    self._end(why)
                    return
                if baseline is not None:
                    time.sleep(POLL_SECONDS)
                elif select.select([self._ready], [], [], POLL_SECONDS)[0]:
                    baseline = float(os.read(self._ready, 32))
        except psutil.NoSuchProcess:
            return

    def _end(self, why: str) -> None:
        self.why = why
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


# In the child


def main() -> None:
    """Answer the question on stdin."""
    # Not to outlive an agent that is killed, not to disturb its frames, not to fill its disk.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where memory runs out all the same, the kernel is to take this process, not the agent.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    question = json.loads(sys.stdin.buffer.read())
    _load_libraries(question)
    import psutil

    os.write(int(sys.argv[1]), f"{psutil.Process().memory_info().rss / 2**20:.1f}".encode())
    try:
        verdict = judge(question)
    except AgentError as problem:
        verdict = Verdict(False, str(problem))
    sys.stdout.write(json.dumps(asdict(verdict)) + "\n")
    sys.stdout.flush()
    # Engines may crash on their way out; that says nothing about the model.
    os._exit(0)


def _load_libraries(question: dict[str, Any]) -> None:
    """Load what any model needs, so that it is not counted as this one's."""
    import_module("edge_agent.model")
    for choice in question["choices"]:
        # One that is not installed is passed over later, with its reason.
        with contextlib.suppress(ImportError):
            import_module(MODULES[choice["engine"]])


def judge(question: dict[str, Any]) -> Verdict:
    """Load and run the candidate.

    Raises:
        AgentError: it does not load, or fails.

    """
    from ..golden import compare_golden
    from ..manifest import load
    from ..model import open_model

    folder = load(Path(question["folder"]))
    choices = [EngineChoice(**choice) for choice in question["choices"]]
    model, _ = open_model(folder, choices, question["kind"])
    tensors = _probe_inputs(model)
    outputs = model.raw(tensors)
    _finite(outputs)
    took = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        model.raw(tensors)
        took.append((time.perf_counter() - start) * 1e3)
    infer_ms = round(statistics.median(took), 3)
    label = model.engine.label
    if question["golden"]:
        agreement = compare_golden(model)
        if agreement is not None:
            if not agreement.passed:
                return Verdict(False, f"golden: {agreement.why}", label, infer_ms)
            return Verdict(True, f"golden: {agreement.why}", label, infer_ms)
        other = next((c for c in choices if not label.startswith(c.engine)), None)
        if other is not None:
            return _second_opinion(
                folder, other, question["kind"], tensors, outputs, label, infer_ms
            )
    return Verdict(True, "loads and runs; there is nothing to compare it with", label, infer_ms)


def _probe_inputs(model: Any) -> dict[str, Any]:
    """Make ordinary inputs: seeded noise, of integers over what they can hold, of floats ±1."""
    import numpy as np

    random = np.random.default_rng(7)
    tensors = {}
    for spec in model.engine.inputs:
        shape = tuple(size or 1 for size in spec.shape)
        if np.issubdtype(np.dtype(spec.dtype), np.integer):
            limits = np.iinfo(spec.dtype)
            low, high = max(limits.min, -128), min(limits.max, 255)
            tensors[spec.name] = random.integers(low, high, shape).astype(spec.dtype)
        else:
            tensors[spec.name] = random.uniform(-1.0, 1.0, shape).astype(spec.dtype)
    return tensors


def _finite(outputs: dict[str, Any]) -> None:
    import numpy as np

    for name, array in outputs.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SampleError(f"output {name} is not finite (NaN or infinite) on an ordinary input")


def _second_opinion(
    folder: Any,
    other: EngineChoice,
    kind: Kind,
    tensors: Any,
    outputs: Any,
    label: str,
    infer_ms: float,
) -> Verdict:
    """Compare with another engine, where the model brings nothing to compare with."""
    import numpy as np

    from ..model import engine_order, open_model

    try:
        if not engine_order([other], "auto", folder.network):
            raise EngineError("cannot read it")
        second, _ = open_model(folder, [other], kind)
    except (EngineError, ModelError) as problem:
        return Verdict(
            True, f"loads and runs; {other.engine} cannot compare: {problem}", label, infer_ms
        )
    reference = second.raw(tensors)
    for name, one in outputs.items():
        if name not in reference or not np.issubdtype(one.dtype, np.number):
            continue
        first = one.astype(np.float64).ravel()
        other_values = reference[name].astype(np.float64).ravel()
        if first.shape != other_values.shape:
            return Verdict(
                False,
                f"output {name}: {label} and {second.engine.label} give different sizes",
                label,
                infer_ms,
            )
        norm = float(np.linalg.norm(first) * np.linalg.norm(other_values))
        alike = float(first @ other_values) / norm if norm > 0 else 1.0
        if alike < COSINE:
            return Verdict(
                False,
                f"output {name}: {label} and {second.engine.label} disagree (cosine {alike:.2f})",
                label,
                infer_ms,
            )
    return Verdict(True, f"no golden.npz; agrees with {second.engine.label}", label, infer_ms)


if __name__ == "__main__":
    main()
