"""`edge-agent run` from a plan: native work is begun before the rest of the program is imported."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from .clock import Clock
from .origins import config_file, digest
from .plan import Plan, Quick, find


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
    return resume(plan, early, config, clock)


class Early:
    """What is under way while the rest of the program is imported."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        """Import the libraries that the first result needs, and begin to load its models."""
        # Nothing that is made during the start is garbage, and a thread that has come back from
        # native code must not wait 5 ms for its turn.
        gc.disable()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)
        self._building: dict[int, Begun] = {}
        import numpy  # noqa: F401, ICN001 - both engines need it, and it takes longest

        for index, quick in enumerate(plan.models):
            if quick.choice["engine"] == "onnxruntime" and quick.form:
                self._building[index] = Begun(quick, clock)
        if any(quick.kind == "picture" for quick in plan.models):
            import_module("edge_agent.sources.opencv").load()

    def engine(self, index: int) -> Any:
        """Give what was begun of a plan's model: see `engines.ortform`; None: nothing was."""
        begun = self._building.pop(index, None)
        return begun.result() if begun is not None else None

    def over(self) -> None:
        """Let Python be as it is without a start."""
        sys.setswitchinterval(self._interval)
        gc.enable()


class Begun:
    """A model that is being loaded in a thread of its own."""

    def __init__(self, quick: Quick, clock: Clock) -> None:
        # Imported here, in the thread that has nothing else to do: two threads that import at a
        # time only wait for each other.
        module = import_module("edge_agent.engines.ortform")
        self._open: Callable[[str, Any], Any] = module.begin
        self._result: Any = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(quick, clock), daemon=True)
        self._thread.start()

    def _work(self, quick: Quick, clock: Clock) -> None:
        start = time.monotonic()
        try:
            self._result = self._open(quick.form, quick.choice)
        except BaseException as problem:  # noqa: BLE001 - raised where the result is asked for
            self._problem = problem
        clock.take("build", time.monotonic() - start)

    def result(self) -> Any:
        """Wait for it.

        Raises:
            FormError: the prepared form cannot be used.

        """
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._result
