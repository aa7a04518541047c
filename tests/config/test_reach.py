"""Settings that a source leaves without effect: by its area, its fields or its topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.lint import lint_pipeline
from edge_agent.config.rules import Action, Line, Rule, Zone
from edge_agent.config.settings import Pipeline
from edge_agent.config.surroundings import Surroundings
from edge_agent.inference.readings import folder_of
from edge_agent.models.manifest import load
from tests.helpers.cameras import MjpegServer
from tests.helpers.small_models import detector, encode_jpeg, loudness, plain, write_pictures
from tests.helpers.support import (
    AgentProcess,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
    wait_until,
)

SIZE = (640, 480)
LEFT = (0, 0, 320, 480)
RIGHT = ((0.6, 0.1), (0.9, 0.1), (0.9, 0.9))
ACROSS = ((0.0, 0.6), (0.6, 0.0))
"""Cuts off the corner at the top left of the frame."""


def lint(size: tuple[int, int] | None = SIZE, **keys: Any) -> list[str]:
    """List what is said of a camera whose model is not known."""
    pipeline = Pipeline(name="door", source="rtsp://cam/1", model="face", **keys)
    return lint_pipeline(pipeline, [None], [], Surroundings(size=size))


def test_a_zone_and_a_line_outside_the_region_are_said() -> None:
    """Nothing was ever in them, without a word."""
    zone = Zone(name="yard", polygon=RIGHT)
    line = Line(name="gate", points=((0.6, 0.5), (0.9, 0.5)))
    at = "lies wholly outside roi [0, 0, 320, 480], as pictures are 640x480; move it, or widen roi"
    assert lint(roi=LEFT, zones=(zone,), lines=(line,)) == [
        f"zones[yard] never has anything in it: {at}",
        f"lines[gate] is never crossed: {at}",
    ]
    assert lint(None, roi=LEFT, zones=(zone,), lines=(line,)) == []
    assert lint(zones=(zone,), lines=(line,)) == []


@pytest.mark.parametrize(
    "points",
    [
        ((0.4, 0.1), (0.9, 0.1), (0.9, 0.9)),
        ((0.5, 0.1), (0.9, 0.1), (0.9, 0.9)),
        ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)),
        ((0.2, 0.0), (0.3, 0.0), (0.3, 1.0), (0.2, 1.0)),
        (*ACROSS, (0.6, 0.6)),
    ],
    ids=["a corner inside", "touching", "around", "from edge to edge", "over a corner"],
)
def test_a_zone_that_overlaps_the_region_is_no_doubt(points: Any) -> None:
    """Whatever overlaps may have something in it."""
    for roi in (LEFT, (64, 48, 320, 432), (64, 48, 320, 9999)):
        assert lint(roi=roi, zones=(Zone(name="z", polygon=points),)) == []


def test_a_line_is_no_area() -> None:
    """A line around the region is not crossed within it; one that passes over a corner is."""
    around = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0))
    for points, count in ((around, 1), (ACROSS, 0)):
        given = Line(name="gate", points=points)
        assert len(lint(roi=(64, 48, 320, 432), lines=(given,))) == count


def test_a_least_box_beyond_the_picture_is_said() -> None:
    """Nothing was found, without a word."""
    (line,) = lint(min_box=(10, 481))
    assert line == (
        "min_box: [10, 481] leaves nothing to publish: boxes within the picture are at most "
        "640x480; lower it"
    )
    for size in (None, SIZE):
        (line,) = lint(size, min_box=(321, 0), roi=LEFT)
        assert "boxes within roi [0, 0, 320, 480] are at most 320x480" in line
        assert lint(size, min_box=(320, 480), roi=LEFT) == []
    (line,) = lint(min_box=(0, 400), roi=(0, 100, 640, 999))
    assert "at most 640x380" in line
    assert lint(min_box=(640, 480)) == lint(None, min_box=(9999, 9999)) == []


def test_a_threshold_of_a_label_that_is_left_out_is_said(tmp_path: Path) -> None:
    """It had no effect, without a word."""
    model = load(detector(tmp_path / "boxes", [(0, 0.9, 0.1, 0.1, 0.4, 0.9)], ["car", "person"]))
    for labels, count in ((("person",), 1), (("car", "person"), 0), ((), 0)):
        given = Pipeline(
            name="door", source="rtsp://cam/1", model="m", labels=labels, thresholds={"car": 0.4}
        )
        said = lint_pipeline(given, [model], [])
        assert said == ["thresholds: no effect on car: `labels` leaves it out"] * count


def test_snapshots_of_a_sensor_are_said_to_be_none(tmp_path: Path) -> None:
    """None came, without a word."""
    model = load(loudness(tmp_path / "wave", 8))
    given = Pipeline(name="s", source="mqtt:a/b", model="wave", snapshot=True)
    (line,) = lint_pipeline(given, [model], [])
    assert line.startswith("snapshot has no effect: ")
    assert line.endswith(" is for sensors")


def readings(source: str, value: str, **keys: Any) -> list[str]:
    """List what is said of a rule on a value of a sensor of which nothing has come."""
    rule = Rule(name="hot", when="value", value=value, above=30.0)
    pipeline = Pipeline(name="s", source=source, model="readings", rules=(rule,), **keys)
    return lint_pipeline(pipeline, [folder_of(pipeline.sensor_spec)], [])


def test_a_value_that_the_source_leaves_out_is_said() -> None:
    """The rule could never act, and `check` was silent."""
    (line,) = readings("mqtt:t/x?field=hum,v.co2", "temp")
    assert line == (
        "rules[hot].value: 'temp' never comes: ?field= of the source leaves hum, v.co2; name one "
        "of them, or add it there"
    )
    for source in ("mqtt:t/x?field=temp,hum", "mqtt:t/x", "mqtt:t/x?field=hum&format=f32"):
        assert readings(source, "temp") == []


def test_a_topic_that_another_source_reads_is_said() -> None:
    """Such an action is given up with each event, as health says only then."""
    rules = tuple(
        Rule(name=name, when="enter", do=(Action(publish=topic),))
        for name, topic in (("a", "room/temp"), ("b", "room/{pipeline}"), ("c", "room/{label}"))
    )
    pipeline = Pipeline(name="temp", source="rtsp://cam/1", model="face", rules=rules)
    around = Surroundings(reads={"room/temp"}.__contains__)
    first, second = lint_pipeline(pipeline, [None], [], around)
    assert first == (
        "rules[a].do[0].publish: is never sent: a source of this device reads 'room/temp', so it "
        "might loop forever; name another topic"
    )
    assert second.startswith("rules[b].do[0].publish: is never sent")


def test_check_and_the_log_say_what_the_source_leaves_without_effect(
    tmp_path: Path, broker: Mosquitto, agent: Callable[..., AgentProcess]
) -> None:
    """The log has them as soon as the first picture has come."""
    detector(tmp_path / "models" / "face", [(0, 0.9, 0.1, 0.1, 0.9, 0.9)], ["face"])
    publish = {"name": "r", "when": "enter", "do": [{"publish": "room/temp"}]}
    sensor = {
        "name": "room",
        "source": "mqtt:room/temp?field=hum",
        "model": "readings",
        "rules": [{"name": "hot", "when": "value", "value": "temp", "above": 30}],
    }
    both = {"name": "both", "all": ["door/r", "room/hot"], "do": [{"publish": "room/temp"}]}
    with MjpegServer([encode_jpeg(plain(90))], rate=5) as camera:
        door = {
            "name": "door",
            "source": camera.url(),
            "model": "face",
            "roi": [0, 0, 8, 8],
            "min_box": [9, 0],
            "zones": [{"name": "yard", "polygon": [[0.9, 0.9], [1, 0.9], [1, 1]]}],
            "rules": [publish],
        }
        models = [str(tmp_path / "models")]
        text = agent_settings("box", broker.url, [door, sensor], models_dirs=models, rules=[both])
        running = agent(text)
        said = call_cli("check", "--config", str(running.config))
        expected = [
            "pipeline door: zones[yard] never has anything in it",
            "pipeline door: min_box: [9, 0] leaves nothing to publish",
            "pipeline door: rules[r].do[0].publish: is never sent",
            "pipeline door: rules[both].do[0].publish: is never sent",
            "pipeline room: rules[hot].value: 'temp' never comes",
        ]
        wait_until(lambda: all(each in running.words() for each in expected), "the warnings")
        for words in expected:
            assert [line[:4] for line in said.out.splitlines() if words in line] == ["note"], words
            assert running.words().count(words) == 1


def test_a_camera_that_comes_late_is_looked_at_too(
    tmp_path: Path, broker: Mosquitto, agent: Callable[..., AgentProcess]
) -> None:
    """The size of its pictures is known long after the first result of another pipeline."""
    detector(tmp_path / "models" / "face", [(0, 0.9, 0.1, 0.1, 0.9, 0.9)], ["face"])
    pictures = f"{write_pictures(tmp_path / 'pictures', [plain(90)])}?loop=1&rate=5"
    port = free_port()
    pipelines: list[dict[str, Any]] = [
        {"name": "other", "source": pictures, "model": "face"},
        {
            "name": "door",
            "source": f"http://127.0.0.1:{port}/stream.mjpg",
            "model": "face",
            "min_box": [999, 0],
        },
    ]
    models = [str(tmp_path / "models")]
    running = agent(agent_settings("box", broker.url, pipelines, models_dirs=models))
    # By then all that a start announces has been.
    wait_until(lambda: "learning the usual" in running.words(), "the first results")
    assert "min_box" not in running.words()
    with MjpegServer([encode_jpeg(plain(90))], rate=5, port=port):
        words = "pipeline door: min_box: [999, 0] leaves nothing to publish"
        wait_until(lambda: words in running.words(), "the warning")
