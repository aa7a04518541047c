"""Starting anew in the same process, by `execv`, so that no signal is lost on the way."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from ...core.timeline import mark_reexec

ENDING = (signal.SIGTERM, signal.SIGINT)
_HELD = (*ENDING, signal.SIGHUP)


def hold_signals() -> None:
    """Let signals wait, over `execv` too, until `release`.

    Those that came before have been handled when this returns: Python sees to it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_signals() -> None:
    """Take up what has waited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def restart() -> NoReturn:
    """Begin again as this process was started; signals are held."""
    # A thread in native code may be there still, which does not hold them. What it gets in this
    # last moment ends the process; a handler would note it, for nobody.
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    mark_reexec()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - ourselves, as we were started
