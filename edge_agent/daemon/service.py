"""Background services: what runs beside the frames, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core.threads import ThreadGroup


class Service(Protocol):
    """Something that runs from the start of the agent to its end.

    A run that returns early is all right; one that raises ends the agent.
    """

    @property
    def name(self) -> str:
        """The thread's name."""

    def run(self) -> object:
        """Work until closed."""

    def close(self) -> object:
        """Ask `run` to return; must not wait, and may come before `run`."""

    def problems(self) -> list[str]:
        """Return why the device is degraded, in words for health; empty: nothing is wrong."""


class Services:
    """All services: started in their order, closed in reverse."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services

    def start(self, threads: ThreadGroup) -> None:
        """Start a thread for each."""
        for service in self._services:
            threads.spawn(service.name, service.run)

    def close(self) -> None:
        """Ask all to end, without waiting for their threads."""
        for service in reversed(self._services):
            service.close()

    def problems(self) -> list[str]:
        """Return the reasons of all, in their order."""
        return [problem for service in self._services for problem in service.problems()]
