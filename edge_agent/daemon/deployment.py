"""The service that loads the models at the start, then deploys new versions."""

from __future__ import annotations

import gc
import logging

from ..core.errors import ModelError, UsageError
from ..core.threads import Stop, Stops
from ..delivery.local_requests import LocalRequests
from ..delivery.rollout.deployer import Deployer
from ..inference.prepared.build import collect
from ..models.store.housekeeping import clean_leftovers
from ..models.store.store import Store
from ..runtime.pipelines.runner import Runner
from ..runtime.serving.active import unusable

log = logging.getLogger(__name__)


class Deployment:
    """Loads what serves, cleans up after interrupted installations, then runs the deployer."""

    name = "deploy"

    def __init__(
        self,
        runner: Runner,
        store: Store,
        deployer: Deployer,
        local_requests: LocalRequests,
        stops: Stops,
    ) -> None:
        self._runner = runner
        self._store = store
        self._deployer = deployer
        self._local_requests = local_requests
        self._stops = stops
        self._problems: list[str] = []

    def run(self) -> None:
        """Load, clean up, deploy; until closed."""
        self._local_requests.clear()
        self._load()
        # What is here now is here to stay. A collection that goes through all of it holds every
        # lane for 20 ms (measured), and each swap asks for one.
        gc.freeze()
        try:
            for line in clean_leftovers(self._store, derived=collect):
                log.info("store: %s", line)
        except ModelError as problem:
            self._problems.append(str(problem))
            log.error("store: %s", problem)  # noqa: TRY400 - one line, no traceback
        self._deployer.run()

    def _load(self) -> None:
        active = self._runner.active
        active.load_all()
        if self._runner.stopping():
            return
        self._runner.check_thresholds()
        active.on_change()
        problem = unusable(active.all())
        if problem is not None:
            # Nothing of this can run, and all of it came with the settings, not over the air.
            self._stops.put(Stop(str(problem), UsageError(str(problem))))

    def close(self) -> None:
        """End the deployer's thread."""
        self._deployer.close()

    def problems(self) -> list[str]:
        """Return why leftovers could not be removed."""
        return list(self._problems)
