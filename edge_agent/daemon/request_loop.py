"""The service that handles MQTT requests, transfers, and `edge-agent add`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from ..delivery.local_requests import LocalRequests
from ..delivery.receive.rollouts import Rollouts
from ..delivery.receive.router import Router
from ..delivery.rollout.deployer import Deployer
from ..delivery.rollout.ledger import Candidate
from ..models.store.catalog import Catalog
from ..mqtt.inbox import Inbox
from ..mqtt.requests import Requests
from .configure import Configuration


@dataclass(eq=False)
class RequestLoop:
    """One thread that handles all messages, one after another."""

    name = "requests"

    inbox: Inbox
    requests: Requests
    transfers: Router
    local_requests: LocalRequests
    deployer: Deployer
    catalog: Catalog
    rollouts: Rollouts
    configuration: Configuration

    def run(self) -> None:
        """Resume interrupted transfers, then handle messages until closed."""
        # Resumed first, so that blocks kept by the broker find their transfer.
        self.transfers.resume()
        self.requests.run(self._tick)

    def _tick(self) -> None:
        """Do work that is due between two messages."""
        self.transfers.tick(time.monotonic())
        self.rollouts.tick(time.monotonic())
        self.configuration.settle()
        for name, version, request in self.local_requests.take():
            self.deployer.submit(
                Candidate(
                    name,
                    version,
                    None,
                    partial(self.catalog.find, name, version, on_trial=True),
                    on_state=partial(self.local_requests.answer, request),
                )
            )

    def close(self) -> None:
        """End the thread after the waiting messages."""
        self.inbox.put(None)

    def problems(self) -> list[str]:
        """Return nothing: problems of a request are in its answer."""
        return []
