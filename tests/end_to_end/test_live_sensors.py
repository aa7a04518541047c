"""Sensors as they are: over a real broker and a real serial line, through the whole agent."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import time
import tty
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from tests.helpers.small_models import brightness, loudness
from tests.helpers.sound_cards import needs_alsa, write_card
from tests.helpers.support import (
    ASSETS,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    needs_assets,
    reference,
    wait_until,
    yielded,
)

GESTURES = sorted((ASSETS / "media" / "imu").glob("*.csv"))
LABELS = ["SHAKE_BACKWARD", "SHAKE_FORWARD", "SHORT_VIBRATION", "STILL", "TILT_LEFT", "TILT_RIGHT"]


class Box:
    """An agent on a broker, and somebody who hears it."""

    def __init__(
        self,
        folder: Path,
        broker: Mosquitto,
        pipelines: list[dict[str, Any]],
        environ: dict[str, str] | None = None,
    ) -> None:
        self.listener = Listener(broker.port)
        settings = agent_settings(
            "box", broker.url, pipelines, models_dirs=[str(folder / "models")]
        )
        self.agent = AgentProcess(folder / "agent", settings, environ)
        for pipeline in pipelines:
            if pipeline["source"].startswith(("mqtt:", "serial:")):
                self.listener.wait_state(f"edge/box/source/{pipeline['name']}", state="running")

    def results(self, name: str, count: int) -> list[dict[str, Any]]:
        """Wait for so many results of a pipeline."""
        topic = f"edge/box/result/{name}"
        self.listener.wait_for(
            lambda heard: sum(each.topic == topic for each in heard) >= count,
            f"{count} results of {name}",
        )
        return self.listener.on(topic)

    def health(self, claim: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Wait until health is as claimed; gives it."""

        def look(_: object) -> dict[str, Any] | None:
            found = self.listener.last("edge/box/health")
            return found if found and claim(found) else None

        found: dict[str, Any] = self.listener.wait_for(look, what)
        for pipeline in found["pipelines"].values():
            check_account(pipeline)
        return found

    def close(self) -> None:
        assert self.agent.stop() == 0, self.agent.words()
        self.listener.close()


@pytest.fixture
def box(tmp_path: Path, broker: Mosquitto) -> Iterator[Callable[..., Box]]:
    """Start an agent with these pipelines; the models are those in `models`."""
    made: list[Box] = []

    def make(*pipelines: dict[str, Any], environ: dict[str, str] | None = None) -> Box:
        made.append(Box(tmp_path, broker, list(pipelines), environ))
        return made[-1]

    def close() -> None:
        for one in made:
            one.close()

    yield from yielded(make, close)


