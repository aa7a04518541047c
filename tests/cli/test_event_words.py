"""Events in a terminal, and zones and rules tried without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.terminal import brief, message_line, summary
from tests.helpers.small_models import decode_picture, detector, plain, write_pictures
from tests.helpers.support import run_cli

EVENT: dict[str, Any] = {
    "rule": "r",
    "state": "begin",
    "time": "2026-11-22T16:48:47.161Z",
    "label": "person",
    "track": 7,
    "score": 0.93,
    "zone": "yard",
}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"when": "enter", "state": "once"}, "r: person 7 entered yard (0.93)"),
        (
            {"when": "enter", "state": "once", "label": "plate", "text": "AB 12"},
            "r: plate 7 'AB 12' entered yard (0.93)",
        ),
        ({"when": "leave", "state": "once", "zone": None}, "r: person 7 is gone (0.93)"),
        (
            {"when": "cross", "state": "once", "line": "gate", "direction": "in"},
            "r: person 7 crossed gate in (0.93)",
        ),
        ({"when": "dwell"}, "r: person 7 stays in yard (0.93)"),
        (
            {"when": "dwell", "state": "end", "seconds": 3.21, "why": "lost"},
            "r: person 7 stays in yard: over after 3.2 s, as the source is lost",
        ),
        ({"when": "count", "count": 3, "score": None, "label": None}, "r: 3 in yard"),
        ({"when": "absent", "score": None, "label": None}, "r: nobody in yard"),
        ({"when": "value", "value": 81.5, "score": None, "replayed": True}, "r: 81.5 (replayed)"),
        (
            {"when": "value", "name": "oil", "value": 81.5, "unit": "°C", "score": None},
            "r: oil 81.5 °C",
        ),
        (
            {"when": "anomaly", "anomaly": {"score": 147.246}, "score": None, "label": None},
            "r: anomalous, 147.2",
        ),
        (
            {
                "when": "anomaly",
                "state": "end",
                "seconds": 3.21,
                "anomaly": {"score": 9.9},
                "label": None,
            },
            "r: anomalous: over after 3.2 s",
        ),
        (
            {"when": "anomaly", "anomaly": {"score": 0.97}, "label": "speech", "score": None},
            "r: speech, 0.97",
        ),
        (
            {"when": "drift", "channel": "ax", "value": 0.3125, "score": None},
            "r: drift of ax, 0.312",
        ),
    ],
)
def test_an_event_reads_like_a_sentence(keys: dict[str, Any], words: str) -> None:
    """Who did what, where; or what holds, and for how long it did."""
    event = {key: value for key, value in (EVENT | keys).items() if value is not None}
    line = message_line("edge/box/event/door", "edge", event)
    assert line == f"16:48:47.161 box event door: {words}"


def test_counts_are_read_out() -> None:
    """Zones and lines with their labels."""
    ways = {"in": {"cat": 4, "dog": 1}, "out": {}}
    payload = {"zones": {"yard": {"cat": 2}, "lawn": {}}, "lines": {"gate": ways}}
    line = message_line("edge/box/count/door", "edge", payload)
    assert line.endswith("yard: 2 cat · lawn: nobody · gate: in 4 cat 1 dog, out 0")


def test_a_zone_is_tried_without_a_broker(tmp_path: Path) -> None:
    """`try --config` tells the events of the file's rules and draws its zones."""
    detector(tmp_path / "finder", [(0, 0.9, 0.3, 0.3, 0.6, 0.7)], ["person"])
    source = write_pictures(tmp_path / "frames", [plain(0, 320, 240)] * 12)
    (tmp_path / "zones.toml").write_text(
        """
        [[pipelines]]
        name = "door"
        source = "dir:frames"
        model = "finder"
        zones = [{ name = "yard", polygon = [[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]] }]
        rules = [{ name = "somebody", when = "enter", zone = "yard" }]
        """
    )
    done = run_cli("try", source, "finder", "--config", "zones.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "somebody: person 1 entered yard (0.90)" in done.stdout
    assert "counted  yard: 1 person" in done.stdout
    picture = decode_picture((tmp_path / "try.jpg").read_bytes())
    assert (picture[100:200, 30:35].max(axis=(0, 1)) > 120).any(), "the zone's left side"


def test_what_can_be_set_of_a_pipeline_reads_as_json_has_it() -> None:
    """What is not set takes no place."""
    payload = {"schema": 1, "enabled": "ON", "threshold": 0.5, "rate": None, "labels": []}
    payload |= {"thresholds": {"car": 0.7}, "min_box": [0, 0], "masks": []}
    line = message_line("edge/box/pipeline/door", "edge", payload)
    assert line.endswith(': enabled ON, threshold 0.5, thresholds {"car": 0.7}, min_box [0, 0]')


def test_the_birth_certificate_is_one_line() -> None:
    """Who it is and what it runs; the rest is for programs."""
    facts = {"arch": "aarch64", "cpu": "Cortex-A76", "cpus": 4}
    payload = {"agent": "1.2", "facts": facts, "profile": {"name": "arm64"}}
    line = message_line("edge/box/info", "edge", {**payload, "pipelines": [{"name": "door"}]})
    assert line.endswith(
        "box info: edge-agent 1.2 on Cortex-A76 (aarch64), profile arm64, pipelines: door"
    )


def test_labels_read_as_a_person_would_say_them() -> None:
    """Of several names the first, of a number that it is a class; payloads keep them whole."""
    classes = [{"label": "tabby, tabby cat", "score": 0.5}, {"label": "62", "score": 0.3}]
    assert summary({"classes": classes}) == "tabby 0.50, class 62 0.30"
    boxes = [{"label": "62", "score": 0.3, "box": [0, 0, 1, 1]}] * 2
    assert summary({"detections": boxes}) == "class 62 0.30, class 62 0.30"
    assert summary({"text": "Paris.\n", "tokens": 3, "finish_reason": "stop"}) == "Paris.\\n"
    assert brief({"detections": boxes}) == "class 62 ×2"
