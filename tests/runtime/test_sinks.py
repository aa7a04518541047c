"""Result sinks: what is given to a pipeline gets every result, in the order of capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.types import Classes, Outcome, Request, Sample, Timing
from edge_agent.health.report import Health
from edge_agent.inference.model import Model
from edge_agent.inference.statistics import Cost
from edge_agent.models.manifest import Manifest
from edge_agent.runtime.pipelines.lane import infer
from edge_agent.runtime.pipelines.sinks import Sink, Stream
from edge_agent.runtime.scheduler.board import Board
from tests.helpers.idle_parts import idle_pipeline, offline_client


class Labels(Sink):
    """The smallest sink: remembers what was found in which frame."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, str]] = []

    def result(self, stream: Stream, sample: Sample, outcome: Outcome) -> None:
        """Take one result."""
        self.found.append((stream.name, sample.seq, outcome.model))


class Instant:
    """Stands where a model stands; finds nothing, at once."""

    users = 0
    together = 1
    in_order = False
    manifest = Manifest(name="instant", version="1", task="classification", file="model.onnx")
    errors = 0
    id = "instant@1"
    threshold = 0.0
    cost = Cost()
    first_at = 0.0

    def answer(self, _request: Request) -> Outcome:
        """Return what was found."""
        found = Classes((), ())
        return Outcome("instant@1", "none", found, Timing(0.0, 0.0, 0.0))


def test_a_sink_takes_results_in_the_order_of_capture(tmp_path: Path) -> None:
    """Whichever lane is done first: each result once, the oldest first, beside MQTT."""
    board: Board[Model] = Board()
    labels = Labels()
    pipeline = idle_pipeline("p", "dir:none", tmp_path, board, offline_client(), sinks=[labels])
    model: Any = Instant()
    pipeline.servings[0].model = model
    board.add(pipeline.queue)
    for _ in range(3):
        board.put(pipeline.queue, lambda seq: Sample(np.zeros((2, 2, 3), np.uint8), seq, 0, 0.0))
    jobs = [board.take() for _ in range(3)]
    for job in reversed(jobs):
        assert job is not None
        assert not labels.found
        infer(board, job)
    assert labels.found == [("p", seq, "instant@1") for seq in range(3)]


class Full(Sink):
    """A sink that takes nothing."""

    def result(self, stream: Stream, sample: Sample, outcome: Outcome) -> None:
        """Fail as a full disk would."""
        raise OSError(28, "No space left on device", f"/{stream.name}/{sample.seq}/{outcome.model}")


def test_a_sink_that_raises_costs_neither_the_lane_nor_the_other_sinks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has not taken is counted and told in health; the frame counts as inferred."""
    board: Board[Model] = Board()
    labels = Labels()
    sinks: list[Any] = [Full(), labels]
    pipeline = idle_pipeline("p", "dir:none", tmp_path, board, offline_client(), sinks=sinks)
    model: Any = Instant()
    pipeline.servings[0].model = model
    board.add(pipeline.queue)
    for _ in range(2):
        board.put(pipeline.queue, lambda seq: Sample(np.zeros((2, 2, 3), np.uint8), seq, 0, 0.0))
        job = board.take()
        assert job is not None
        infer(board, job)
    assert len(labels.found) == 2
    account = board.accounts()["p"]
    assert (account.inferred, account.dropped["error"]) == (2, 0)
    assert pipeline.errors.sinks == 2
    words = "Full has not taken a result: /p/1/instant@1: No space left on device"
    assert pipeline.errors.latest is not None
    assert pipeline.errors.latest[1] == words
    assert words in caplog.text
    health = Health(board, offline_client(), lambda: [pipeline], list, tmp_path).payload()
    assert health["pipelines"]["p"]["sink_errors"] == 2
    assert f"pipeline p: {words}" in health["why"]
