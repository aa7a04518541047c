"""What the settings of a pipeline do: one agent, many pipelines, each with one setting more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.small_models import (
    Picture,
    brightness,
    decode_picture,
    detector,
    loudness,
    plain,
    write_clip,
    write_manifest,
    write_pictures,
)
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    health_at_rest,
)

DEVICE = "features"
RATE = 20.0


def halves(width: int = 64, height: int = 48) -> Picture:
    """Make a picture whose left half is black and right half white."""
    picture = plain(0, width, height)
    picture[:, width // 2 :] = 255
    return picture


def square_at(place: int) -> Picture:
    """Make a gray picture with a white square that is somewhere else each time."""
    picture = plain(90)
    picture[10:30, place : place + 16] = 255
    return picture


def moving_beside() -> list[Picture]:
    """Make a scene of which only the right half moves, but for the last five pictures."""
    return [square_at(24 + i % 24) for i in range(40)] + [square_at(i) for i in range(5)]


def write_models(folder: Path) -> Path:
    """Make the models that the pipelines use."""
    brightness(folder / "light-1", "1")
    brightness(folder / "light-2", "2")
    brightness(folder / "numbers", task="raw")
    loudness(folder / "loud", window=10)
    second = loudness(folder / "second", window=10)
    spec = {"window": 10, "layout": "ct", "channels": ["value"]}
    output = {"decoder": "score", "threshold": 100.0}
    write_manifest(second, "1", "anomaly", input=spec, output=output)
    detector(
        folder / "finder",
        [
            (0, 0.9, 0.0, 0.0, 0.5, 1.0),  # the left half
            (0, 0.6, 0.5, 0.0, 1.0, 1.0),  # the right half
            (1, 0.8, 0.1, 0.1, 0.2, 0.5),
            (0, 0.3, 0.6, 0.6, 0.7, 0.7),  # below the threshold
        ],
        ["box", "dot"],
    )
    return folder


def plan_pipelines(folder: Path) -> list[dict[str, Any]]:
    """Give each setting a pipeline."""
    one = write_pictures(folder / "halves", [halves()])
    large = write_pictures(folder / "large", [halves(320, 240)])
    gray = write_pictures(folder / "gray", [plain(i) for i in range(40)])
    moving = [plain(90)] * 30 + [square_at(4 * i) for i in range(5)]
    clip = write_clip(folder / "clip.avi", [plain(i) for i in range(180)], rate=30)
    samples = folder / "ramp.csv"
    samples.write_text("value\n" + "\n".join(str(i) for i in range(105)) + "\n")
    gapped = folder / "gapped.csv"
    gapped.write_text("time,value\n" + "".join(f"{i},{i}\n" for i in range(15)))
    with gapped.open("a") as more:
        more.write(",\n" + "".join(f"{i},{i}\n" for i in range(16, 26)) + "\n")
        more.write("".join(f"{i},{i}\n" for i in range(30, 40)))
    sizes = [halves(), halves(320, 240), halves(320, 240), halves()]
    return [
        {"name": "split", "source": gray, "model": "light@1:75,light@2:25"},
        {"name": "highest", "source": one, "model": "light"},
        {"name": "roi", "source": one, "model": "light", "roi": [32, 0, 64, 48]},
        {
            "name": "roi-beside",
            "source": write_pictures(folder / "sizes", sizes),
            "model": "light",
            "roi": [160, 0, 320, 240],
        },
        {"name": "roi-boxes", "source": one, "model": "finder", "roi": [32, 0, 64, 24]},
        {"name": "usual", "source": one, "model": "finder"},
        {"name": "low", "source": one, "model": "finder", "threshold": 0.2},
        {"name": "high", "source": one, "model": "finder", "threshold": 0.85},
        {
            "name": "then",
            "source": one,
            "model": "finder",
            "then": [
                {"name": "inside", "model": "light@1", "labels": ["box"]},
                {"name": "best", "model": "light@2", "limit": 1},
                {"name": "wider", "model": "light", "labels": ["dot"], "margin": 10.0},
            ],
        },
        {"name": "slow", "source": gray, "model": "light", "rate": RATE},
        {"name": "sparse", "source": f"file:{clip}", "model": "light", "rate": 5.0},
        {"name": "fresh", "source": gray, "model": "light", "deadline_ms": 1.0},
        {
            "name": "moving",
            "source": write_pictures(folder / "moving", moving),
            "model": "light",
            "motion": True,
        },
        {
            "name": "roi-moving",
            "source": write_pictures(folder / "beside", moving_beside()),
            "model": "light",
            "motion": True,
            "roi": [0, 0, 24, 48],
        },
        {"name": "shown", "source": large, "model": "finder", "snapshot": True},
        {"name": "raw", "source": one, "model": "numbers"},
        {"name": "ramp", "source": f"csv:{samples}", "model": "loud"},
        {"name": "gapped", "source": f"csv:{gapped}", "model": "second"},
    ]


@dataclass(frozen=True)
class Heard:
    """What the agent has said."""

    results: dict[str, list[dict[str, Any]]]
    health: dict[str, Any]
    snapshots: list[bytes]

    def only(self, pipeline: str) -> dict[str, Any]:
        """Give the one result of a pipeline."""
        (result,) = self.results[pipeline]
        return result

    def account(self, pipeline: str) -> dict[str, Any]:
        """Give a pipeline's numbers, which must add up."""
        account: dict[str, Any] = self.health["pipelines"][pipeline]
        check_account(account)
        assert account["waiting"] == 0
        assert account["published"] == account["inferred"] == len(self.results[pipeline])
        return account


