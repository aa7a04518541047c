"""The composition root: starts the way of a frame, then all the rest; closes in reverse.

The only place that knows everybody. A start from a plan (`start`) brings the frames to life first
and the rest after the first result; a start without one checks everything before anything runs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from . import systemd
from .crew import Stop, Stops, stop_on_dead_threads, stop_on_signals
from .errors import AgentError
from .frames import Frames, may_write
from .settings import Settings
from .start.clock import Clock
from .store.claim import claim

if TYPE_CHECKING:
    from .control import Control, Opened

log = logging.getLogger(__name__)

FIRST_RESULT_SECONDS = 10.0
"""How long orders, pushes and health wait for a first result that is to be expected."""


class Restart(Exception):
    """The agent shall be started anew in the same place."""


class Agent:
    """One run of the daemon."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings], clock: Clock) -> None:
        """Look at everything, and open what can be opened without waiting for anyone.

        Args:
            settings: checked settings.
            reread: reads them again from where they came from.
            clock: measures the start.

        Raises:
            UsageError: something the settings name is not as it should be.

        """
        may_write(settings)
        self._reread = reread
        self._clock = clock
        self._stops = Stops()
        self._opened: Opened | None = None
        self._opened = self._open(settings)
        self._frames = Frames(
            settings,
            lanes=self._opened.engines.lanes,
            library=lambda: self._opening.library,
            engines=lambda: self._opening.engines,
            stops=self._stops,
            clock=clock,
        )
        self._control: Control | None = None
        self._closing = False
        self._changing = threading.Lock()
        """Held while the control comes to life or is closed."""

    @staticmethod
    def _open(settings: Settings) -> Opened:
        from .control import Opened

        return Opened(settings)

    @property
    def _opening(self) -> Opened:
        if self._opened is None:
            self._opened = self._open(self._frames.settings)
        return self._opened

    def run(self) -> Stop:
        """Run until something gives a reason to stop; close everything; return the reason."""
        frames = self._frames
        stop_on_signals(self._stops, self._reload)
        stop_on_dead_threads(self._stops)
        with ExitStack() as stack:
            stack.enter_context(claim(frames.settings.state))
            stack.callback(frames.servings.close)
            # Outlives the workers, who publish; on the way out it says goodbye.
            stack.callback(frames.link.close)
            stack.callback(self._close_transfers)
            stack.enter_context(frames.crew)
            stack.callback(self._close_control)
            stack.callback(frames.board.close)
            stack.callback(frames.halt)
            self._begin_control()
            # Not of the crew: it publishes until the last of them is done.
            connecting = threading.Thread(
                target=self._guarded, args=("link", frames.link.run), daemon=True
            )
            connecting.start()
            stack.callback(systemd.notify, "STOPPING=1")
            frames.start()
            systemd.notify("READY=1", f"STATUS={len(frames.pipelines)} pipelines")
            stop = self._stops.wait(self._ticker())
        if self._control is not None and self._control.restarting:
            raise Restart
        return stop

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported, not swallowed
            self._stops.put(Stop(f"{name} crashed", error))

    def _begin_control(self) -> None:
        from .control import Control

        control = Control(self._frames, self._opening, self._stops, self._reread)
        control.recover()
        with self._changing:
            if self._closing:
                return
            self._control = control
            control.start()

    def _close_control(self) -> None:
        with self._changing:
            self._closing = True
        if self._control is not None:
            self._control.suspend()
            self._control.close()

    def _close_transfers(self) -> None:
        if self._control is not None:
            self._control.close_transfers()

    def _reload(self) -> None:
        if self._control is not None:
            self._control.reload()

    def _ticker(self) -> Callable[[], float]:
        """Make what the main thread does between waits: watch, feed the watchdog, say how it is."""
        frames = self._frames
        feed = systemd.watchdog_seconds()
        interval = frames.settings.health.interval_s
        next_health = time.monotonic() + min(1.0, interval)
        next_feed = 0.0
        fed = 0

        def tick() -> float:
            nonlocal next_health, next_feed, fed
            now = time.monotonic()
            frames.watch()
            if feed is not None and now >= next_feed and frames.moves(2 * feed):
                systemd.notify("WATCHDOG=1")
                fed += 1
                next_feed = now + feed
            if now >= next_health and self._control is not None:
                next_health = max(next_health + frames.settings.health.interval_s, now)
                self._control.health.watchdog = {"enabled": feed is not None, "fed": fed}
                self._control.say_health()
            return min(1.0, max(0.0, next_health - now), feed or 1.0)

        return tick


def run(settings: Settings, reread: Callable[[], Settings], clock: Clock) -> int:
    """Run the daemon; the exit status of `edge-agent run`."""
    try:
        stop = Agent(settings, reread, clock).run()
    except Restart:
        log.info("restarting")
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - ourselves, as we were started
    if stop.asked:
        log.info("stopped: %s", stop.reason)
        return 0
    if isinstance(stop.error, AgentError):
        raise stop.error
    log.error("stopped: %s", stop.reason, exc_info=stop.error)
    return 1
