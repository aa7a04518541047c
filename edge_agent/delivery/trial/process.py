"""A candidate's trial in a process of its own, as the agent sees it.

A native crash, a hang or too much memory ends the child, never the agent. The child runs
`python -m edge_agent.delivery.trial.worker`: requests are lines of JSON on its stdin, the verdict
is
the last line of its stdout.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.child import kill_group, last_line, signal_name
from ...core.types import Kind, Tensors, TensorSpec
from ...inference.engines.protocol import EngineChoice
from ...runtime.serving.out_of_core import OutOfCore
from ..early.growing_file import PROGRESS
from .worker import Verdict

__all__ = ["TrialProcess", "Verdict", "run_trial"]

Frame = Callable[[tuple[TensorSpec, ...]], Tensors | None]

POLL_SECONDS = 0.05
PREPARE_SECONDS = 600.0
"""To prepare a model that cannot be loaded whole."""
_WORDS = 4096
"""Of what the child says before it dies, at most."""
_LONGEST = 1 << 20
"""Of a line."""

CHECK_MB = 64
"""To check the files of such a model, and to run it part by part."""

log = logging.getLogger(__name__)


class TrialProcess:
    """A child that is ready for one candidate."""

    def __init__(self, engines: Sequence[str], memory_mb: int, frame: Frame) -> None:
        """Start it; it loads its libraries.

        Args:
            engines: that it may need.
            memory_mb: what it may take beyond what it takes with no model; 0: no bound.
            frame: gives a live frame, as inputs of a network, or None.

        """
        self._saying = threading.Lock()
        stdin, self._questions = os.pipe2(os.O_CLOEXEC)
        self._answers, stdout = os.pipe2(os.O_CLOEXEC)
        self._errors, stderr = os.pipe2(os.O_CLOEXEC)
        # Keeps records apart, and takes a file along.
        self._news, news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._place = os.memfd_create("frame", os.MFD_CLOEXEC)
        try:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "edge_agent.delivery.trial.worker",
                    str(news.fileno()),
                    str(self._place),
                ],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=(news.fileno(), self._place),
                # Else NumPy's library starts threads that wait by spinning; nobody here needs them.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        except BaseException:
            self._close()
            raise
        finally:
            news.close()
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        # Whoever has news goes on, whatever the child does.
        self._news.setblocking(False)
        self._memory_mb = memory_mb
        self._frame = frame
        self._unsaid: bytes | None = None
        self._libraries_mb: tuple[float, float] | None = None
        """What it takes with no model: all, and what is not of files."""
        self._counts_files = True
        """Whether what is mapped of files counts."""
        self._deadline: tuple[float, float] | None = None
        """When its time is over, and how long that was, s."""
        self._stopped: Callable[[], str | None] = lambda: None
        self._words = b""
        self._verdict: Verdict | None = None
        self.wish: tuple[int, int] | None = None
        """Bytes that it would like to have before their turn."""
        self.why: str | None = None
        """Why it was ended."""
        self._ended = threading.Event()
        self._tell(engines=list(engines))
        threading.Thread(target=self._attend, name="trial", daemon=True).start()

    def follow(self, question: Mapping[str, Any], data: int) -> None:
        """Have it run a model that is arriving; see `arriving.follow`.

        Args:
            question: what to do.
            data: descriptor of the file that is being filled; may be closed afterwards.

        """
        with self._saying, contextlib.suppress(OSError):  # it has ended
            socket.send_fds(self._news, [PROGRESS.pack(0, False)], [data])
        self._tell(**question)

    def news(self, record: bytes) -> None:
        """Tell how far that model has come; never waits."""
        with self._saying:
            try:
                self._news.send(record)
                self._unsaid = None
            except BlockingIOError:
                self._unsaid = record  # said again by the attendant
            except OSError:
                self._unsaid = None  # it has ended: whoever asks for its verdict hears of it

    def judge(
        self,
        question: Mapping[str, Any],
        *,
        timeout_s: float,
        memory_mb: int,
        stopped: Callable[[], str | None],
    ) -> Verdict:
        """Have it judge a model, and wait for its verdict; the arguments are `run_trial`'s."""
        self._memory_mb = memory_mb
        # What comes and goes is mapped: the kernel takes it back whenever it likes.
        self._counts_files = question["oversize"] is None
        self._stopped = stopped
        self._deadline = (time.monotonic() + timeout_s, timeout_s)
        self._tell(**question)
        self._ended.wait()
        if self.why is not None:
            return Verdict(False, self.why)
        if self._child.returncode != 0:
            return Verdict(False, _death(self._child.returncode, self._words))
        return self._verdict or Verdict(False, "its trial ended without a verdict")

    def close(self) -> None:
        """End it; may be called twice."""
        self._end("is not needed any more")
        self._ended.wait()

    @property
    def ended(self) -> bool:
        """Whether the child is gone."""
        return self._ended.is_set()

    @property
    def pid(self) -> int:
        return self._child.pid

    def _tell(self, **what: Any) -> None:
        """Say a line; they are so few and so short that this never waits."""
        with self._saying, contextlib.suppress(BrokenPipeError):
            if self._questions >= 0:
                os.write(self._questions, json.dumps(what).encode() + b"\n")

    def _end(self, why: str) -> None:
        if self._child.poll() is None:
            self.why = self.why or why
            kill_group(self._child.pid)

    # The attendant

    def _attend(self) -> None:
        """Hear what the child says, and see that it takes no more than it may."""
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            selector.register(self._errors, selectors.EVENT_READ)
            while selector.get_map():
                # What it has started may outlive it, and keep its pipes open.
                over = self._child.poll() is not None
                ready = selector.select(0 if over else POLL_SECONDS)
                if over and not ready:
                    break
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd == self._errors:
                        self._words = (self._words + data)[-_WORDS:]
                    else:
                        *lines, rest = (rest + data).split(b"\n")
                        for line in lines:
                            self._hear(line)
                        rest = rest[-_LONGEST:]
                self._watch()
        self._child.wait()
        kill_group(self._child.pid)
        self._close()
        self._ended.set()

    def _close(self) -> None:
        with self._saying:
            for descriptor in (
                self._questions,
                self._answers,
                self._errors,
                self._place,
            ):
                os.close(descriptor)
            self._news.close()
            self._questions = -1

    def _hear(self, line: bytes) -> None:
        try:
            says = json.loads(line)
            if not isinstance(says, dict):
                return
            if "libraries_mb" in says:
                resident, own = says["libraries_mb"]
                self._libraries_mb = float(resident), float(own)
            elif "wish" in says:
                start, stop = says["wish"]
                self.wish = (int(start), int(stop))
            elif "frame" in says:
                self._give_frame(says["frame"])
            elif "verdict" in says:
                self._verdict = Verdict(**says["verdict"])
        except (ValueError, TypeError):
            return  # an engine's own words on stdout: what counts is a verdict
        except Exception as problem:  # noqa: BLE001 - whatever the child asks for, the agent lives
            log.warning("trial: its child asked in vain: %s", problem)
            self._tell(frame=None)

    def _give_frame(self, inputs: list[Any]) -> None:
        """Put a frame where the child finds it, and tell it what is there."""
        specs = [TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in inputs]
        tensors = self._frame(tuple(specs))
        if tensors is None:
            self._tell(frame=None)
            return
        told, at = [], 0
        for name, array in tensors.items():
            os.pwrite(self._place, array.tobytes(), at)
            told.append((name, array.dtype.str, array.shape, at, at + array.nbytes))
            at += array.nbytes
        self._tell(frame=told)

    def _watch(self) -> None:
        """End a child that hangs, takes too much, or is not needed any more."""
        import psutil

        if self._unsaid is not None:
            self.news(self._unsaid)
        try:
            memory = psutil.Process(self._child.pid).memory_info()
        except psutil.NoSuchProcess:
            return
        taken = 0.0
        if self._libraries_mb is not None:
            resident, own = self._libraries_mb
            taken = memory.rss / 2**20 - resident
            if not self._counts_files:
                taken = (memory.rss - memory.shared) / 2**20 - own
        if self._memory_mb and taken > self._memory_mb:
            self._end(f"takes more than the {self._memory_mb} MB that models may take here")
        if self._deadline is not None and time.monotonic() > self._deadline[0]:
            self._end(f"hangs: no verdict within {self._deadline[1]:g} s")
        why = self._stopped()
        if why is not None:
            self._end(why)


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
    oversize: OutOfCore | None = None,
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
        process: a child that is there already, and has perhaps followed the model; it is used up.
        oversize: how to load it, as it is larger than all models may take; None: it is not. To
            prepare such a model takes time of its own, and memory that is not counted.

    """
    question = {
        "folder": str(folder),
        "kind": kind,
        "golden": golden,
        "choices": [choice.words() for choice in choices],
        "oversize": None if oversize is None else oversize.to_json(),
    }
    if oversize is not None:
        timeout_s += PREPARE_SECONDS
        memory_mb += CHECK_MB
    if process is None or (process.ended and process.why is not None):
        # One that was ended while the model arrived says nothing about the whole of it.
        process = TrialProcess([choice.engine for choice in choices], memory_mb, _no_frame)
    return process.judge(question, timeout_s=timeout_s, memory_mb=memory_mb, stopped=stopped)


def _no_frame(_specs: tuple[TensorSpec, ...]) -> None:
    return None


def _death(status: int, words: bytes) -> str:
    """Say how a child ended."""
    if (name := signal_name(status)) is not None:
        return f"crashes the engine ({name})"
    return f"its trial failed: {last_line(words) or f'status {status}'}"
