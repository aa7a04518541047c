"""A candidate's trial in a process of its own, as the agent sees it.

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
PREPARE_SECONDS = 600.0
"""To prepare a model that cannot be loaded whole."""
_STDERR_BYTES = 4096
"""Of the child's stderr, its end, for the reason of its death."""
_LINE_BYTES = 1 << 20
"""Of a line."""

CHECK_MB = 64
"""To check the files of such a model, and to run it part by part."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Limits:
    """The child's limits."""

    memory_mb: int
    counts_files: bool = True
    """Whether mapped files count; the kernel can take their memory back at any time."""
    deadline: float = math.inf
    """Monotonic clock when its time is over …"""
    timeout_s: float = math.inf
    """… and that time."""
    stopped: Callable[[], str | None] = lambda: None
    """Returns why it need not go on; None: it shall."""


class TrialProcess:
    """A child that is ready for one candidate."""

    def __init__(self, engines: Sequence[str], memory_mb: int, frame: FrameSource) -> None:
        """Start the child; it loads the libraries of *engines*.

        *memory_mb* is its memory limit beyond the memory that it takes with no model; 0: no bound.
        """
        self._sending = threading.Lock()
        # Keeps records apart, and takes a file along.
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
                # Else NumPy's library starts threads that wait by spinning, and are not needed.
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
        """Memory that it takes with no model: all of it, and that without mapped files."""
        self._stderr = b""
        self._verdict: Verdict | None = None
        self.wish: tuple[int, int] | None = None
        """Bytes that it wants before their turn."""
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
        """Send how far that model has arrived; never waits."""
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
    ) -> Verdict:
        """Ask it to judge a model, and return its verdict; the arguments are `run_trial`'s."""
        mapped = question["forms"] is not None
        deadline = time.monotonic() + timeout_s
        self._limits = _Limits(memory_mb, not mapped, deadline, timeout_s, stopped)
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
    def pid(self) -> int:
        return int(self._child.pid)

    def _send(self, **what: Any) -> None:
        """Send a line; they are so few and so short that this never waits."""
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
                # Its own children may outlive it and keep its pipes open.
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
                self._libraries_mb = float(resident), float(own)
            elif "wish" in message:
                start, stop = message["wish"]
                self.wish = (int(start), int(stop))
            elif "frame" in message:
                self._send_frame(message["frame"])
            elif "verdict" in message:
                self._verdict = Verdict(**message["verdict"])
        except (ValueError, TypeError):
            return  # printed by an engine: what counts is a verdict
        except Exception as problem:  # noqa: BLE001 - whatever the child asks for, the agent lives
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
            self._kill(f"takes more than the {limits.memory_mb} MB that models may take here")
        if time.monotonic() > limits.deadline:
            self._kill(f"hangs: no verdict within {limits.timeout_s:g} s")
        why = limits.stopped()
        if why is not None:
            self._kill(why)


def run_trial(
    folder: Path,
    choices: Sequence[EngineChoice],
    kind: Kind,
    *,
    golden: bool,
    timeout_s: float,
    memory_mb: int,
    stopped: Callable[[], str | None] = lambda: None,
    process: TrialProcess | None = None,
    forms: Forms | None = None,
    frame: FrameSource = lambda _specs: None,
) -> Verdict:
    """Return the verdict of a child process on a model, tried on *choices* of engines in order.

    It counts as hung after *timeout_s*; beyond what it takes with no model it may take *memory_mb*,
    0: no bound. *stopped* returns why it need not go on. *process* runs already, has perhaps
    followed the model, and has a *frame* of its own. With *forms* its prepared form is made to
    stream from, as it is larger than all models may take: that takes time of its own, and memory
    that is not counted.
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
    if process is None or (process.ended and process.why is not None):
        # One that was killed while the model arrived says nothing about the complete model.
        process = TrialProcess([choice.engine for choice in choices], memory_mb, frame)
    return process.judge(question, timeout_s=timeout_s, memory_mb=memory_mb, stopped=stopped)


def _cause_of_death(status: int, words: bytes) -> str:
    """Return how a child ended, as the reason of a verdict."""
    if (name := signal_name(status)) is not None:
        return f"crashes the engine ({name})"
    return f"its trial failed: {last_line(words) or f'status {status}'}"
