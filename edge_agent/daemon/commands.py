"""The commands about the agent itself: ping, restart. Section 3 of the interface.

Those about pipelines are in `runtime/pipelines/commands`, those about versions in
`delivery/rollout/commands`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..core.frozen import record
from ..core.threads import ShutdownQueue, Stop
from ..mqtt import payloads
from ..mqtt.requests import Command, Later
from ..runtime.pipelines.runner import Runner


@record
class Ping:
    """Answer."""


@record
class Restart:
    """Restart the agent."""


class AgentCommands:
    """The commands, run by the request thread."""

    def __init__(self, runner: Runner, stops: ShutdownQueue) -> None:
        self._runner = runner
        self._stops = stops
        self.commands: tuple[Command[Any], ...] = (
            Command("ping", Ping, self.ping, changes=False),
            Command("restart", Restart, self.restart),
        )

    def ping(self, _request: Ping) -> Mapping[str, Any]:
        """Return the time and the session."""
        return {"time": payloads.iso(time.time_ns()), "session": self._runner.identity.session}

    def restart(self, _request: Restart) -> Later:
        """Restart the agent after the reply has been sent."""
        stop = Stop("restart was asked for", asked=True, restart=True)
        later = Later("", after=lambda: self._stops.call(lambda: self._stops.put(stop)))
        later.tell({"session": self._runner.identity.session})
        return later
