"""Preloading of engines and models while the rest of the program is imported."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...core.codec import unpack
from ...core.timeline import Timeline
from ...inference.prepared.artifact import WEIGHTS
from ...inference.prepared.load import ENGINE, load_folder, prefetch
from ...serving.planned_model import PlannedModel
from .plan import Plan
from .readahead import ReadAhead, cached, start_read_ahead

if TYPE_CHECKING:
    from .drafting import Drafting

FIRST_SECONDS = 1.0
"""How long the first of several models has the processor to itself for its first result."""


class Preload:
    """The libraries and models of a start, being loaded in the background."""

    def __init__(self, timeline: Timeline) -> None:
        """Configure Python for a start; nothing is loaded yet."""
        # Nothing made during the start is garbage, and a thread that returns from native code must
        # not wait 5 ms for the GIL.
        gc.disable()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)
        self._timeline = timeline
        self._reading: ReadAhead | None = None
        self._models: list[_Loading | None] = []
        self.first_is_served = threading.Event()
        """Set when the first model has given its first result, or need not be waited for."""

    def import_engine(self) -> None:
        """Import NumPy, and the engine for first results."""
        self._import_numpy()
        self._need(ENGINE)

    def begin(self, plan: Plan, drafting: Drafting | None = None) -> None:
        """Import the libraries that the first result needs, and start loading the plan's models.

        Raises:
            ImportError: a library is no longer installed.
            RuntimeError: the system allows no more threads.
        """
        self._reading = start_read_ahead(plan.state, plan.origins)
        # Other engines' forms are not loaded here: importing their libraries takes longer than
        # loading the forms.
        for index, planned in enumerate(plan.models):
            model = None
            if planned.way == "quick":
                model = _Loading(partial(_begin_quick, planned, index, drafting))
            elif planned.form and planned.choice["engine"] == ENGINE:
                model = _Loading(partial(load_folder, planned.form), planned.form)
            self._models.append(model)
        begun = [model for model in self._models if model is not None]
        formed = [model for model in begun if model.form]
        if formed and self._reading is None and not cached(f"{formed[0].form}/{WEIGHTS}", 0):
            # The libraries are cached, the model is not: the disk need not wait for Python.
            threading.Thread(target=_warm, args=(formed,), daemon=True).start()
        # In this order: what the loader waits for comes first. In one thread: two that import NumPy
        # at the same time may see it incomplete.
        self._import_numpy()
        if begun:
            self._need(ENGINE)
            work = partial(
                _load, begun, drafting, self._reading, self._timeline, self.first_is_served
            )
            threading.Thread(target=work, name="preload", daemon=True).start()
        elif drafting is not None:
            drafting.close()
        if any(quick.kind == "picture" for quick in plan.models):
            if self._reading is not None:
                self._reading.wait("cv2")
            import_module("edge_agent.sources.opencv").load()
        others = {quick.choice["engine"] for quick in plan.models} - {ENGINE}
        if others:
            from ...inference.engines.registry import capabilities

            for engine in sorted(others):
                self._need(capabilities(engine).package)
        if self._reading is not None:
            self._reading.wait()

    def _import_numpy(self) -> None:
        _skip_documentation("numpy", "numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")
        self._need("numpy")

    def _need(self, package: str) -> None:
        if self._reading is not None:
            self._reading.wait(package)
        import_module(package)

    def model(self, index: int) -> Any:
        """Return the load started for a model of the plan, or None.

        It is an `inference.prepared.load.Load`, or what `serving.open.begin_quick` returns.
        """
        model = self._models[index]
        return None if model is None else model.result()

    def restore_python(self) -> None:
        """Restore the garbage collector and the switch interval."""
        sys.setswitchinterval(self._interval)
        gc.enable()


class _Loading:
    """The loading of a model, from its prepared form or the quick way."""

    def __init__(self, work: Callable[[], Any], form: str = "") -> None:
        self.form = form
        """Folder of its prepared form; empty: it is loaded the quick way."""
        self._work = work
        self._result: Any = None
        self._problem: BaseException | None = None
        self._done = threading.Event()

    def load(self) -> None:
        """Load it; keep an error for `result`."""
        try:
            self._result = self._work()
        except BaseException as problem:  # noqa: BLE001 - raised by `result`
            self._problem = problem
        self._done.set()

    def result(self) -> Any:
        """Wait for the load and return it."""
        self._done.wait()
        if self._problem is not None:
            raise self._problem
        return self._result


def _begin_quick(planned: PlannedModel, index: int, drafting: Drafting | None) -> Any:
    # Not needed for models with a form.
    from ...inference.engines.registry import check_quick
    from ...serving.open import begin_quick

    if drafting is not None:
        return begin_quick(drafting.network(planned, index))
    # Defines records of the plan, which nothing else may have imported yet.
    import_module("edge_agent.inference.engines.engine")
    import_module("edge_agent.models.manifest")
    return begin_quick(check_quick(unpack(planned.choice), unpack(planned.folder).network))


def _skip_documentation(package: str, *without: str) -> None:
    """Skip modules of a package that only add its documentation: 4.4 of NumPy's 47 ms.

    If a later version lacks these modules, this has no effect.
    """
    if package not in sys.modules:
        for name in without:
            sys.modules.setdefault(name, ModuleType(name))


def _warm(models: Sequence[_Loading]) -> None:
    """Read the models that are loaded later into the page cache."""
    for begun in models:
        prefetch(begun.form)


def _load(
    models: Sequence[_Loading],
    drafting: Drafting | None,
    reading: ReadAhead | None,
    timeline: Timeline,
    first_is_served: threading.Event,
) -> None:
    if reading is not None:
        # On a slow disk the libraries come first, as weights are useless without them.
        start = time.monotonic()
        reading.wait()
        timeline.record("read", time.monotonic() - start)
    for begun in models:
        start = time.monotonic()
        begun.load()
        timeline.record("build", time.monotonic() - start)
        if begun is not models[-1]:
            first_is_served.wait(FIRST_SECONDS)
    if drafting is not None:
        drafting.close()
