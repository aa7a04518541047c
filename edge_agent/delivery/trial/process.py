"""A candidate's trial in a separate process, on the agent's side.

A native crash, a hang or too much memory ends the child, never the agent. The child runs
`python -m edge_agent.delivery.trial.worker`: requests are lines of JSON on its stdin, the verdict
is the last line of its stdout.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.child import kill_group, last_line, signal_name
from ...core.types import Kind, TensorSpec
from ...inference.engines.engine import EngineChoice
from ...serving.open import Forms
from ..early.onnx_stream import PROGRESS
from .live_frames import FrameSource
from .worker import Verdict

__all__ = ["TrialProcess", "Verdict", "run_trial"]

POLL_SECONDS = 0.05
_STARTS = 3
"""Most children for a trial, where they are told to end while they start: that is no verdict."""
PREPARE_SECONDS = 600.0
"""Time limit for preparing a model that cannot be loaded whole."""
_STDERR_BYTES = 4096
"""Bytes kept from the end of the child's stderr, for the reason of its end."""
_LINE_BYTES = 1 << 20
"""Most bytes of a line."""

CHECK_MB = 64
"""Memory for checking the files of such a model, and for running it in stages."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Limits:
    """The child's limits."""

    memory_mb: int
    counts_files: bool = True
    """Whether mapped files count; the kernel can reclaim their memory at any time."""
    deadline: float = math.inf
    """Monotonic time when its time is over."""
    timeout_s: float = math.inf
    """How long it may take."""
    stopped: Callable[[], str | None] = lambda: None
    """Returns why to stop; None: go on."""
    bound: str = ""
    """What *memory_mb* is a part of, for the reason."""


