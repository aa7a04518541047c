"""`edge-agent bench infer`: the real agent and a plain server, asked over HTTP and MQTT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.bench.infer import measure_infer
from tests.helpers.small_models import brightness, decode_picture
from tests.helpers.support import PATIENCE, call_cli, run_cli

pytest.importorskip("httptools")


@pytest.mark.timeout(PATIENCE * 10)
def test_measures_both_servers_for_one_and_eight_callers(tmp_path: Path) -> None:
    """One JSON object a model with every figure, and a picture of them."""
    picture = tmp_path / "bars.png"
    done = run_cli(
        *("bench", "infer", str(brightness(tmp_path / "light")), "--json"),
        *("--runs", "1", "--seconds", "0.4", "--picture", str(picture)),
        patience=PATIENCE * 10,
    )
    assert done.returncode == 0, done.stderr
    (figures,) = (json.loads(line) for line in done.stdout.splitlines())
    assert figures["model"] == "light@1"
    assert figures["engine"]
    assert figures["picture_bytes"] > 1000
    assert figures["callers"].keys() == figures["agent_over_plain"].keys() == {"1", "8"}
    for count, ways in figures["callers"].items():
        assert ways.keys() == {"plain", "agent", "agent over MQTT"}
        for found in ways.values():
            assert found["requests_s"]["median"] > 0
            assert found["p99_ms"]["median"] >= found["p50_ms"]["median"] > 0
        agent, plain = ways["agent"]["p50_ms"]["median"], ways["plain"]["p50_ms"]["median"]
        ratio = figures["agent_over_plain"][count]["p50_ms"]["median"]
        assert ratio == pytest.approx(agent / plain, rel=0.01)
    assert figures["memory_mb"]["agent"]["median"] > 10
    assert decode_picture(picture.read_bytes()).shape[1] == 1280


def test_what_is_not_there_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture, and a library of the extra."""
    model = str(brightness(tmp_path / "light"))
    done = call_cli("bench", "infer", model, "--source", "none.jpg")
    assert (done.code, "--source: none.jpg: no such picture" in done.error) == (2, True)
    monkeypatch.setattr(measure_infer, "NEEDED", ("starlette", "no_such_library"))
    done = call_cli("bench", "infer", model)
    assert done.code == 2
    assert "bench infer needs no_such_library; install it with" in done.error
    assert len(done.error.splitlines()) == 1
