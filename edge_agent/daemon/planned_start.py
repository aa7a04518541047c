"""`edge-agent run`: models load while the rest of the program is imported.

From the plan of the last good start, or from a drafted one if there is none.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..config.locations import config_file
from ..core.errors import AgentError, print_error
from ..core.flight_recorder import clear_starting, mark_starting, previous_crash
from ..core.timeline import Timeline
from .fast_start.fingerprint import digest
from .fast_start.plan import Plan, find
from .fast_start.preload import Preload
from .fast_start.reexec import ENDING, hold_signals, release_signals, restart

if TYPE_CHECKING:
    from .fast_start.drafting import Drafting

_forks: list[Drafting] = []
"""Drafts that must not outlive a restart of this program, which would not know of them."""


def run_from_plan(arguments: Sequence[str], timeline: Timeline) -> int | None:
    """Run the daemon from the plan of the last good start, or from a draft.

    Returns:
        The exit status; None if there is neither, and the normal start follows.
    """
    words = [word for word in arguments if word not in {"-v", "--verbose"}]
    if words[:1] != ["run"]:
        return None
    _mind_signals()
    options = arguments[: arguments.index("run")]
    match list(arguments[len(options) + 1 :]):
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
    plan = find(config, origins)
    drafted = plan is None
    early = Preload(timeline)
    try:
        if plan is None:
            plan = _draft(early, config, origins, timeline)
        elif _may_start_quickly(plan.state):
            timeline.record("settings", time.monotonic() - start)
            start = time.monotonic()
            early.begin(plan)
        else:
            plan = None
    except (ImportError, RuntimeError, OSError):
        # An engine was uninstalled, or no thread or process can be started: the normal start finds
        # another way, or reports it.
        if plan is not None:
            clear_starting(plan.state)
        plan = None
    if plan is None:
        early.restore_python()
        return None
    from .agent import resume

    timeline.record("imports", time.monotonic() - start)
    try:
        return resume(plan, early, config, timeline, drafted=drafted, verbose=bool(options))
    except AgentError as problem:
        status = print_error(problem)
        clear_starting(plan.state)
        sys.stderr.flush()
        # A model may still be loading: native code that returns to an interpreter that is shutting
        # down aborts.
        os._exit(status)


def _draft(early: Preload, config: str, origins: str, timeline: Timeline) -> Plan | None:
    """Draft a plan while importing what every start needs, and start loading from it."""
    from .fast_start.drafting import Drafting

    start = time.monotonic()
    drafting = Drafting(config, origins)
    _forks.append(drafting)
    try:
        early.import_engine()
        plan = drafting.plan()
        timeline.record("settings", time.monotonic() - start)
        if plan is not None and _may_start_quickly(plan.state):
            early.begin(plan, drafting)
            return plan
    except BaseException:
        drafting.close()
        raise
    drafting.close()
    return None


def _may_start_quickly(state: str) -> bool:
    """Whether the last run gives no reason against loading models at once."""
    last = previous_crash(state)
    return (last is None or not last.self_inflicted) and mark_starting(state)


def _mind_signals() -> None:
    """Install handlers for signals that arrive before the agent exists: stopping is no failure."""

    def end_forks() -> None:
        for fork in _forks:
            fork.close()

    def anew(*_: object) -> None:
        # The settings read so far are out of date. Until they are read again, another SIGHUP would
        # mean nothing; ignoring it persists across `execv`.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        hold_signals()
        end_forks()
        restart()

    def end(*_: object) -> None:
        end_forks()
        # Not `sys.exit`: Python ignores that if the signal arrives in a destructor.
        os._exit(0)

    for number in ENDING:
        signal.signal(number, end)
    signal.signal(signal.SIGHUP, anew)
    release_signals()
