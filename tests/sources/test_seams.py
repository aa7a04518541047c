"""A new source is one module and one entry in the table of forms."""

from __future__ import annotations

import threading
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from edge_agent.core.errors import UsageError
from edge_agent.core.threads import ShutdownQueue, ThreadGroup
from edge_agent.core.types import Reading
from edge_agent.inference.model import Model
from edge_agent.runtime.scheduler.board import Board
from edge_agent.sources import source
from edge_agent.sources.schemes import RATE, SCHEMES, Scheme
from edge_agent.sources.source import SourceContext
from edge_agent.sources.spec import SourceSpec, guess_source, parse_source
from tests.helpers.idle_parts import idle_pipeline, offline_client
from tests.helpers.support import PATIENCE, wait_until

silent = threading.Event()
"""Cleared: the source gives nothing."""


class Counter:
    """The smallest source there can be: three rows."""

    trouble, count = None, 0

    def grab(self) -> bool:
        self.count += 1
        return silent.wait(PATIENCE) and self.count <= 3

    def retrieve(self) -> Reading:
        return Reading(np.full((1, 1), self.count, np.float32), time.time_ns(), time.monotonic())

    def close(self) -> None: ...


def open_source(spec: SourceSpec, context: SourceContext) -> Counter:
    """Open it, as the module of every source does."""
    assert set(spec.options) == {"rate"}
    assert not context.closing.is_set()
    return Counter()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the one entry that the table needs: a sensor that may be silent for a minute."""
    entry = Scheme(
        name="count",
        module=__name__,
        kind="signal",
        address="path",
        example="count:a.cnt",
        options={"rate": RATE},
        suffixes=frozenset({".cnt"}),
        live=True,
        stall_seconds=60.0,
    )
    monkeypatch.setitem(cast("MutableMapping[str, Scheme]", SCHEMES), "count", entry)
    silent.set()


def test_a_new_source_is_parsed_opened_and_read() -> None:
    """Its text, options and suffix are known by its record alone."""
    spec = parse_source("count:a.cnt?rate=2", Path("/"))
    assert (spec.kind, spec.live, spec.lossless) == ("signal", True, False)
    found = list(source.readings(source.open_source(spec)))
    assert [reading.data[0, 0] for reading in found if isinstance(reading, Reading)] == [1, 2, 3]
    assert guess_source("/x/a.cnt") == "count:/x/a.cnt"
    with pytest.raises(UsageError, match="unknown option 'loop'; count: takes rate"):
        parse_source("count:a?loop=1", Path("/"))


def test_a_live_source_is_lost_after_its_own_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """How long a source may be silent is its form's, not that of cameras."""
    silent.clear()
    board: Board[Model] = Board()
    pipeline = idle_pipeline("p", "count:a", tmp_path, board, offline_client())
    capture = pipeline._capture
    with ThreadGroup(ShutdownQueue()) as threads:
        capture.start(threads)
        attempt = capture._attempt
        assert attempt is not None
        wait_until(lambda: attempt.limit == 60.0, "it is open")
        attempt.beat -= 50.0
        capture.watch(threads)
        lost = "source of p: gave nothing for 60 s"
        assert lost not in caplog.text
        attempt.beat -= 20.0
        capture.watch(threads)
        # The next attempt may have opened it by now.
        assert lost in caplog.text
        capture.halt()
        silent.set()
        board.close()
