"""Restarting in the same process, with `execv`, without losing a signal."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from ...core.timeline import mark_reexec

ENDING = (signal.SIGTERM, signal.SIGINT)
_HELD = (*ENDING, signal.SIGHUP)


def hold_signals() -> None:
    """Block signals, even across `execv`, until `release_signals`.

    Signals that came before have been handled when this returns. Only the main thread calls it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    # Within a handler, Python looks for further signals only once one more comes.
    signal.signal(signal.SIGURG, lambda *_: None)
    signal.raise_signal(signal.SIGURG)


def release_signals() -> None:
    """Unblock signals; pending ones are delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def restart() -> NoReturn:
    """Execute this program again as it was started; signals must be blocked."""
    # A thread in native code that does not block them may still run. A signal that it gets at this
    # point ends the process; a handler would set a flag that is lost.
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    mark_reexec()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - ourselves, as we were started
