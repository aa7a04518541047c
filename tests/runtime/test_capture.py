"""A recording that does not open is told of, and is read once it does."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from edge_agent.core.errors import SourceError
from edge_agent.core.threads import ShutdownQueue, ThreadGroup
from edge_agent.inference.model import Model
from edge_agent.runtime.scheduler.board import Board
from edge_agent.sources.source import OPEN_SECONDS, Source, SourceContext, open_source
from edge_agent.sources.spec import SourceSpec, parse_source
from tests.helpers.idle_parts import idle_pipeline, offline_client
from tests.helpers.support import PATIENCE, wait_until


def test_a_file_that_does_not_open_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network disk that is gone; once it is back, it is read after all."""
    gone = threading.Event()

    def hang(spec: SourceSpec, context: SourceContext) -> Source:
        assert gone.wait(PATIENCE)
        return open_source(spec, context)

    monkeypatch.setattr("edge_agent.runtime.pipelines.capture.open_source", hang)
    file = tmp_path / "rows.csv"
    file.write_text("x,y\n1,2\n")
    board: Board[Model] = Board()
    pipeline = idle_pipeline("p", f"csv:{file}", tmp_path, board, offline_client())
    capture = pipeline._capture
    with ThreadGroup(ShutdownQueue()) as threads:
        capture.start(threads)
        attempt = capture._attempt
        assert attempt is not None
        wait_until(lambda: attempt.opening, "it is opened")
        capture.watch(threads)
        assert pipeline.state is None, "it has only just begun"
        attempt.beat -= OPEN_SECONDS
        capture.watch(threads)
        assert pipeline.state == "lost"
        assert "rows.csv: has not opened for 30 s" in str(pipeline.error)
        assert capture._attempt is attempt, "another one would hang as well"
        gone.set()
        wait_until(lambda: pipeline.state == "running", "it was opened")
        assert pipeline.error is None
        capture.halt()
        board.close()


@pytest.mark.parametrize("form", ["file", "csv", "npy", "f32"])
def test_a_pipe_is_no_file(form: str, tmp_path: Path) -> None:
    """Opened, it would be waited for without end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SourceError, match="pipe: is a pipe, expected a file"):
        open_source(parse_source(f"{form}:{pipe}", tmp_path))
