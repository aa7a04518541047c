"""`edge-agent bench pipeline`: figures of the real agent beside scripts, all through a broker."""

from __future__ import annotations

import json
import wave
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.bench.pipeline.pipeline_figures import (
    AGENT,
    ENGINE,
    HANDMADE,
    PLAIN,
    PipelineReport,
    PipelineSetup,
    Turn,
)
from edge_agent.bench.pipeline.plain_signal import rows_of, windows_of
from edge_agent.bench.pipeline.streams import (
    IDLE,
    MOST,
    Place,
    attempt,
    cost_of_each,
    most_served,
    together,
)
from edge_agent.core.errors import AgentError
from edge_agent.inference.preprocess.windowing import Windower
from edge_agent.models.manifest import InputSpec
from edge_agent.mqtt.loopback import broker
from edge_agent.sources.source import open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.small_models import brightness, decode_picture, loudness, plain, write_clip
from tests.helpers.support import call_cli, run_cli


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a clip of two seconds."""
    path = tmp_path_factory.mktemp("bench") / "clip.avi"
    return write_clip(path, [plain(gray, 160, 120) for gray in range(0, 250, 5)])


def test_measures_agent_scripts_and_engine(clip: Path, tmp_path: Path) -> None:
    """One JSON object a model, with every figure that was promised, and a picture of them."""
    model = brightness(tmp_path / "light")
    picture = tmp_path / "bars.png"
    options = ["--runs", "1", "--seconds", "0.4", "--pipelines", "", "--rate", "0"]
    done = run_cli(
        *("bench", "pipeline", str(model), "--source", str(clip), "--json"),
        *(*options, "--picture", str(picture)),
    )
    assert done.returncode == 0, done.stderr
    (figures,) = (json.loads(line) for line in done.stdout.splitlines())
    assert figures["model"] == "light@1"
    assert figures["fps"].keys() == {AGENT, PLAIN, HANDMADE, ENGINE}
    assert all(spread["median"] > 0 for spread in figures["fps"].values())
    assert figures["ratio"].keys() == {PLAIN, HANDMADE, ENGINE}
    agent, plain_script = figures["fps"][AGENT]["median"], figures["fps"][PLAIN]["median"]
    assert figures["ratio"][PLAIN]["median"] == pytest.approx(agent / plain_script, rel=0.01)
    assert figures["step_ms"].keys() == {
        *("decode", "preprocess", "infer", "postprocess", "publish")
    }
    assert figures["usual_preprocess_ms"] > 0
    assert figures["cached_preprocess_ms"].keys() == {"agent", "usual"}
    assert all(took > 0 for took in figures["cached_preprocess_ms"].values())
    assert figures["following_ms"].keys() == {
        *("5 objects", "200 objects", "200 objects without any")
    }
    assert figures["cpu_s_per_1000"].keys() == {AGENT, PLAIN, HANDMADE, "decode_and_engine"}
    assert figures["age_ms"]["p99"] >= figures["age_ms"]["p50"] > 0
    assert figures.keys().isdisjoint({"scaling", "idle_pipeline", "streams"})
    drawn = decode_picture(picture.read_bytes())
    assert drawn.shape[1] == 1280
    assert drawn.min() < 100 < drawn.max()


@pytest.mark.parametrize("name", ["rows.csv", "rows.npy", "sound.wav"])
def test_measures_a_sensor_model_beside_a_plain_script(name: str, tmp_path: Path) -> None:
    """Of a recording there is nothing to decode: agent, script and engine, and no pictures."""
    model = loudness(tmp_path / "loud", window=64)
    rows = np.sin(np.arange(6400) / 7).astype(np.float32)
    source = tmp_path / name
    if name == "rows.csv":
        np.savetxt(source, rows, header="level", comments="", fmt="%.4f")
    elif name == "rows.npy":
        np.save(source, rows)
    else:
        with wave.open(str(source), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes((rows * 32767).astype("<i2").tobytes())
    done = run_cli(
        *("bench", "pipeline", str(model), "--source", str(source), "--json"),
        *("--runs", "1", "--seconds", "0.4", "--pipelines", "", "--picture"),
        str(tmp_path / "bars.png"),
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["fps"].keys() == {AGENT, PLAIN, ENGINE}
    assert all(spread["median"] > 0 for spread in figures["fps"].values())
    agent, plain_script = figures["fps"][AGENT]["median"], figures["fps"][PLAIN]["median"]
    assert figures["ratio"][PLAIN]["median"] == pytest.approx(agent / plain_script, rel=0.01)
    assert figures["step_ms"].keys() == {
        *("decode", "preprocess", "infer", "postprocess", "publish")
    }
    assert figures.keys().isdisjoint({"pipelined_on", "following_ms", "streams", "idle_pipeline"})
    assert (tmp_path / "bars.png").is_file()


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("signal", "clip", "loud@1 is a signal model; give a recording"),
        ("picture", "rows.csv", "light@1 is a picture model; give a clip"),
        ("signal", "mqtt:plant/press", "mqtt:plant/press: is live; give a recording"),
        ("signal", "absent.csv", "absent.csv: no such recording"),
    ],
)
def test_a_source_of_the_other_kind_is_told(
    kind: str, source: str, words: str, clip: Path, tmp_path: Path
) -> None:
    """A clip for a sensor model, a recording for a detector, and what cannot be played twice."""
    make = loudness(tmp_path / "loud", 4) if kind == "signal" else brightness(tmp_path / "light")
    (tmp_path / "rows.csv").write_text("1\n2\n3\n4\n")
    given = {"clip": str(clip), "rows.csv": str(tmp_path / "rows.csv")}.get(source, source)
    done = call_cli("bench", "pipeline", str(make), "--source", given)
    assert done.code == 2
    assert words in done.error


def test_the_plain_script_cuts_windows_as_the_agent_does(tmp_path: Path) -> None:
    """Named channels in the model's order, every n-th row, overlapping, with zeros before."""
    (tmp_path / "rows.csv").write_text("t,ax,ay\n" + "".join(f"{i},{i},{-i}\n" for i in range(12)))
    spec = parse_source("csv:rows.csv", tmp_path)
    wanted = InputSpec(channels=("ay", "ax"), every=2, window=4, hop=2, lead=1)
    windower = Windower(wanted)
    with closing(open_source(spec)) as source:
        expected = [
            w.data.copy()
            for _ in iter(source.grab, False)
            for w in windower.push(source.retrieve())
        ]
    found = list(windows_of(rows_of(spec, wanted.channels), wanted))
    np.testing.assert_array_equal(found, expected)
    assert len(found) == 2


