"""Restart in the same process, by `execv`, without losing a signal."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from ...core.timeline import mark_reexec

ENDING = (signal.SIGTERM, signal.SIGINT)
_HELD = (*ENDING, signal.SIGHUP)


def hold_signals() -> None:
    """Block signals, over `execv` too, until `release_signals`.

    Those that came before have been handled when this returns: Python ensures it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_signals() -> None:
    """Unblock signals; those that are pending are delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def restart() -> NoReturn:
    """Execute this program again, as it was started; signals must be held."""
    # A thread in native code may still run, which does not block them. A signal that it gets in
    # this last moment ends the process; a handler would set a flag that is lost.
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    mark_reexec()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - ourselves, as we were started
