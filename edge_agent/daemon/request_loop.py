"""The service that handles what arrives: MQTT requests, transfers and `edge-agent add`."""

from __future__ import annotations

import time
from functools import partial

from ..delivery.local_requests import LocalRequests
from ..delivery.receive.rollouts import Rollouts
from ..delivery.receive.router import Router
from ..delivery.rollout.deployer import Deployer
from ..delivery.rollout.ledger import Candidate
from ..models.store.catalog import Library
from ..mqtt.inbox import Inbox
from ..mqtt.requests import Requests


class RequestLoop:
    """One thread takes everything, one message after the other."""

    name = "requests"

    def __init__(
        self,
        inbox: Inbox,
        requests: Requests,
        transfers: Router,
        local_requests: LocalRequests,
        deployer: Deployer,
        catalog: Library,
        *,
        rollouts: Rollouts,
    ) -> None:
        self._inbox = inbox
        self._requests = requests
        self._transfers = transfers
        self._local_requests = local_requests
        self._deployer = deployer
        self._catalog = catalog
        self._rollouts = rollouts

    def run(self) -> None:
        """Resume interrupted transfers, then handle messages until closed."""
        # Resumed first, so that blocks which the broker has kept for us find their transfer.
        self._transfers.resume()
        self._requests.run(self._tick)

    def _tick(self) -> None:
        """Do what is due between two messages."""
        self._transfers.tick(time.monotonic())
        self._rollouts.tick(time.monotonic())
        for name, version, request in self._local_requests.take():
            self._deployer.submit(
                Candidate(
                    name,
                    version,
                    None,
                    partial(self._catalog.find, name, version),
                    on_state=partial(self._local_requests.answer, request),
                )
            )

    def close(self) -> None:
        """End the thread after the messages that wait."""
        self._inbox.put(None)

    def problems(self) -> list[str]:
        """Return nothing: each request is answered by itself."""
        return []
