"""Fixtures: everything real, everything of its own port and folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stranger import STRANGER, open_to_strangers
from tests.helpers.support import AgentProcess, Listener, Mosquitto

# A shell starts what runs in its background with SIGINT ignored, and children inherit that; the
# commands under test are to be interrupted all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)


_SLOW_FIXTURES = {"agent", "broker", "guarded", "listen", "shared_broker", "tls"}
_SLOW_FOLDERS = {"bench", "delivery", "end_to_end"}
_SLOW_FILES = {
    "test_batching",
    "test_bombs",
    "test_damaged",
    "test_demo",
    "test_docs",
    "test_fair_share",
    "test_folding",
    "test_integrity",
    "test_limited_brokers",
    "test_openvino_passes",
    "test_prepare_task",
    "test_prepared",
    "test_prepared_streaming",
    "test_sources",
    "test_spool_writer",
    "test_try",
    "test_tuning",
}
"""Of other folders: those that take more than five seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a broker or an agent, or takes long, as slow, and begin with the longest.

    `scripts/test quick` leaves out what is slow.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if (
            fixtures & _SLOW_FIXTURES
            or item.path.parent.name in _SLOW_FOLDERS
            or item.path.stem in _SLOW_FILES
        ):
            item.add_marker(pytest.mark.slow)
    # They take minutes: begun last, nothing else would run beside them.
    items.sort(key=lambda item: item.path.stem != "test_packaging")


def pytest_runtest_teardown() -> None:
    """Make this thread an ordinary one again: SVT-AV1 makes one that encodes a real-time one.

    Every agent that a later test starts would be one, too, and hold the whole machine.
    """
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Run a mosquitto for tests that do not harm it; each uses a device id of its own."""
    broker = Mosquitto(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run a mosquitto of the test's own, to be killed and restarted."""
    broker = Mosquitto(tmp_path / "broker")
    yield broker
    broker.stop()


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    """Make listeners that are closed after the test."""
    made: list[Listener] = []

    def make(port: int, topics: str = "edge/#", **options: Any) -> Listener:
        made.append(Listener(port, topics, **options))
        return made[-1]

    yield make
    for listener in made:
        listener.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start agents, which are stopped after the test; a failing test shows their logs."""
    made: list[AgentProcess] = []

    def make(
        settings: str,
        name: str = "agent",
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> AgentProcess:
        made.append(AgentProcess(tmp_path / name, settings, environ, prefix))
        return made[-1]

    yield make
    for process in made:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()
        print(process.words())


@pytest.fixture
def unreadable(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Give what makes a file or folder unreadable to this process, which ceases to be root."""
    closed: list[tuple[Path, int]] = []
    root = os.geteuid() == 0
    open_to_strangers(tmp_path)

    def close(path: Path) -> None:
        closed.append((path, path.stat().st_mode))
        path.chmod(0)
        if root:
            os.seteuid(STRANGER)

    yield close
    if root:
        os.seteuid(0)
    for path, mode in closed:
        path.chmod(mode)