def test_streams_are_counted_as_carried_only_if_served(clip: Path, tmp_path: Path) -> None:
    """Two streams of a light model are served; with a bound that nothing can keep they are not."""
    setup = PipelineSetup(clip=clip, runs=1, seconds=0.5, pipelines=(2,), rate=5.0, p99_ms=5000.0)
    with broker(tmp_path) as loopback:
        place = Place(brightness(tmp_path / "light"), loopback, tmp_path)
        age, problem = attempt(place, setup, 2)
        assert age > 0
        assert problem == ""
        assert "p99" in attempt(place, replace(setup, p99_ms=age / 1e6), 2)[1]
        rounds = list(together(place, replace(setup, runs=2, seconds=1.0), 2))
        assert len(rounds) == 2
        for turn in (turn for both in rounds for turn in both):
            assert turn.fps > 0
            assert turn.cpu_ms > 0
            assert len(turn.ages) > 2


@given(capacity=st.integers(0, 2 * MOST), guess=st.integers(0, 2 * MOST))
def test_the_most_that_is_served_is_found(capacity: int, guess: int) -> None:
    """Wherever the search begins, it ends at the capacity, at most a twentieth below it."""
    tried: list[int] = []

    def served(count: int) -> bool:
        tried.append(count)
        return count <= capacity

    most, refused = most_served(served, guess)
    assert most <= min(capacity, MOST)
    assert most >= min(capacity, MOST) * 0.95 - 1
    assert refused == 0 if capacity >= MOST else refused > capacity
    assert len(tried) == len(set(tried))
    assert max(tried) <= MOST


