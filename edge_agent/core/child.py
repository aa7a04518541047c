"""One question to a child process: JSON on its stdin, the answer in the last line of its stdout.

For native code that may crash, hang or never release memory: it takes the child down, not the
agent. The parent uses `Child` or `ask`; the module that runs in the child calls `answer_question`.
A child that sends more than one answer (`delivery.trial`, a language model) uses the lower-level
functions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import errors
from .errors import AgentError

POLL_SECONDS = 0.1
"""Interval of the checks whether the answer is still wanted."""
KILLED_SECONDS = 1.0
"""Time to wait for a killed child; one that is stuck in a driver is left to the kernel."""
PAUSE_SECONDS = 0.07
"""How long a yielding child is stopped after each `POLL_SECONDS`. On a machine whose cores are all
in use, an unstopped child costs other processes a sixth of their rate, whatever its niceness
(measured)."""
PR_SET_PDEATHSIG = 1
"""prctl(2)."""


class ChildError(AgentError):
    """A child that could not be started, died or gave no answer in time."""


class ChildStoppedError(ChildError):
    """A child that was killed because its answer is no longer wanted."""


class Child:
    """A child process that has received its question."""

    def __init__(
        self, module: str, question: Any, name: str, *, stderr: int | None = subprocess.PIPE
    ) -> None:
        """Start the child.

        Raises:
            ChildError: it could not be started.
        """
        self._name = name
        # A file, not a pipe: whatever its size, it is handed over without waiting for the child.
        with open(os.memfd_create("question"), "w+b") as stdin:  # noqa: PTH123 - a descriptor
            stdin.write(json.dumps(question).encode())
            stdin.seek(0)
            self._process = start_child(module, name, stdin.fileno(), stderr)

    def answer(
        self,
        timeout_s: float | None = None,
        stopped: Callable[[], str | None] = lambda: None,
        yields: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Wait for the answer and the end of the child.

        Args:
            timeout_s: the time after which the child counts as hung and is killed; None: no limit.
            stopped: returns why the answer is no longer wanted, or None; called often.
            yields: returns whether the child should pause for others; called often.

        Raises:
            ChildStoppedError: *stopped* returned a reason, which is the error's text.
            ChildError: the child did not answer in time, or it died.
            AgentError: the child raised an error of this class.
        """
        try:
            output, words = self._talk(timeout_s, stopped, yields)
        except BaseException:
            self._kill()
            raise
        status = self._process.returncode
        try:
            said = json.loads(output.splitlines()[-1])
            if status < 0 or not isinstance(said, dict):
                raise ValueError
        except (ValueError, IndexError):
            raise ChildError(f"{self._name} {_end(status, words or b'')}") from None
        if "problem" in said:
            raise getattr(errors, said["kind"], AgentError)(said["problem"])
        return said["answer"]

    def _talk(
        self,
        timeout_s: float | None,
        stopped: Callable[[], str | None],
        yields: Callable[[], bool],
    ) -> tuple[bytes, bytes | None]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                return self._process.communicate(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            if (why := stopped()) is not None:
                raise ChildStoppedError(why)
            if deadline is not None and time.monotonic() > deadline:
                raise ChildError(
                    f"{self._name} gave no answer within {timeout_s:g} s and was killed"
                )
            if yields():
                self._pause()

    def _pause(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)
            try:
                time.sleep(PAUSE_SECONDS)
            finally:
                os.killpg(self._process.pid, signal.SIGCONT)

    def _kill(self) -> None:
        kill_group(self._process.pid)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILLED_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def start_child(
    module: str, name: str, stdin: int, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a child with a pipe as its stdout; *stderr* None: that of this process.

    Raises:
        ChildError: it could not be started.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    try:
        return subprocess.Popen(
            # -P: modules that happen to lie in the working directory are not imported.
            [sys.executable, "-P", "-m", module],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": path},
            # Its own group, to be killed with its children; but not a session: if the kernel
            # divides the processor by session (autogroup), nice applies only within one.
            process_group=0,
        )
    except OSError as problem:
        raise ChildError(f"{name} could not be started: {problem.strerror}") from problem


def ask(
    module: str,
    question: Any,
    name: str,
    *,
    timeout_s: float | None = None,
    stopped: Callable[[], str | None] = lambda: None,
    yields: Callable[[], bool] = lambda: False,
    stderr: int | None = subprocess.PIPE,
) -> Any:
    """Return a child's answer to one question; arguments and errors as in `Child`."""
    return Child(module, question, name, stderr=stderr).answer(timeout_s, stopped, yields)


def kill_group(leader: int) -> None:
    """Kill a child that leads its own process group, and its children."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def signal_name(status: int) -> str | None:
    """Return the name of the signal that ended a child, or None if it exited by itself."""
    if status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def last_line(words: bytes) -> str:
    """Return the last line that a child wrote to stderr, or "" if there is none."""
    lines = words.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _end(status: int, words: bytes) -> str:
    if (name := signal_name(status)) is not None:
        return f"ended with {name}"
    last = last_line(words)
    return f"ended with status {status} and no answer{': ' if last else ''}{last}"


# In the child


def answer_question(work: Callable[[Any], Any], *, background: bool = False) -> NoReturn:
    """Answer the question on stdin with the result of *work*, and end this process."""
    die_with_parent()
    if background:
        run_in_background()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # native libraries print, too
    question = json.loads(sys.stdin.buffer.read())
    try:
        said = {"answer": work(question)}
    except AgentError as problem:
        said = {"problem": str(problem), "kind": type(problem).__name__}
    answers.write("\n" + json.dumps(said) + "\n")
    answers.flush()
    # Engines may crash during shutdown; that says nothing about the answer.
    os._exit(0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    If that thread has already ended, nobody reads our stdout, and this process exits here.
    """
    import ctypes
    import select

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    pipe = select.poll()
    pipe.register(1, 0)
    if any(event & select.POLLERR for _, event in pipe.poll(0)):
        os._exit(1)


def run_in_background(niceness: int = 10) -> None:
    """Give the agent priority for processor and memory, and write no core file."""
    import resource

    os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If memory runs out anyway, the kernel should kill this process, not the agent.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
