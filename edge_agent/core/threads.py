"""The group of the agent's threads, its signal handlers, and the one queue of reasons to stop.

It does not depend on the work of the threads.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from typing import Self

from .errors import NO_THREAD, thread_limit
from .frozen import record

log = logging.getLogger(__name__)

NAMED = 5
"""Most threads left behind that the log names."""
_PATIENCE_S = 2.0
_SOON_S = 0.05

Waiting = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a thread waits for the disk, so that others do its work meanwhile."""


class DiskLock:
    """A lock whose owner may wait for the disk: so does who waits for the lock."""

    def __init__(self, waiting: Waiting) -> None:
        self._lock = threading.Lock()
        self._waiting = waiting

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_SOON_S):
            with self._waiting():
                self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@record
class Stop:
    """A reason to end the agent."""

    reason: str
    error: BaseException | None = None
    asked: bool = False
    """Whether a signal or a command asked for it; False: a failure."""
    restart: bool = False
    """Whether the agent then restarts in the same process."""


class ShutdownQueue:
    """Queue of the main thread: reasons to stop, and calls to make there.

    SimpleQueue because its `put` is reentrant: a signal may land while the main thread holds the
    lock of any other queue.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Stop | Callable[[], None]] = SimpleQueue()
        self.signaled: Stop | None = None
        """The stop that a signal asked for; it has priority over the queue."""
        self.begun = False
        """Whether there is a reason to stop: nothing that takes long is begun after that. Not an
        event, whose lock a signal handler could find held by the thread that it interrupts."""

    def put(self, stop: Stop) -> None:
        self.begun = True
        self._queue.put(stop)

    def call(self, work: Callable[[], None]) -> None:
        """Run *work* in the main thread as soon as that waits."""
        self._queue.put(work)

    def wait(self, tick: Callable[[], float]) -> Stop:
        """Return the first reason to stop; call *tick* again after the seconds that it returns."""
        while True:
            pause = tick()
            try:
                item = self._queue.get(timeout=max(0.0, pause))
            except Empty:
                continue
            if isinstance(item, Stop):
                return item
            if self.signaled is not None:
                return self.signaled  # before anything that was queued earlier
            item()


class _Thread(threading.Thread):
    """A thread that can be started again if the system did not allow it.

    Python's own cannot from 3.13 on: "thread already started".
    """

    def __init__(self, body: Callable[[], None], name: str) -> None:
        super().__init__(target=body, name=name, daemon=True)
        self._again = body

    def start(self) -> None:
        try:
            super().start()
        except RuntimeError:
            super().__init__(target=self._again, name=self.name, daemon=True)
            raise


class ThreadGroup:
    """Threads that end together: the first one to fail stops the whole agent.

    systemd restarts a dead daemon, but nothing restarts half of a live one.
    """

    def __init__(self, stops: ShutdownQueue) -> None:
        self._stops = stops
        self._threads: list[threading.Thread] = []
        self._waiting: deque[threading.Thread] = deque()
        self.left_behind = False
        """Whether a thread did not return from native code in time."""

    @property
    def stopping(self) -> bool:
        """Whether there is a reason to stop."""
        return self._stops.begun

    def spawn(
        self, name: str, work: Callable[[], object], *, patient: bool = False
    ) -> threading.Thread:
        """Run *work* in a thread; it may return at any time, but an exception stops the agent.

        *patient*: if the system allows no further thread now, `start_waiting` starts it later.
        """

        def body() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - reported, not swallowed
                self._stops.put(Stop(f"{name} crashed", error))

        # A daemon thread, so that a read stuck in a driver cannot keep us from exiting.
        thread = _Thread(body, name)
        self._threads = [member for member in self._threads if member.is_alive()]
        try:
            thread.start()
        except RuntimeError:
            if not patient:
                raise
            log.warning("%s: the system allows no further thread; it begins once one is free", name)
            self._waiting.append(thread)
        else:
            self._threads.append(thread)
        return thread

    def start_waiting(self) -> None:
        """Start threads that could not be started before; called about once per second."""
        with suppress(RuntimeError):
            while self._waiting:
                self._waiting[0].start()
                self._threads.append(self._waiting.popleft())

    def problems(self) -> list[str]:
        """Return which threads could not be started yet, as texts for health."""
        names = [thread.name for thread in list(self._waiting)]
        if not names:
            return []
        listed = ", ".join(names[:NAMED]) + ", …" * (len(names) > NAMED)
        return [f"threads: not started yet: {listed} ({len(names)}): {NO_THREAD}"]

    def abandon(self, thread: threading.Thread) -> None:
        """Do not wait for a thread that is stuck in native code."""
        self._threads = [member for member in self._threads if member is not thread]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = [thread.name for thread in self._threads if thread.is_alive()]
        if left:
            self.left_behind = True
            # Not a failure: loading a model cannot be interrupted.
            names = ", ".join(left[:NAMED]) + (", …" if len(left) > NAMED else "")
            log.info("left behind, as they have not ended: %d threads (%s)", len(left), names)


def run_behind() -> None:
    """Give this agent's other threads priority for the processor; Linux counts it by thread."""
    os.nice(10)


def start_thread(
    name: str, work: Callable[[], object], report: Callable[[str], object] = lambda _limit: None
) -> threading.Thread | None:
    """Start a daemon thread; return None, and *report* why, if the system allows none now."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as problem:
        if (limit := thread_limit(problem)) is None:
            raise
        report(str(limit))
        return None
    return thread


def stop_on_signals(stops: ShutdownQueue, reload: Callable[[], None]) -> None:
    """Install handlers: SIGTERM and SIGINT stop the agent, SIGHUP reads the settings again.

    Several SIGHUPs count as one until reading begins, which uses the newest settings.
    """
    waits = False

    def ask(number: int, _frame: object) -> None:
        # A second signal must not end the process while it disconnects. The system ignores it:
        # Python restores the default handler before the process has ended.
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        if stops.signaled is None:
            stops.signaled = Stop(signal.Signals(number).name, asked=True)
            stops.put(stops.signaled)

    def again() -> None:
        nonlocal waits
        waits = False
        reload()

    def ask_again(_number: int, _frame: object) -> None:
        nonlocal waits
        if not waits:
            waits = True
            stops.call(again)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    signal.signal(signal.SIGHUP, ask_again)


def stop_on_dead_threads(stops: ShutdownQueue) -> None:
    """Stop the agent when a thread outside of the group dies.

    When a callback raises, paho's thread dies, yet paho continues to report a connection.
    """

    def died(dead: threading.ExceptHookArgs) -> None:
        name = dead.thread.name if dead.thread else "a thread"
        stops.put(Stop(f"{name} died", dead.exc_value))

    threading.excepthook = died