def pty() -> tuple[int, str]:
    """Make a serial line; gives our end, and the name of the other."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    name = os.ttyname(theirs)
    return ours, name


def send(line: int, data: bytes) -> None:
    """Write all of it, however slowly it is read."""
    while data:
        data = data[os.write(line, data[:4096]) :]


def own_model(folder: Path, network: str, manifest: dict[str, Any]) -> None:
    """Make a model folder with a copy of a network of others."""
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(tomli_w.dumps(manifest))
    shutil.copy(ASSETS / "models" / network, folder / "model.onnx")


def gesture_model(folder: Path) -> None:
    manifest = {
        "name": "gesture",
        "version": "1",
        "task": "classification",
        "file": "model.onnx",
        "input": {"window": 150, "every": 10, "layout": "tc", "rate_hz": 100},
        "output": {"decoder": "softmax", "labels": LABELS},
    }
    own_model(folder, "imu_gesture_cnn_fp32.onnx", manifest)


@needs_assets
def test_gestures_are_the_same_from_a_file_over_the_broker_and_over_a_line(
    tmp_path: Path, box: Callable[..., Box]
) -> None:
    """All recordings are classified as in the reference, live as from the file, score by score."""
    gesture_model(tmp_path / "models" / "gesture")
    whole = tmp_path / "all.csv"
    texts = [path.read_text().splitlines() for path in GESTURES]
    rows = [line for text in texts for line in text[1:1501]]
    whole.write_text("\n".join([texts[0][0], *rows]) + "\n")
    line, name = pty()
    started = box(
        {"name": "file", "source": f"csv:{whole}", "model": "gesture"},
        {"name": "topic", "source": "mqtt:plant/imu?gap_s=30", "model": "gesture"},
        {"name": "line", "source": f"serial:{name}?gap_s=30", "model": "gesture"},
    )
    numbers = [[float(cell) for cell in row] for row in csv.reader(rows)]
    random = np.random.default_rng(0)
    at = 0
    while at < len(numbers):
        count = int(random.integers(1, 400))
        started.listener.publish("plant/imu", json.dumps(numbers[at : at + count]))
        at += count
    send(line, (whole.read_text().replace("\n", "\r\n")).encode())

    expected = [entry["label"] for entry in reference("imu_gesture_cnn_fp32.onnx")["reference"]]
    assert len(expected) == len(GESTURES) == 18
    found = {each: started.results(each, 18) for each in ("file", "topic", "line")}
    for each, results in found.items():
        best = [result["classes"][0]["label"] for result in results]
        assert best == expected, each
    assert [r["classes"] for r in found["topic"]] == [r["classes"] for r in found["file"]]
    assert [r["classes"] for r in found["line"]] == [r["classes"] for r in found["file"]]
    assert started.listener.last("edge/box/info")["subscriptions"] == ["plant/imu"]  # type: ignore[index]
    os.close(line)


@needs_assets
def test_speech_is_found_over_the_broker_in_irregular_pieces(
    tmp_path: Path, box: Callable[..., Box]
) -> None:
    """A model with a state gives over MQTT what it gives of the file, to each of two pipelines."""
    manifest = {
        "name": "voice",
        "version": "1",
        "task": "anomaly",
        "file": "model.onnx",
        "input": {
            "window": 576,
            "hop": 512,
            "lead": 64,
            "rate_hz": 16000,
            "layout": "flat-tc",
            "channels": [0],
            "state": {"state": "stateN"},
        },
        "output": {"decoder": "score", "threshold": 0.5},
    }
    own_model(tmp_path / "models" / "voice", "vad_silero_16k_openvino.onnx", manifest)
    source = "mqtt:hall/sound?format=f32&gap_s=60"
    started = box(
        {"name": "file", "source": f"wav:{ASSETS}/media/silero_test.wav", "model": "voice"},
        {"name": "one", "source": source, "model": "voice"},
        {"name": "other", "source": source, "model": "voice"},
    )
    with wave.open(str(ASSETS / "media" / "silero_test.wav")) as file:
        sound = np.frombuffer(file.readframes(-1), "<i2").astype("<f4") / 32768
    random = np.random.default_rng(1)
    at = 0
    while at < len(sound):
        count = int(random.integers(1, 9000))
        started.listener.publish("hall/sound", sound[at : at + count].tobytes())
        at += count
        # Never so far ahead that windows would have to be given up.
        for name in ("one", "other"):
            started.results(name, at // 512 - 100)
    results = {name: started.results(name, 1875) for name in ("file", "one", "other")}
    scores = {
        name: [result["anomaly"]["score"] for result in each] for name, each in results.items()
    }
    speech = sum(result["anomaly"]["anomalous"] for result in results["one"])
    assert speech == pytest.approx(1452, rel=0.01)
    assert scores["one"] == scores["other"] == scores["file"]


def test_what_is_no_reading_is_counted_and_stops_nothing(
    tmp_path: Path, box: Callable[..., Box]
) -> None:
    """Bad messages cost themselves and the window they lie in; the next good ones are inferred."""
    loudness(tmp_path / "models" / "loud", window=4)
    source = "mqtt:plant/press?field=v.x&time=t"
    started = box({"name": "press", "source": source, "model": "loud"})
    now = time.time()

    def reading(n: int, value: object = 1.0, at: float | None = None) -> str:
        stamp = now + n * 0.01 if at is None else at
        return json.dumps({"v": {"x": value, "y": 7}, "t": stamp, "battery": 98})

    publish = started.listener.publish
    for n in range(6):  # one window; two samples of the next one
        publish("plant/press", reading(n))
    bad = [
        b"seven",
        b"[" * 100_000,
        b'{"v": {"x": 1e999}, "t": 1}',
        b'{"v": {"x": "1.0"}, "t": 1}',
        b"[1, 2, 3]",
        b"",
        b"\xff\xfe",
        b"9" * 5000,
        b'{"v": {"x": [' + b"1," * 600_000 + b"1]}}",
        reading(6, at=now + 7200).encode(),
        reading(6, at=-1).encode(),
    ]
    for each in (*bad, b'{"v": 3}'):  # the last one is of something else
        publish("plant/press", each)
    for n in (6, 7, 7, 5, 8, 9):  # one doubled, one late
        publish("plant/press", reading(n, 2.0 if n == 5 else 1.0))
    found = started.results("press", 2)
    assert [result["anomaly"]["score"] for result in found] == [1.0, 1.0]
    assert found[1]["began"] < found[1]["time"]
    health = started.health(
        lambda h: h["pipelines"]["press"]["inferred"] == 2, "both windows in health"
    )
    press = health["pipelines"]["press"]
    assert press["signal"]["refused"] == press["dropped"]["error"] == len(bad)
    assert (press["signal"]["late"], press["signal"]["doubled"]) == (1, 1)
    assert press["dropped"]["gap"] == 1
    assert "expected JSON, found 'seven'" in started.agent.words()


def test_no_window_is_made_across_a_gap_or_a_clock_that_is_set(
    tmp_path: Path, box: Callable[..., Box]
) -> None:
    """A silence longer than three usual intervals, and a step back, end the window at hand."""
    loudness(tmp_path / "models" / "loud", window=4)
    started = box({"name": "press", "source": "mqtt:plant/press?time=t", "model": "loud"})
    now = time.time() - 1000
    value = 0
    for first, count in ((0.0, 10), (1.0, 6), (-500.0, 6)):
        for n in range(count):
            reading = {"value": value, "t": now + first + n * 0.1}
            # Names of an object's numbers are those of its keys.
            started.listener.publish("plant/press", json.dumps(reading))
            value += 1
        value += 100 * (10 - count > 0)
        now += 10
    found = started.results("press", 4)
    assert [r["anomaly"]["score"] for r in found] == [1.5, 5.5, 11.5, 117.5]
    health = started.health(lambda h: h["pipelines"]["press"]["inferred"] == 4, "four windows")
    assert health["pipelines"]["press"]["signal"]["gaps"] == 2
    assert health["pipelines"]["press"]["dropped"]["gap"] == 2


@needs_alsa
def test_a_microphone_is_lost_and_comes_back_by_itself(
    tmp_path: Path, box: Callable[..., Box]
) -> None:
    """While its card is not there the source is lost; once it is, what it records is inferred."""
    loudness(tmp_path / "models" / "loud", window=800)
    config, sound = tmp_path / "asound.conf", tmp_path / "sound"
    write_card(config, None)
    os.mkfifo(sound)
    started = box(
        {"name": "hall", "source": "alsa:mic?rate=8000", "model": "loud"},
        environ={"ALSA_CONFIG_PATH": str(config)},
    )
    lost = started.listener.wait_state("edge/box/source/hall", state="lost")
    assert lost["error"] == (
        "alsa:mic?rate=8000: cannot be opened: No such file or directory; "
        "`arecord -L` lists those there are"
    )
    write_card(config, sound)
    with sound.open("wb") as pipe:
        for level in (8192, -16384):
            pipe.write(np.full(3200, level, "<i2").tobytes())
            pipe.flush()
        found = started.results("hall", 8)
        started.listener.wait_state("edge/box/source/hall", state="running")
        # A device that waits for its next sound holds its thread; it ends with the pipe.
    assert [r["anomaly"]["score"] for r in found[:8]] == [0.25] * 4 + [-0.5] * 4


def test_a_threshold_is_learned_told_and_kept_while_the_agent_runs_on(
    tmp_path: Path, box: Callable[..., Box]
) -> None:
    """Until it is learned it is null wherever it is published, a rule on it included.

    Then it has six digits.
    """
    loudness(tmp_path / "models" / "loud", window=4, threshold="p99", learn=20)
    rule = {"name": "any", "when": "anomaly", "above": -1.0, "frames": "1/1"}
    started = box({"name": "press", "source": "mqtt:plant/press", "model": "loud", "rules": [rule]})
    topic = "edge/box/pipeline/press"
    state = started.listener.wait_state(topic, enabled="ON")
    assert state["threshold"] is None
    for number in range(20):
        started.listener.publish("plant/press", json.dumps([[number + 1 / 3]] * 4))
        found = started.results("press", number + 1)[number]["anomaly"]
        assert found["threshold"] is (None if number < 19 else found["threshold"])
    event = started.listener.wait_state("edge/box/event/press", state="begin")
    assert event["anomaly"] == {"score": 0.333333, "threshold": None, "anomalous": False}
    started.listener.wait_state(topic, threshold=19.3333)
    assert "has learned the threshold of loud@1: 19.33" in started.agent.words()
    assert started.agent.stop() == 0
    started.agent.restart()
    started.listener.wait_state("edge/box/status", state="online")
    started.listener.wait_state(topic, threshold=19.3333)
    assert "Traceback" not in started.agent.words()


def test_drift_is_told_in_health_and_by_a_rule(tmp_path: Path, box: Callable[..., Box]) -> None:
    """The first windows are usual; when the sensor shifts, an event begins, and ends after."""
    loudness(tmp_path / "models" / "loud", window=4, learn=64)
    rule = {"name": "shifted", "when": "drift", "value": "all", "above": 1.0, "below": 0.5}
    source = "mqtt:plant/press?gap_s=60"
    started = box({"name": "press", "source": source, "model": "loud", "rules": [rule]})
    random = np.random.default_rng(0)
    given = 0

    def give(count: int, mean: float) -> None:
        nonlocal given
        # A few at a time: windows that pile up on a busy machine are superseded.
        for some in np.split(random.normal(mean, 1.0, (count, 16)), count // 5):
            for rows in some:
                started.listener.publish("plant/press", json.dumps([[row] for row in rows]))
            given += 4 * len(some)
            started.results("press", given)

    def drift(health: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = health["pipelines"]["press"].get("drift", {})
        return found

    give(30, 0.0)
    usual = drift(started.health(lambda h: "largest" in drift(h), "drift in health"))
    assert usual["against"] == "learned"
    assert usual["inputs"]["all"] < 0.5
    give(40, 3.0)
    event = started.listener.wait_state("edge/box/event/press", state="begin")
    assert (event["when"], event["channel"]) == ("drift", "all")
    assert event["value"] > 1.0
    give(120, 0.0)
    event = started.listener.wait_state("edge/box/event/press", state="end")
    assert event["why"] == "over"
    assert "press: has learned what is usual of loud@1" in started.agent.words()


def test_a_line_that_is_pulled_out_is_lost_and_comes_back(
    tmp_path: Path, box: Callable[..., Box]
) -> None:
    """Half lines, long lines and noise are counted; a port that goes is lost, and found again."""
    loudness(tmp_path / "models" / "loud", window=4)
    ours, name = pty()
    link = tmp_path / "tty"
    link.symlink_to(name)
    started = box({"name": "press", "source": f"serial:{link}?baud=9600", "model": "loud"})
    send(ours, b"27\n1\n2\n3\n4\n5\nsix\n6\n" + b"7" * 70_000 + b"\n1\n1\n1\n1\n1,2\n1\n")
    assert [r["anomaly"]["score"] for r in started.results("press", 2)] == [2.5, 1.0]
    health = started.health(
        lambda h: h["pipelines"]["press"]["dropped"]["error"] == 3, "three bad lines"
    )
    assert health["pipelines"]["press"]["signal"]["refused"] == 2  # the third is a row too wide
    os.close(ours)
    started.listener.wait_state("edge/box/source/press", state="lost")
    ours, name = pty()
    link.unlink()
    link.symlink_to(name)
    started.listener.wait_state("edge/box/source/press", state="running")
    send(ours, b"\n9\n9\n9\n9\n8\n")
    assert started.results("press", 3)[2]["anomaly"]["score"] == 9.0
    samples = health["pipelines"]["press"]["signal"]["samples"]
    press = started.health(
        lambda h: h["pipelines"]["press"]["signal"]["samples"] == samples + 5, "one more reading"
    )["pipelines"]["press"]
    os.close(ours)
    lost = press["dropped"]["gap"] + 1
    started.health(
        lambda h: h["pipelines"]["press"]["dropped"]["gap"] == lost, "its window given up"
    )


def test_a_model_that_is_damaged_does_not_end_a_sensor_beside_it(
    box: Callable[..., Box], tmp_path: Path
) -> None:
    """A camera's model that was cut short ended the agent, and with it the fridge's alarm."""
    door = brightness(tmp_path / "models" / "door")
    (network,) = door.glob("*.onnx")
    network.write_bytes(network.read_bytes()[:-20])
    pipelines = [
        {"name": "fridge", "source": "mqtt:lab/fridge", "model": "readings"},
        {"name": "door", "source": "mqtt:lab/door", "model": "door"},
    ]
    one = box(*pipelines)
    one.listener.wait_why("model.onnx: not a valid ONNX file")
    one.listener.publish("lab/fridge", b"4.5", qos=1)
    one.results("fridge", 1)


def test_every_pipeline_reads_what_waited_at_the_broker(box: Callable[..., Box]) -> None:
    """Of two on one topic, the one that was opened later had missed the beginning."""
    pipelines = [
        {
            "name": name,
            "source": "mqtt:lab/fridge?time=t",
            "model": "readings",
            "qos": 1,
            "share": name == "a",
        }
        for name in ("a", "b", "c")
    ]
    one = box(*pipelines)
    for run in range(3):
        one.agent.signal(signal.SIGKILL)
        one.agent.wait()
        for number in range(100):
            payload = json.dumps({"t": time.time(), "n": 100 * run + number})
            one.listener.publish("lab/fridge", payload, qos=1)
        one.agent.restart()
        for name in ("a", "b", "c"):
            results = one.results(name, 100 * (run + 1))
            assert [each["values"]["n"] for each in results] == list(range(100 * (run + 1)))


def test_what_a_sensor_said_while_its_pipeline_was_off_is_not_read(
    box: Callable[..., Box],
) -> None:
    """Switched off between two runs, it still took all of it, and told of it when switched on."""
    pipeline = {"name": "fridge", "source": "mqtt:lab/fridge?time=t", "model": "readings", "qos": 1}
    one = box(pipeline)

    def say(*numbers: int) -> None:
        for number in numbers:
            payload = json.dumps({"t": time.time(), "n": number})
            one.listener.publish("lab/fridge", payload, qos=1)

    say(0)
    one.results("fridge", 1)
    assert one.agent.stop() == 0
    text = one.agent.config.read_text()
    one.agent.config.write_text(
        text.replace('name = "fridge",', 'name = "fridge", enabled = false,')
    )
    say(1)
    one.agent.restart()
    one.listener.wait_for(lambda _: "not for us" in one.agent.words() or None, "the refusal")
    one.listener.publish("edge/box/in/set/fridge/enabled", b"true")
    one.listener.wait_for(
        lambda _: one.agent.words().count("source of fridge: running") == 2 or None, "the source"
    )
    say(2)
    assert [each["values"]["n"] for each in one.results("fridge", 2)] == [0, 2]


def test_pipelines_that_share_a_sensor_with_stall_s_begin_at_once(
    broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., AgentProcess]
) -> None:
    """Each waited for the other, until the sensor that spoke was given up for its silence."""
    source = "mqtt:lab/fridge?time=t&stall_s=600"
    pipelines = [{"name": name, "source": source, "model": "readings"} for name in "pq"]
    heard = listen(broker.port)
    agent(agent_settings("box", broker.url, pipelines))

    def both_have() -> bool:
        heard.publish("lab/fridge", json.dumps({"t": time.time(), "n": 1}), qos=1)
        return all(heard.on(f"edge/box/result/{name}") for name in "pq")

    wait_until(both_have, "a result of each")


def silent_fields(
    options: str,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> Listener:
    """Have a pipeline for each field of a sensor, all lost for its silence."""
    source = f"mqtt:lab/fridge?{options}&field="
    pipelines = [{"name": name, "source": source + name, "model": "readings"} for name in "abc"]
    heard = listen(broker.port)
    agent(agent_settings("box", broker.url, pipelines))
    for name in "abc":
        heard.wait_state(f"edge/box/source/{name}", state="lost")
    return heard


def test_fields_of_a_sensor_that_was_silent_are_read_again(
    broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., AgentProcess]
) -> None:
    """Each pipeline waited until all were open at once, which came about ever more rarely."""
    heard = silent_fields("time=t&stall_s=1", broker, listen, agent)

    def all_have() -> bool:
        payload = json.dumps({"t": time.time(), "a": 1, "b": 2, "c": 3})
        heard.publish("lab/fridge", payload, qos=1)
        return all(heard.on(f"edge/box/result/{name}") for name in "abc")

    wait_until(all_have, "a result of each")


def test_the_first_reading_after_a_silence_is_read_by_every_pipeline(
    broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., AgentProcess]
) -> None:
    """Each had closed the topic for up to 30 s; what came, or had waited, only the others got."""
    heard = silent_fields("stall_s=1", broker, listen, agent)
    heard.publish("lab/fridge", json.dumps(dict.fromkeys("abc", 1)))

    def all_have() -> bool:
        return all(heard.on(f"edge/box/result/{name}") for name in "abc")

    wait_until(all_have, "a result of each")


def test_readings_with_times_wait_at_the_broker_for_the_next_run(box: Callable[..., Box]) -> None:
    """Killed, stopped or updated: what a sensor says meanwhile is read by the next run."""
    source = "mqtt:lab/fridge?time=t"
    one = box({"name": "fridge", "source": source, "model": "readings", "qos": 1})
    said: list[int] = []

    def say() -> None:
        for _ in range(5):
            said.append(len(said))
            payload = json.dumps({"t": time.time(), "n": said[-1]})
            one.listener.publish("lab/fridge", payload, qos=1)

    say()
    one.results("fridge", 5)
    one.agent.signal(signal.SIGKILL)
    one.agent.wait()
    say()
    one.agent.restart()
    one.results("fridge", 10)
    assert one.agent.stop() == 0
    say()
    one.agent.restart()
    results = one.results("fridge", 15)
    assert [each["values"]["n"] for each in results] == said
    assert "not for us" not in one.agent.words()