def test_ratios_are_of_the_same_round() -> None:
    """What disturbs a round disturbs both: the agent is compared with its own round's script."""
    setup = PipelineSetup(clip=Path("c"), runs=2, seconds=1.0, pipelines=(), rate=0.0, p99_ms=100.0)
    report = PipelineReport("m", setup)
    report.turns[AGENT] += [Turn(100.0, 2.0), Turn(10.0, 3.0)]
    report.turns[PLAIN] += [Turn(50.0), Turn(5.0)]
    for cpu, usual, cached in ((1.0, 0.5, 0.1), (2.0, 0.9, 0.2)):
        costs = {"decode_cpu_ms": cpu / 2, "engine_cpu_ms": cpu / 2, "lanes": 1, "threads": 1}
        steps = {"step_ms": {"decode": 1.0}, "following_ms": {"5 objects": 0.2}}
        kinds = {"agent": cached, "usual": 0.3}
        report.alone.append(
            costs | steps | {"usual_preprocess_ms": usual, "cached_preprocess_ms": kinds}
        )
    assert report.ratios(PLAIN) == [2.0, 2.0]
    assert report.cpu_ratios() == [2.0, 1.5]
    report.handmade = "openvino:1"
    report.turns[HANDMADE] += [Turn(50.0), Turn(5.0)]
    report.turns[ENGINE] += [Turn(200.0), Turn(20.0)]
    report.scaling[16] = [
        (Turn(100.0), Turn(80.0, 1.5, (3.0,))),
        (Turn(10.0), Turn(9.0, 2.5, (4.0,))),
        (Turn(50.0), Turn(50.0, 2.0, (5.0,))),
    ]
    (row,) = report.json()["scaling"]
    assert row["ratio"] == {"min": 0.8, "median": 0.9, "max": 1.0}
    assert row["fps"]["median"] == 50.0
    assert row["cpu_s_per_1000"]["max"] == 2.5
    assert row["age_ms"]["p50"] == 4.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--source", "nowhere.mp4"], "--source: nowhere.mp4: no such clip"),
        (["--pipelines", "1,many"], "--pipelines: expected whole numbers"),
        (["--pipelines", "1,,2"], "--pipelines: expected whole numbers"),
        (["--picture", "bars.jpg"], "--picture: bars.jpg: expected a name that ends in .png"),
        (["--rate", "-1"], "--rate"),
    ],
)
def test_wrong_options_are_told_in_a_line(options: list[str], words: str, tmp_path: Path) -> None:
    """What cannot be measured ends with 2 and names the option."""
    done = call_cli("bench", "pipeline", str(brightness(tmp_path / "light")), *options)
    assert done.code == 2
    assert words in done.error


@pytest.mark.parametrize(("data", "words"), [(b"no clip", "not a video"), (b"", "is empty")])
def test_a_clip_that_cannot_be_played_is_told_at_once(
    data: bytes, words: str, tmp_path: Path
) -> None:
    """Nobody waits for results of it."""
    (tmp_path / "bad.mp4").write_bytes(data)
    done = call_cli(
        "bench",
        "pipeline",
        str(brightness(tmp_path / "light")),
        "--source",
        str(tmp_path / "bad.mp4"),
    )
    assert done.code == 2
    assert "bad.mp4" in done.error
    assert words in done.error


def test_a_program_that_ends_is_told(clip: Path, tmp_path: Path) -> None:
    """A model that the scripts cannot take ends the command in a line, not in a wait."""
    from edge_agent.bench.common.programs import script

    with (
        broker(tmp_path) as loopback,
        pytest.raises(AgentError, match="the plain script ended with 1"),
        script(
            "edge_agent.bench.pipeline.plain",
            [clip, tmp_path / "absent", "onnxruntime", 0, 0],
            loopback,
        ),
    ):
        pass


def test_an_idle_pipeline_never_costs_less_than_nothing() -> None:
    """What is measured of two agents differs by noise; a cost is shared out, and not below 0."""
    found = cost_of_each((0.25, 100.0), (0.5, 132.0))
    assert found == {"cpu_percent": pytest.approx(25 / IDLE, rel=1e-3), "memory_mb": 2, "of": IDLE}
    nothing = {"cpu_percent": 0.0, "memory_mb": 0.0, "of": IDLE}
    assert cost_of_each((0.012, 100.0), (0.008, 99.0)) == nothing