class TrialProcess:
    """A child that is ready for one candidate."""

    def __init__(self, engines: Sequence[str], memory_mb: int, frame: FrameSource) -> None:
        """Start the child; it loads the libraries of *engines*.

        *memory_mb* is its memory limit beyond what it takes without a model; 0: no limit.
        """
        self._sending = threading.Lock()
        # Preserves record boundaries, and can pass a file descriptor.
        self._progress, progress = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._frames = os.memfd_create("frame", os.MFD_CLOEXEC)
        shared = progress.fileno(), self._frames
        try:
            self._child: Any = subprocess.Popen(
                [sys.executable, "-m", "edge_agent.delivery.trial.worker", *map(str, shared)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=shared,
                # Otherwise NumPy's library starts unneeded threads that spin while they wait.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        except BaseException:
            self._progress.close()
            os.close(self._frames)
            raise
        finally:
            progress.close()
        # The thread that receives blocks never waits for the child.
        self._progress.setblocking(False)
        self._limits = _Limits(memory_mb)
        self._frame = frame
        self._unsent: bytes | None = None
        self._libraries_mb: tuple[float, float] | None = None
        """Memory that it takes without a model: in total, and without mapped files; None: it is
        loading libraries, which do not count."""
        self._judges = False
        self._stderr = b""
        self._verdict: Verdict | None = None
        self.wish: tuple[int, int] | None = None
        """The range of bytes that it wants early, or None."""
        self.why: str | None = None
        """Why it was killed."""
        self._ended = threading.Event()
        self._send(engines=list(engines))
        threading.Thread(target=self._supervise, name="trial", daemon=True).start()

    def follow(self, question: Mapping[str, Any], data: int) -> None:
        """Ask it to run a model that is arriving; see `early.follow`.

        *data* is the descriptor of the file that is being filled; it may be closed afterward.
        """
        with self._sending, contextlib.suppress(OSError):  # it has ended
            socket.send_fds(self._progress, [PROGRESS.pack(0, False)], [data])
        self._send(**question)

    def send_progress(self, record: bytes) -> None:
        """Send how much of that model has arrived; never waits."""
        with self._sending:
            try:
                self._progress.send(record)
                self._unsent = None
            except BlockingIOError:
                self._unsent = record  # sent again by the supervisor
            except OSError:
                self._unsent = None  # it has ended: `judge` reports it

    def judge(
        self,
        question: Mapping[str, Any],
        *,
        timeout_s: float,
        memory_mb: int,
        stopped: Callable[[], str | None],
        bound: str = "",
    ) -> Verdict:
        """Ask it to judge a model, and return its verdict; arguments as for `run_trial`."""
        mapped = question["forms"] is not None
        deadline = time.monotonic() + timeout_s
        self._judges, self._libraries_mb = True, None
        self._limits = _Limits(memory_mb, not mapped, deadline, timeout_s, stopped, bound)
        self._send(**question)
        self._ended.wait()
        if self.why is not None:
            return Verdict(False, self.why)
        if self._child.returncode != 0:
            return Verdict(False, _cause_of_death(self._child.returncode, self._stderr))
        return self._verdict or Verdict(False, "its trial ended without a verdict")

    def close(self) -> None:
        """Kill it; may be called twice."""
        self._kill("is not needed any more")
        self._ended.wait()

    @property
    def ended(self) -> bool:
        """Whether the child is gone."""
        return self._ended.is_set()

    @property
    def was_told_to_end(self) -> bool:
        """Whether it has ended by a signal to all processes of a service, before it ignored it."""
        return bool(self._child.returncode == -signal.SIGTERM)

    @property
    def pid(self) -> int:
        return int(self._child.pid)

    def _send(self, **what: Any) -> None:
        """Send a line; lines are so few and short that this never waits."""
        with self._sending, contextlib.suppress(BrokenPipeError):
            if not self._child.stdin.closed:
                self._child.stdin.write(json.dumps(what).encode() + b"\n")

    def _kill(self, why: str) -> None:
        if self._child.poll() is None:
            self.why = self.why or why
            kill_group(self._child.pid)

    # The supervising thread

    def _supervise(self) -> None:
        """Read the child's output, and kill it if it exceeds its limits."""
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            selector.register(self._child.stderr, selectors.EVENT_READ)
            while selector.get_map():
                # The child's own children may outlive it and keep its pipes open.
                over = self._child.poll() is not None
                ready = selector.select(0 if over else POLL_SECONDS)
                if over and not ready:
                    break
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self._child.stderr:
                        self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
                    else:
                        *lines, rest = (rest + data).split(b"\n")
                        for line in lines:
                            self._read_line(line)
                        rest = rest[-_LINE_BYTES:]
                self._check_limits()
        self._child.wait()
        kill_group(self._child.pid)
        with self._sending:
            for each in (self._child.stdin, self._child.stdout, self._child.stderr, self._progress):
                each.close()
            os.close(self._frames)
        self._ended.set()

    def _read_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                return
            if "libraries_mb" in message:
                resident, own = message["libraries_mb"]
                if message["judges"] == self._judges:  # else it will load more
                    self._libraries_mb = float(resident), float(own)
            elif "wish" in message:
                start, stop = message["wish"]
                self.wish = (int(start), int(stop))
            elif "frame" in message:
                self._send_frame(message["frame"])
            elif "verdict" in message:
                self._verdict = Verdict(**message["verdict"])
        except (ValueError, TypeError):
            return  # printed by an engine: only a verdict counts
        except Exception as problem:  # noqa: BLE001 - no request of the child may end the agent
            log.warning("trial: no live frame for the child: %s", problem)
            self._send(frame=None)

    def _send_frame(self, inputs: list[Any]) -> None:
        """Write a frame into the shared memory, and send its layout."""
        specs = [TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in inputs]
        tensors = self._frame(tuple(specs))
        if tensors is None:
            self._send(frame=None)
            return
        layout, at = [], 0
        for name, array in tensors.items():
            os.pwrite(self._frames, array.tobytes(), at)
            layout.append((name, array.dtype.str, array.shape, at, at + array.nbytes))
            at += array.nbytes
        self._send(frame=layout)

    def _check_limits(self) -> None:
        """Kill a child that hangs, takes too much memory, or is no longer needed."""
        import psutil

        if self._unsent is not None:
            self.send_progress(self._unsent)
        try:
            memory = psutil.Process(self._child.pid).memory_info()
        except psutil.NoSuchProcess:
            return
        limits, taken = self._limits, 0.0
        if self._libraries_mb is not None:
            resident, own = self._libraries_mb
            taken = memory.rss / 2**20 - resident
            if not limits.counts_files:
                taken = (memory.rss - memory.shared) / 2**20 - own
        if limits.memory_mb and taken > limits.memory_mb:
            words = f"takes more than the {limits.memory_mb} MB that models may take here"
            self._kill(f"{words}, {limits.bound}" if limits.bound else words)
        if time.monotonic() > limits.deadline:
            self._kill(f"hangs: no verdict within {limits.timeout_s:g} s")
        why = limits.stopped()
        if why is not None:
            self._kill(why)


def run_trial(  # noqa: PLR0913 - all that bounds a trial
    folder: Path,
    choices: Sequence[EngineChoice],
    kind: Kind,
    *,
    golden: bool,
    timeout_s: float,
    memory_mb: int,
    bound: str = "",
    stopped: Callable[[], str | None] = lambda: None,
    process: TrialProcess | None = None,
    forms: Forms | None = None,
    frame: FrameSource = lambda _specs: None,
) -> Verdict:
    """Return the verdict of a child process on a model, tried on engine *choices* in order.

    It counts as hung after *timeout_s*; beyond what it takes without a model it may take
    *memory_mb* of *bound*, 0: no limit. *stopped* returns why to stop. A given *process* already
    runs, may have followed the model, and has its own source of frames instead of *frame*. With
    *forms*, for a model larger than all models may take, a prepared form is made to stream from:
    that has its own time limit, and its memory is not counted.
    """
    question = {
        "folder": str(folder),
        "kind": kind,
        "golden": golden,
        "choices": [choice.words() for choice in choices],
        "forms": None if forms is None else forms.to_json(),
    }
    if forms is not None:
        timeout_s += PREPARE_SECONDS
        memory_mb += CHECK_MB
    for _ in range(_STARTS):
        if process is None or process.why is not None:
            # A child killed while the model arrived says nothing about the complete model.
            process = TrialProcess([choice.engine for choice in choices], memory_mb, frame)
        verdict = process.judge(
            question, timeout_s=timeout_s, memory_mb=memory_mb, stopped=stopped, bound=bound
        )
        if not process.was_told_to_end:
            break
        process = None
    return verdict


def _cause_of_death(status: int, words: bytes) -> str:
    """Return how a child ended, as the reason for a verdict."""
    if (name := signal_name(status)) is not None:
        return f"crashes the engine ({name})"
    return f"its trial failed: {last_line(words) or f'status {status}'}"
