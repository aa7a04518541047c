"""Background services: one list is started in order, closed in reverse, and asked for problems."""

from __future__ import annotations

import threading

from edge_agent.core.threads import ShutdownQueue, ThreadGroup
from edge_agent.daemon.control import Services


class Sleeper:
    """The smallest service: waits until it is closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._closing = threading.Event()

    def run(self) -> None:
        """Work until closed."""
        self._closing.wait()

    def close(self) -> None:
        """Ask `run` to return."""
        self._closing.set()

    def problems(self) -> list[str]:
        """Return why health is degraded."""
        return [] if self._closing.is_set() else [f"{self.name}: is asleep"]


def test_a_service_runs_until_it_is_closed() -> None:
    """Each has a thread of its name, its problems are health's, and all end together."""
    services = Services([Sleeper("first"), Sleeper("second")])
    with ThreadGroup(ShutdownQueue()) as threads:
        services.start(threads)
        names = {thread.name for thread in threading.enumerate()}
        assert {"first", "second"} <= names
        assert services.problems() == ["first: is asleep", "second: is asleep"]
        services.close()
    assert services.problems() == []
    assert not {"first", "second"} & {thread.name for thread in threading.enumerate()}


def test_the_last_that_was_started_is_closed_first() -> None:
    """What a service uses is there until it has been told to end."""
    closed: list[str] = []

    class Noting(Sleeper):
        def close(self) -> None:
            closed.append(self.name)
            super().close()

    Services([Noting("first"), Noting("second")]).close()
    assert closed == ["second", "first"]
