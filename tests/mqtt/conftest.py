"""Clients of tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from edge_agent.mqtt.client import Client


@pytest.fixture
def run() -> Iterator[Callable[[Client], Client]]:
    """Run clients, which are closed after the test."""
    running: list[Client] = []

    def begin(client: Client) -> Client:
        threading.Thread(target=client.run, daemon=True).start()
        running.append(client)
        return client

    yield begin
    for client in running:
        client.close()
