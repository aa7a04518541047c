"""Preloading of engines and models while the rest of the program is imported."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from ...core.codec import unpack
from ...core.timeline import Timeline
from ...inference.prepared.artifact import WEIGHTS
from ...inference.prepared.load import ENGINE, load_folder, prefetch
from ...runtime.serving.planned_model import PlannedModel
from .plan import Plan
from .readahead import ReadAhead, cached, start_read_ahead


class Preload:
    """The libraries and models of a plan, being loaded in the background."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        """Import the libraries that the first result needs, and start to load its models.

        Raises:
            ImportError: a library is not installed any more.
            RuntimeError: the system allows no further thread.

        """
        # Nothing that is made during the start is garbage, and a thread that has come back from
        # native code must not wait 5 ms for its turn.
        gc.disable()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)
        # Forms of other engines are not begun here: their libraries take longer to import than
        # the forms to load.
        self._models = [
            PreloadedModel(quick if quick.quick or quick.choice["engine"] == ENGINE else None)
            for quick in plan.models
        ]
        try:
            self._begin(plan, timeline)
        except (ImportError, RuntimeError):
            self.restore_python()
            raise

    def _begin(self, plan: Plan, timeline: Timeline) -> None:
        begun = [model for model in self._models if model.planned]
        formed = [model for model in begun if model.form]
        others = {quick.choice["engine"] for quick in plan.models} - {ENGINE}
        reading = start_read_ahead(plan.state, plan.origins)
        if formed and reading is None and not cached(f"{formed[0].form}/{WEIGHTS}", 0):
            # The libraries are in memory, the model is not: the disk need not wait for Python.
            threading.Thread(target=_warm, args=(formed,), daemon=True).start()
        # In this order, one after the other: what the loader waits for comes first. By one thread:
        # two that import NumPy at a time get half of it (seen).
        _skip_documentation("numpy", "numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")
        self._need("numpy", reading)
        if begun:
            self._need(ENGINE, reading)
            loading = threading.Thread(target=_load, args=(begun, reading, timeline), daemon=True)
            loading.start()
        if any(quick.kind == "picture" for quick in plan.models):
            if reading is not None:
                reading.wait("cv2")
            import_module("edge_agent.sources.opencv").load()
        if others:
            from ...inference.engines.registry import capabilities

            for engine in sorted(others):
                self._need(capabilities(engine).package, reading)
        if reading is not None:
            reading.wait()

    @staticmethod
    def _need(package: str, reading: ReadAhead | None) -> None:
        if reading is not None:
            reading.wait(package)
        import_module(package)

    def model(self, index: int) -> Any:
        """Return the load begun for a model of the plan, or None.

        That is `inference.prepared.load.Load`, or what `inference.quick.begin_quick` returns.

        Raises:
            AgentError: it cannot be loaded so.

        """
        return self._models[index].result()

    def restore_python(self) -> None:
        """Restore the garbage collector and the switch interval."""
        sys.setswitchinterval(self._interval)
        gc.enable()


class PreloadedModel:
    """A model that is loaded from its prepared form, or the quick way."""

    def __init__(self, planned: PlannedModel | None) -> None:
        self.planned = planned if planned is not None and (planned.form or planned.quick) else None
        """None: it is not preloaded."""
        self.form = "" if self.planned is None else self.planned.form
        """Folder of its prepared form; empty: it has none."""
        self._result: Any = None
        self._problem: BaseException | None = None
        self._done = threading.Event()

    def load(self) -> None:
        """Load it, or keep the error for `result`."""
        try:
            if self.form:
                self._result = load_folder(self.form)
            elif self.planned is not None:
                self._result = _begin_quick(self.planned)
        except BaseException as problem:  # noqa: BLE001 - raised by `result`
            self._problem = problem
        self._done.set()

    def result(self) -> Any:
        """Wait for the load and return it; None: it is not preloaded.

        Raises:
            AgentError: it cannot be loaded so.

        """
        if self.planned is None:
            return None
        self._done.wait()
        if self._problem is not None:
            raise self._problem
        return self._result


def _begin_quick(planned: PlannedModel) -> Any:
    from ...inference.quick import begin_quick  # not on the way of models that have a form

    choice = unpack(planned.choice)
    return begin_quick(choice.engine, choice, unpack(planned.folder).network)


def _skip_documentation(package: str, *without: str) -> None:
    """Leave out modules of a package that only write its documentation: 4.4 of NumPy's 47 ms.

    Where a later version of it has no such modules, nothing changes.
    """
    if package not in sys.modules:
        for name in without:
            sys.modules.setdefault(name, ModuleType(name))


def _warm(models: Sequence[PreloadedModel]) -> None:
    """Read the models that are loaded later into the page cache."""
    for begun in models:
        prefetch(begun.form)


def _load(models: Sequence[PreloadedModel], reading: ReadAhead | None, timeline: Timeline) -> None:
    """Load models one after the other, in the order of the settings."""
    if reading is not None:
        # A slow disk: the libraries first, without which no weight is of any use.
        start = time.monotonic()
        reading.wait()
        timeline.record("read", time.monotonic() - start)
    for begun in models:
        start = time.monotonic()
        begun.load()
        timeline.record("build", time.monotonic() - start)
