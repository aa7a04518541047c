"""The service that loads the models at startup, then deploys new versions."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable

from ..config.settings import Arm
from ..core.errors import ModelError, UsageError
from ..core.state_file import StateFile
from ..core.text import counted
from ..core.threads import ShutdownQueue, Stop
from ..delivery.local_requests import LocalRequests
from ..delivery.rollout.deployer import Deployer
from ..inference.prepared.compile import collect
from ..models.store.catalog import untried
from ..models.store.housekeeping import clean_leftovers
from ..models.store.pointers import same_version
from ..models.store.store import Store
from ..runtime.pipelines.runner import Runner
from ..serving.active import Serving

log = logging.getLogger(__name__)

FILE = "served.json"
"""File with a digest of the inputs of the last start in which a model was loaded."""


class Deployment:
    """Loads the serving models, cleans up interrupted installations, then runs the deployer."""

    name = "deploy"

    def __init__(
        self,
        runner: Runner,
        store: Store,
        deployer: Deployer,
        local_requests: LocalRequests,
        stops: ShutdownQueue,
        origins: str,
    ) -> None:
        self._runner = runner
        self._store = store
        self._deployer = deployer
        self._local_requests = local_requests
        self._stops = stops
        self._origins = origins
        self._served = StateFile(store.root / FILE)
        self._problems: list[str] = []

    def run(self) -> None:
        """Load, clean up, deploy; until closed."""
        self._local_requests.clear()
        self._load()
        # Objects that exist now are permanent. A collection that visits all of them blocks every
        # lane for 20 ms (measured), and each swap triggers one.
        gc.freeze()
        try:
            cleaning = clean_leftovers(self._store, derived=collect.forms)
        except ModelError as problem:
            self._problems.append(str(problem))
            log.error("store: %s", problem)  # noqa: TRY400 - one line, no traceback
        else:
            for line in cleaning.lines:
                log.info("store: %s", line)
            for line in cleaning.failed:
                log.warning("store: %s", line)
            if cleaning.failed:
                more = f" ({counted(len(cleaning.failed), 'such line')} in the log)"
                self._problems.append(f"{cleaning.failed[0]}{more}")
        self._deployer.run()

    def _load(self) -> None:
        active = self._runner.active
        active.load_all()
        if self._runner.stopping():
            return
        self._runner.check_thresholds()
        active.on_change()
        # What a sensor says needs no model: it goes on.
        servings = [*active.all(), *self._runner.used()]
        problem = _unusable(servings)
        served = self._served.read(str) == self._origins
        if problem is None:
            if not served and any(each.model is not None for each in active.all()):
                self._served.save(self._origins)
        elif served:
            # The disk is at fault, not the settings. Nobody may be there, but a push may come.
            log.error("nothing can run, as it has before; the agent waits for another version")
        elif any(_may_try(self._store, each.arm) for each in servings):
            log.error("nothing can run yet; the agent tries what was added")
        else:
            # None of this can run, and all of it came with the settings, not by push.
            self._stops.put(Stop(str(problem), UsageError(str(problem))))

    def close(self) -> None:
        """End the deployer's thread."""
        self._deployer.close()

    def problems(self) -> list[str]:
        """Return why leftovers could not be removed."""
        return list(self._problems)


class Probations:
    """Watches the versions on probation: a thread of its own, as a trial takes up to a minute."""

    name = "probation"

    def __init__(self, deployer: Deployer) -> None:
        self._deployer = deployer

    def run(self) -> None:
        """Watch, until the deployer is closed."""
        self._deployer.watch()

    def close(self) -> None:
        """Nothing more than what ends the deployer."""

    def problems(self) -> list[str]:
        """Return nothing: what fails is rolled back, or said of its model."""
        return []


def _may_try(store: Store, arm: Arm) -> bool:
    """Whether a version that was added, and not tried yet, could serve."""
    version = untried(store, arm.name)
    return version is not None and (arm.version is None or same_version(arm.version, version))


def _unusable(servings: Iterable[Serving]) -> ModelError | None:
    """Return the reason if nothing can run and no push can help, or None."""
    problems = [serving for serving in servings if serving.model is None]
    if problems and len(problems) == len(list(servings)) and all(s.broken for s in problems):
        return ModelError(str(problems[0].problem))
    return None