@pytest.fixture(scope="module")
def heard(shared_broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    """All that one agent says with all pipelines."""
    folder = tmp_path_factory.mktemp("features")
    library = write_models(folder / "models")
    planned = plan_pipelines(folder)
    names = [pipeline["name"] for pipeline in planned]
    listener = Listener(shared_broker.port, f"edge/{DEVICE}/#")
    settings = agent_settings(DEVICE, shared_broker.url, planned, models_dirs=[str(library)])
    agent = AgentProcess(folder / "agent", settings)
    try:
        health = health_at_rest(listener, DEVICE, names)
        results = {name: listener.on(f"edge/{DEVICE}/result/{name}") for name in names}
        shown = f"edge/{DEVICE}/snapshot/shown"
        listener.wait_for(lambda all_: any(h.topic == shown for h in all_), "a snapshot")
        snapshots = [h.payload for h in listener.heard if h.topic == shown]
        yield Heard(results, health, snapshots)
        assert agent.stop() == 0
    finally:
        listener.close()
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
        print(agent.words())


def test_frames_are_split_between_versions(heard: Heard) -> None:
    """`m@1:75,m@2:25` gives every fourth frame to version 2, says so in each, and keeps order."""
    results = heard.results["split"]
    assert [result["seq"] for result in results] == list(range(40))
    assert Counter(r["model"] for r in results) == {"light@1": 30, "light@2": 10}
    for start in range(0, 40, 4):
        four = Counter(result["model"] for result in results[start : start + 4])
        assert four == {"light@1": 3, "light@2": 1}


def test_health_has_figures_of_each_version(heard: Heard) -> None:
    """Both arms of a split are in health by version: engine, inferred, errors, time."""
    models = heard.health["models"]
    for version in ("light@1", "light@2"):
        says = models[version]
        assert says["engine"] == "onnxruntime:CPUExecutionProvider"
        assert says["errors"] == 0
        assert 0 < says["infer_ms"]["p50"] <= says["infer_ms"]["p99"]
    everyone = [result for results in heard.results.values() for result in results]
    second = [r for r in everyone for d in r.get("detections", ()) for r in d.get("then", {})]
    first = Counter(result["model"] for result in everyone)
    live = second.count("best") + second.count("wider")
    looked = Counter({"light@1": second.count("inside"), "light@2": live})
    assert models["light@2"]["inferred"] == first["light@2"] + looked["light@2"]
    assert models["light@1"]["inferred"] == first["light@1"] + looked["light@1"]


def test_the_highest_version_is_live(heard: Heard) -> None:
    """A model named without a version is its highest one."""
    assert heard.only("highest")["model"] == "light@2"


def test_a_region_is_all_that_is_seen(heard: Heard) -> None:
    """With `roi` on the white half the mean is that of white; without, of both halves."""
    assert heard.only("roi")["values"]["light"] == pytest.approx(255, abs=1)
    assert heard.only("highest")["values"]["light"] == pytest.approx(127.5, abs=1)


def test_a_region_beside_the_picture_is_an_error_as_long_as_it_is(heard: Heard) -> None:
    """Pictures that `roi` lies outside of are counted as errors, said in health; others are seen.

    No model is given a pixel of them, nor blamed.
    """
    results = heard.results["roi-beside"]
    assert [result["seq"] for result in results] == [1, 2]
    assert [result["values"]["light"] for result in results] == pytest.approx([255, 255], abs=1)
    account = heard.account("roi-beside")
    assert (account["captured"], account["dropped"]["error"]) == (4, 2)
    assert heard.health["state"] == "degraded"
    says = "pipeline roi-beside: roi [160, 0, 320, 240] lies wholly outside the picture"
    assert sum(f"{says}, which is 64x48" in why for why in heard.health["why"]) == 1
    assert heard.health["models"]["light@2"]["errors"] == 0


def test_boxes_of_a_region_are_in_pixels_of_the_frame(heard: Heard) -> None:
    """What is found at the left of the region lies right of the frame's middle."""
    result = heard.only("roi-boxes")
    assert result["source"] == {"width": 64, "height": 48}
    assert result["detections"][0]["box"] == [32.0, 0.0, 48.0, 24.0]


def test_a_threshold_replaces_the_manifests(heard: Heard) -> None:
    """The same network gives more boxes below the manifest's threshold, fewer above."""
    counts = {name: len(heard.only(name)["detections"]) for name in ("usual", "low", "high")}
    assert counts == {"usual": 3, "low": 4, "high": 1}


def test_second_stages_nest_under_what_the_first_found(heard: Heard) -> None:
    """A stage looks at its labels only, at most at `limit` of them, with its margin around."""
    result = heard.only("then")
    first, dot, second = result["detections"]
    assert [first["label"], dot["label"], second["label"]] == ["box", "dot", "box"]
    # The boxes of `inside` are exactly the black half and the white half.
    for stage, took in result["stages"].items():
        seen = [found for found in result["detections"] if stage in found["then"]]
        assert took["crops"] == len(seen) >= took["together"] == 1
        assert took["ms"] > 0
    assert first["then"]["inside"] == {"values": {"light": pytest.approx(0, abs=1)}}
    assert second["then"]["inside"] == {"values": {"light": pytest.approx(255, abs=1)}}
    assert "inside" not in dot["then"]
    # `best` looks at the best box alone; `wider` at so much around the dot that it sees all.
    assert first["then"]["best"] == {"values": {"light": pytest.approx(0, abs=1)}}
    assert all("best" not in other["then"] for other in (dot, second))
    assert dot["then"]["wider"] == {"values": {"light": pytest.approx(127.5, abs=1)}}


def read_at(result: dict[str, Any]) -> float:
    """Give the second at which a result's frame was read."""
    return datetime.fromisoformat(result["time"]).timestamp()


def test_a_rate_slows_a_lossless_source_down(heard: Heard) -> None:
    """No picture of a folder is lost, and they are not read faster than `rate`."""
    results = heard.results["slow"]
    assert [result["seq"] for result in results] == list(range(40))
    # The beat is exact on average; single readings may come late, never early.
    assert read_at(results[-1]) - read_at(results[0]) > 0.9 * 39 / RATE


def test_a_rate_thins_a_live_source_out(heard: Heard) -> None:
    """Of a clip at its own pace no more than `rate` frames a second pass; the rest are counted."""
    results = heard.results["sparse"]
    assert len(results) >= 2
    took = read_at(results[-1]) - read_at(results[0])
    assert len(results) - 1 <= 5.0 * took * 1.1 + 1
    account = heard.account("sparse")
    assert account["captured"] == 180
    assert account["dropped"]["rate"] >= 180 - len(results) - account["dropped"]["superseded"]
    assert account["dropped"]["rate"] > 90


def test_a_frame_that_waited_too_long_is_dropped(heard: Heard) -> None:
    """What is older than `deadline_ms` when its turn comes is counted and leaves a gap."""
    account = heard.account("fresh")
    assert account["captured"] == 40
    # The first ones waited for the model to load.
    assert account["dropped"]["deadline"] >= 4
    assert account["inferred"] + account["dropped"]["deadline"] == 40
    assert all(result["seq"] >= 4 for result in heard.results["fresh"])


def test_a_still_scene_is_not_looked_at(heard: Heard) -> None:
    """With `motion` the frames in which nothing moves are counted as still; all others are seen."""
    account = heard.account("moving")
    seen = [result["seq"] for result in heard.results["moving"]]
    assert account["captured"] == 35
    assert account["dropped"]["still"] == 35 - len(seen) >= 20
    assert {30, 31, 32, 33, 34} <= set(seen)


def test_what_moves_beside_a_region_is_not_looked_at(heard: Heard) -> None:
    """With `motion` and `roi` only what moves inside the region counts."""
    account = heard.account("roi-moving")
    seen = [result["seq"] for result in heard.results["roi-moving"]]
    assert account["captured"] == 45
    assert account["dropped"]["still"] == 45 - len(seen) >= 30
    assert {40, 41, 42, 43, 44} <= set(seen)


def test_a_snapshot_shows_the_boxes(heard: Heard) -> None:
    """`snapshot` gives a JPEG of the frame as captured with something drawn where the boxes are."""
    picture = decode_picture(heard.snapshots[-1])
    assert picture.shape == (240, 320, 3)
    drawn = np.abs(picture.astype(int) - halves(320, 240)).max(axis=2) > 40
    # The right edge of the dot, the upper one of the box at the right, nothing inside that one.
    assert drawn[50:118, 61:67].any(axis=1).all()
    assert drawn[0:5, 250:310].any(axis=0).all()
    assert not drawn[130:220, 180:300].any()


def test_raw_outputs_are_given_as_they_are(heard: Heard) -> None:
    """Task `raw` gives every output as nested lists."""
    (light,) = heard.only("raw")["tensors"]["light"]
    assert light == pytest.approx(127.5, abs=1)


def test_a_signal_is_cut_into_windows(heard: Heard) -> None:
    """105 samples give ten windows of ten, in order; the rest is counted as partial."""
    results = heard.results["ramp"]
    assert [result["seq"] for result in results] == list(range(10))
    scores = [result["anomaly"]["score"] for result in results]
    assert scores == pytest.approx([4.5 + 10 * i for i in range(10)])
    assert all("file" not in result and "source" not in result for result in results)
    account = heard.account("ramp")
    assert (account["captured"], account["dropped"]["partial"]) == (11, 1)


def test_no_window_spans_a_gap(heard: Heard) -> None:
    """A row of empty cells and an empty line end the window; both and its rest are counted."""
    scores = [result["anomaly"]["score"] for result in heard.results["gapped"]]
    assert scores == pytest.approx([4.5, 20.5, 34.5])
    account = heard.account("gapped")
    # Between 9 and 16 are the five samples that no window has taken, and the gap itself.
    assert [result["seq"] for result in heard.results["gapped"]] == [0, 3, 5]
    assert account["dropped"]["error"] == 2
    assert account["dropped"]["partial"] == 1
