"""`edge-agent run` from a plan: native work is begun before the rest of the program is imported."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

from ..errors import AgentError, status_of
from .clock import Clock
from .early import Early
from .origins import config_file, digest
from .plan import find


def begin(arguments: Sequence[str], clock: Clock) -> int | None:
    """Run the daemon from the plan of the last good start.

    Returns:
        The exit status; None where there is no plan that holds: the slow way shall be taken.

    """
    if not arguments or arguments[0] != "run":
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
    plan = find(config, digest(config))
    if plan is None:
        return None
    clock.take("settings", time.monotonic() - start)
    # Told to stop before there is anything to stop: that is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    start = time.monotonic()
    early = Early(plan, clock)
    from ..agent import resume

    clock.take("imports", time.monotonic() - start)
    try:
        return resume(plan, early, config, clock)
    except AgentError as problem:
        return status_of(problem)
