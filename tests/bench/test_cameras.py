"""`edge-agent bench cameras`: the agent and scripts on streams that are made and served here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import av
import pytest

from edge_agent.bench.cameras import streams
from edge_agent.bench.cameras.measure_cameras import behind
from edge_agent.bench.common.programs import Window
from edge_agent.bench.pipeline.streams import judged
from tests.helpers.small_models import brightness, decode_picture, loudness
from tests.helpers.support import PATIENCE, call_cli, run_cli

PARTS = ("receive", "decode", "convert", "preprocess", "infer", "postprocess", "publish")


@pytest.mark.timeout(PATIENCE * 10)
def test_measures_parts_scripts_and_how_many_are_carried(tmp_path: Path) -> None:
    """One JSON object a stream with every figure, ffmpeg's where there is one, and a picture."""
    picture = tmp_path / "bars.png"
    done = run_cli(
        *("bench", "cameras", str(brightness(tmp_path / "light")), "--json"),
        *("--streams", "h.264", "--sizes", "160x120", "--runs", "1", "--seconds", "1.5"),
        *("--most", "1", "--p99-ms", "5000", "--picture", str(picture)),
        patience=PATIENCE * 10,
    )
    assert done.returncode == 0, done.stderr
    (figures,) = (json.loads(line) for line in done.stdout.splitlines())
    scripts = ["loop", *(["ffmpeg"] if shutil.which("ffmpeg") else [])]
    assert ("no ffmpeg on the PATH" in done.stderr) == (len(scripts) == 1)
    assert (figures["model"], figures["codec"], figures["size"]) == ("light@1", "H264", "160x120")
    assert figures["served"] == ("file" if "no RTSP server" in done.stderr else "rtsp")
    assert tuple(figures["parts_ms"]) == PARTS
    assert figures["parts_ms"]["decode"] > 0
    whole = sum(figures["parts_core_percent"].values())
    assert whole == pytest.approx(sum(figures["parts_ms"].values()) * 5 / 10, rel=0.01)
    assert figures["core_percent"].keys() == {"agent", *scripts, "four"}
    assert all(found["median"] > 0 for found in figures["core_percent"].values())
    assert figures["agent_over"].keys() == set(scripts)
    for name in figures["core_percent"]:
        assert figures["age_ms"][name]["p99"] >= figures["age_ms"][name]["p50"] > 0
    over, one = figures["four_over_four_times_one"]["median"], figures["core_percent"]["agent"]
    four = figures["core_percent"]["four"]["median"]
    assert over == pytest.approx(four / (4 * one["median"]), rel=0.01)
    assert figures["carried"].keys() == {"agent", *scripts}
    assert figures["others_percent"]["max"] >= 0
    assert decode_picture(picture.read_bytes()).shape[1] == 1280


@pytest.mark.parametrize("codec", ["H264", "H265"])
def test_a_stream_is_what_it_is_called(codec: str, tmp_path: Path) -> None:
    """It moves, and every frame is there, in the file and one by one for the server."""
    stream = streams.make(codec, (160, 120), tmp_path)
    with av.open(str(stream.file)) as container:
        name = container.streams.video[0].codec_context.name
        frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    assert name == {"H264": "h264", "H265": "hevc"}[codec]
    assert len(frames) == len(list(stream.frames.iterdir())) == streams.FPS * streams.SECONDS
    assert frames[0].shape == (120, 160)
    assert (frames[0] != frames[30]).mean() > 0.1


def test_without_a_server_a_file_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said why."""
    stream = streams.Stream("H264", 160, 120, tmp_path / "H264.ts")
    monkeypatch.setattr(streams, "SYSTEM", {"PATH": str(tmp_path)})
    said: list[str] = []
    with streams.served(stream, said.append) as served:
        assert served == stream
        assert served.source.startswith("file:")
    (line,) = said
    assert line.startswith("no RTSP server (")
    assert "python3" in line


def window(*seqs: int, seconds: float = 2.0) -> Window:
    """Make what was seen of one camera."""
    results = [f'{{"seq": {seq}, "timing": {{"age_ms": 7.5}}}}'.encode() for seq in seqs]
    return Window(seconds, 0.5, tuple(("edge/bench/result/p0", each) for each in results))


def test_a_camera_is_carried_only_if_all_of_it_is_read() -> None:
    """Results at the right rate of frames that are read ever later are not carried."""
    assert not behind(window(*range(0, 300, 6)), 5)
    assert behind(window(*range(0, 150, 3)), 5)
    assert judged(window(*range(0, 60, 6)), 1, 5.0, 100.0) == (7.5, "")
    assert judged(window(0, 6, 12), 1, 5.0, 100.0)[1] == "1 of them get less than their rate"
    assert "p99" in judged(window(*range(0, 60, 6)), 1, 5.0, 5.0)[1]
    assert judged("it broke", 1, 5.0, 5.0) == (0.0, "it broke")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--streams", "VP9"], "--streams: expected H264 or H265, found 'VP9'"),
        (["--sizes", "huge"], "--sizes: expected 720p, 1080p, 4k, or even numbers"),
        (["--sizes", "641x480"], "--sizes: expected"),
        (["--rate", "0"], "--rate: expected a number above 0"),
        (["--most", "-1"], "--most"),
    ],
)
def test_wrong_options_are_told_in_a_line(options: list[str], words: str, tmp_path: Path) -> None:
    """What cannot be measured ends with 2 and names the option."""
    done = call_cli("bench", "cameras", str(brightness(tmp_path / "light")), *options)
    assert done.code == 2
    assert words in done.error


@pytest.mark.parametrize("bench", ["cameras", "infer"])
def test_sensor_models_are_refused(bench: str, tmp_path: Path) -> None:
    """Both show pictures to a model."""
    done = call_cli("bench", bench, str(loudness(tmp_path / "loud", 4)))
    assert done.code == 2
    assert "is a signal model" in done.error
