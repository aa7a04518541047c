"""`edge-agent run`: models load while the rest of the program is imported.

From the plan of the last good start; where there is none, from one that is drafted.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from ..config.locations import config_file
from ..core.errors import AgentError, print_error
from ..core.flight_recorder import clear_starting, mark_starting, previous_crash
from ..core.timeline import Timeline
from .fast_start.fingerprint import digest
from .fast_start.plan import find
from .fast_start.preload import Preload
from .fast_start.reexec import ENDING, hold_signals, release_signals, restart


def run_from_plan(arguments: Sequence[str], timeline: Timeline) -> int | None:
    """Run the daemon from the plan of the last good start, or from a draft.

    Returns:
        The exit status; None where neither can be: the normal start follows.

    """
    words = [word for word in arguments if word not in {"-v", "--verbose"}]
    if words[:1] != ["run"]:
        return None
    _mind_signals()
    if arguments[0] != "run":
        return None
    match list(arguments[1:]):
        case []:
            given = None
        case ["--config", given]:
            pass
        case [text] if text.startswith("--config="):
            given = text.removeprefix("--config=")
        case _:
            return None
    start = time.monotonic()
    config = config_file(given)
    if config is None:
        return None
    origins = digest(config)
    plan, drafted = find(config, origins), None
    if plan is None:
        from .fast_start.draft import draft

        drafted = draft(config, origins)
        plan = None if drafted is None else drafted.plan
    if plan is None or not _may_start_quickly(plan.state):
        return None
    timeline.record("settings", time.monotonic() - start)
    start = time.monotonic()
    try:
        early = Preload(plan, timeline)
    except (ImportError, RuntimeError):
        # An engine has been uninstalled, or no thread can be made: the normal start finds another
        # way, or reports it.
        clear_starting(plan.state)
        return None
    from .agent import resume

    timeline.record("imports", time.monotonic() - start)
    try:
        return resume(plan, early, config, timeline, drafted)
    except AgentError as problem:
        status = print_error(problem)
        clear_starting(plan.state)
        sys.stderr.flush()
        # A model may still be loading: native code that returns to an interpreter that is shutting
        # down aborts.
        os._exit(status)


def _may_start_quickly(state: str) -> bool:
    """Whether nothing in the last run speaks against loading models at once."""
    last = previous_crash(state)
    return (last is None or not last.self_inflicted) and mark_starting(state)


def _mind_signals() -> None:
    """Install handlers for signals that arrive before the agent exists: to stop is no failure."""

    def anew(*_: object) -> None:
        # What has been read of the settings is out of date. Until they are read again there is
        # nothing that another SIGHUP could mean; that it is ignored outlasts `execv`.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        hold_signals()
        restart()

    # Not `sys.exit`: where the signal falls into a destructor, Python drops that.
    for number in ENDING:
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, anew)
    release_signals()
