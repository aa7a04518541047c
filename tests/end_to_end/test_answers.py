"""Models asked by others: over MQTT, from the command line; what is answered, and what refused."""

from __future__ import annotations

import json
import signal
import threading
import tomllib
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import psutil
import pytest
import tomli_w
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edge_agent.sources.opencv import load
from tests.helpers.small_models import (
    brightness,
    detector,
    encode_jpeg,
    loudness,
    plain,
    write_manifest,
)
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    wait_until,
)
from tests.helpers.tiny_networks import node, save_onnx

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"


def table(folder: Path, **entries: Any) -> Path:
    """Make a model of rows of four numbers, as converters of scikit-learn leave them."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [node("ReduceMean", ["row"], ["mean"], axes=[1], keepdims=0)],
        [("row", "float32", (None, 4))],
        [("mean", "float32", (None,))],
    )
    more = {"input": entries} if entries else {}
    return write_manifest(folder, "1", "regression", output={"decoder": "raw"}, **more)


@pytest.fixture
def models(tmp_path: Path) -> str:
    """Make a folder of models: of pictures, windows and rows."""
    folder = tmp_path / "models"
    brightness(folder / "light")
    loudness(folder / "loud", 4)
    for name, own in (("slow", {"rate_hz": 50.0}), ("any", {"rate_hz": 50.0, "resample_hz": 50.0})):
        text = loudness(folder / name, 4) / "model.toml"
        tables = tomllib.loads(text.read_text())
        text.write_text(tomli_w.dumps({**tables, "input": {**tables["input"], **own}}))
    table(folder / "rows")
    table(folder / "named", channels=["a", "b", "c", "d"], window=1, mean=[0, 0, 0, 8])
    detector(folder / "finder-1", [(0, 0.9, 0.0, 0.0, 0.5, 0.5)], ["box"])
    detector(folder / "finder-2", [(0, 0.8, 0.0, 0.0, 0.5, 0.5)], ["box"], "2")
    return str(folder)


class Asker:
    """Someone who asks over MQTT, each question with an id of its own."""

    def __init__(self, heard: Listener) -> None:
        self.heard = heard
        self.count = 0

    def send(self, model: str, payload: bytes | dict[str, Any], *, retain: bool = False) -> str:
        self.count += 1
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.heard.publish(f"{D}/in/infer/{model}/q{self.count}", body, retain=retain)
        return f"q{self.count}"

    def reply(self, request: str) -> dict[str, Any]:
        topic = f"{D}/reply/{request}"
        reply: dict[str, Any] = self.heard.wait_for(lambda _: self.heard.last(topic), topic)
        assert reply["schema"] == 1
        assert reply["id"] == request
        return reply

    def ask(self, model: str, payload: bytes | dict[str, Any]) -> dict[str, Any]:
        return self.reply(self.send(model, payload))


ASKED = ["light", "loud", "slow", "any", "rows", "named", "finder@1:1,finder@2:1", "absent"]


def started(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: str, **infer: Any
) -> tuple[Asker, AgentProcess]:
    """Run an agent without a pipeline that may be asked."""
    heard = listen(broker.port)
    settings = {"models": ASKED, "per_s": 1000, **infer}
    process = agent(agent_settings("box", broker.url, [], models_dirs=[models], infer=settings))
    heard.wait_state(f"{D}/status", state="online")
    return Asker(heard), process


GRAY = encode_jpeg(plain(100))


def test_large_pictures_do_not_stay_in_memory_once_they_are_answered_or_refused(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: str
) -> None:
    """Each of these few bytes had cost 160 MB until there was much else to collect."""
    asker, process = started(broker, listen, agent, models)
    asker.ask("light", GRAY)
    large = load().imencode(".png", np.zeros((7000, 8000), np.uint8))[1].tobytes()
    before = psutil.Process(process.process.pid).memory_info().rss
    sent = [asker.send("light", large) for _ in range(8)]
    replies = [asker.reply(each) for each in sent]
    refused = [each["error"] for each in replies if "retry_after_s" in each]
    # How many overlap depends on the machine.
    assert all("decoded, it takes 160 MiB, and others" in error for error in refused), refused
    assert psutil.Process(process.process.pid).memory_info().rss - before < 700 * 2**20


def test_pictures_windows_rows_and_tensors_are_answered(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: str, tmp_path: Path
) -> None:
    """Each model is loaded when it is first asked, and answers with a result of `@infer`."""
    asker, process = started(broker, listen, agent, models)
    first = asker.ask("light", GRAY)
    assert first["ok"] is True
    assert (first["pipeline"], first["model"]) == ("@infer", "light@1")
    assert first["values"]["light"] == pytest.approx(100, abs=1)
    assert first["source"] == {"width": 64, "height": 48}
    assert first["timing"]["infer_ms"] >= 0
    png = load().imencode(".png", plain(30))[1].tobytes()
    assert asker.ask("light", png)["values"]["light"] == 30
    zeros = np.zeros((1, 3, 16, 16)).tolist()
    assert asker.ask("light", {"tensors": {"picture": zeros}})["values"] == {"light": 0.0}
    loud = asker.ask("loud", {"readings": [[500], [101], [102], [103], [104]]})
    assert loud["anomaly"] == {"score": 102.5, "threshold": 100.0, "anomalous": True}
    assert loud["warnings"] == ["readings: of 5 rows the last 4 were used"]
    loud = asker.ask("loud", {"readings": [[500.25]] * 150_000 + [[1], [2], [3], [4]]})
    assert loud["anomaly"]["score"] == 2.5
    assert loud["warnings"] == ["readings: of 150004 rows the last 4 were used"]
    assert asker.ask("rows", {"readings": [[1, 2, 3, 6]]})["values"] == {"mean": 3.0}
    assert asker.ask("rows", {"tensors": {"row": [[1, 2, 3, 6]]}})["values"] == {"mean": 3.0}
    assert asker.ask("named", {"readings": [[1, 2, 3, 6]]})["values"] == {"mean": 1.0}
    columns = ["d", "other", "c", "b", "a"]
    row = {"readings": [[6, 99, 3, 2, 1]], "columns": columns}
    assert asker.ask("named", row)["values"] == {"mean": 1.0}
    served = [asker.ask("finder", GRAY)["model"] for _ in range(4)]
    assert sorted(served) == ["finder@1", "finder@1", "finder@2", "finder@2"]
    numbers = [asker.heard.on(f"{D}/reply/q{n}")[0]["seq"] for n in range(1, asker.count + 1)]
    assert sorted(set(numbers)) == sorted(numbers)

    config = tmp_path / "ask.toml"
    config.write_text(tomli_w.dumps({"device_id": "box", "broker": {"url": broker.url}}))
    picture, recording = tmp_path / "gray.jpg", tmp_path / "loud.csv"
    picture.write_bytes(GRAY)
    recording.write_text("level\n" + "7\n" * 4)
    by_hand = call_cli("infer", str(picture), "--model", "light", "--config", str(config), "--json")
    assert json.loads(by_hand.out)["values"] == first["values"]
    there = ["--device", "box", "--broker", broker.url]
    words = call_cli("infer", str(recording), "--model", "loud", *there)
    assert words.out.startswith("normal 7 (threshold 100) · loud@1")
    refused = call_cli("infer", str(recording), "--model", "light", *there)
    assert refused.code == 1
    assert "light@1 takes a JPEG or a PNG, not readings" in refused.error
    health = asker.heard.wait_for(
        lambda _: (h := asker.heard.last(f"{D}/health")) and h["infer"]["failed"] and h, "counts"
    )
    assert health["infer"]["asked"] == asker.count + 3
    assert health["infer"]["answered"] == asker.count + 2
    looked = call_cli("status", *there)
    assert f"@infer  {asker.count + 3} asked, {asker.count + 2} answered, 1 failed" in looked.out
    assert health["state"] == "ok"
    assert process.stop() == 0


HOSTILE: dict[str, tuple[str, bytes | dict[str, Any], str]] = {
    "nothing": ("light", b"", "expected a JPEG, a PNG, or JSON"),
    "half a picture": ("light", GRAY[:20], "cannot be decoded"),
    "no picture": ("light", b"GIF89a", "expected a JPEG"),
    "HEIC": (
        "light",
        b"\0\0\0\x18ftypheic" + bytes(99),
        "it is HEIC, as phones write it, which is not read here; convert it to JPEG",
    ),
    "a form": (
        "light",
        b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n\xff\xd8\r\n--x--\r\n',
        "send the file itself as the body",
    ),
    "not JSON": ("rows", b'{"tensors": ', "expected a JPEG"),
    "deep": ("rows", b'{"tensors": ' + b"[" * 100_000, "expected a JPEG"),
    "both": ("rows", {"tensors": {}, "readings": []}, "expected a JPEG"),
    "no tensors": ("rows", {"tensors": {}}, "expected them by name"),
    "no such input": ("rows", {"tensors": {"x": [1]}}, "there is no input 'x'"),
    "a wrong shape": ("rows", {"tensors": {"row": [[1, 2]]}}, "float32[1, 4]"),
    "uneven": ("rows", {"tensors": {"row": [[1, 2], [3]]}}, "equal lengths"),
    "words": ("rows", {"tensors": {"row": ["a"] * 4}}, "expected numbers"),
    "a text": ("rows", {"readings": [[0.1, 1, 2, "a" * 2**18]]}, "rows of equally many numbers"),
    "not finite": ("rows", b'{"tensors": {"row": [[1, 2, 3, 1e999]]}}', "that float32 has not"),
    "NaN": ("rows", b'{"readings": [[1, 2, 3, NaN]]}', "not finite"),
    "several rows": (
        "rows",
        {"readings": [[1] * 4] * 2},
        "expected 1 row, found 2; ask many as tensors, see /v2/models/<model>/infer",
    ),
    "too short": ("loud", {"readings": [[1]]}, "expected 4 rows, found 1"),
    "rows of nothing": ("loud", {"readings": [[], []]}, "expected rows"),
    "too many names": ("loud", {"readings": [[1]] * 4, "columns": ["a", "b"]}, "2 names"),
    "another kind": ("loud", GRAY, "not pictures"),
    "unknown": ("other", GRAY, "may not be asked here; infer.models has light"),
    "absent": ("absent", GRAY, "no model of that name"),
    "too large": ("light", GRAY + b"0" * 2**20, "larger than 1 MB"),
}


def test_a_model_that_is_removed_while_it_loads_does_not_answer_or_stay(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: str
) -> None:
    """It answered after the right to ask was taken, and stayed until the restart."""
    large = {"large": np.zeros((160 << 18,), np.float32)}
    save_onnx(
        table(Path(models) / "big") / "model.onnx",
        [
            node("ReduceMean", ["row"], ["mean"], axes=[1], keepdims=0),
            node("ReduceSum", ["large"], ["none"], keepdims=0),
            node("Add", ["mean", "none"], ["sum"]),
        ],
        [("row", "float32", (None, 4))],
        [("sum", "float32", (None,))],
        large,
    )
    asker = Asker(listen(broker.port))
    infer = {"models": ["rows", "big"]}
    process = agent(agent_settings("box", broker.url, [], models_dirs=[models], infer=infer))
    asker.heard.wait_state(f"{D}/status", state="online")
    assert asker.ask("rows", {"readings": [[1, 2, 3, 4]]})["ok"] is True
    taken = psutil.Process(process.process.pid).memory_info
    before = taken().rss
    request = asker.send("big", {"readings": [[1, 2, 3, 4]]})
    wait_until(lambda: taken().rss > before + (20 << 20), "the model to be read")
    process.config.write_text(process.config.read_text().replace('    "big",\n', ""))
    process.signal(signal.SIGHUP)
    error = "model big may not be asked here; infer.models has rows"
    assert asker.reply(request)["error"] == error
    wait_until(lambda: "model big is live" in process.words(), "the model to be loaded")
    wait_until(lambda: taken().rss < before + (100 << 20), "it to be unloaded")
    assert asker.ask("big", {"readings": [[1, 2, 3, 4]]})["error"] == error
    assert asker.ask("rows", {"readings": [[1, 2, 3, 4]]})["ok"] is True
    assert process.stop() == 0


def test_a_recording_is_asked_about_at_its_own_rate(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: str, tmp_path: Path
) -> None:
    """A WAV of another rate is refused, or resampled where the model does: not read as it comes."""
    asker, _ = started(broker, listen, agent, models)
    config = tmp_path / "ask.toml"
    config.write_text(tomli_w.dumps({"device_id": "box", "broker": {"url": broker.url}}))
    recording = tmp_path / "r.wav"
    with wave.open(str(recording), "wb") as file:
        file.setparams((1, 2, 100, 0, "NONE", ""))
        file.writeframes(np.full(8, 16384, "<i2").tobytes())
    refused = call_cli("infer", str(recording), "--model", "slow", "--config", str(config))
    assert refused.code == 1
    assert "readings: come at 100 samples a second, the model takes 50" in refused.error
    taken = call_cli("infer", str(recording), "--model", "any", "--config", str(config), "--json")
    assert json.loads(taken.out)["anomaly"]["score"] == pytest.approx(0.5, abs=1e-3)
    assert "warnings" not in json.loads(taken.out), "8 rows at 100 a second are 4 at 50"
    for rate in (0, True, "50", 1e999):
        reply = asker.ask("any", {"readings": [[1]] * 4, "rate_hz": rate})
        assert reply["error"].startswith("rate_hz: expected"), rate
    fast = {"readings": [[1]] * 8, "rate_hz": 100}
    assert asker.ask("any", fast)["anomaly"]["score"] == pytest.approx(1)


def test_what_cannot_be_answered_is_said_and_costs_nobody_else(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: str, tmp_path: Path
) -> None:
    """A clear error each, none of them the model's fault; then it answers as before."""
    asker, process = started(broker, listen, agent, models, max_mb=1)
    sent = {name: asker.send(model, body) for name, (model, body, _) in HOSTILE.items()}
    for name, request in sent.items():
        reply = asker.reply(request)
        assert reply["ok"] is False, name
        assert HOSTILE[name][2] in reply["error"], name
        assert "Error" not in reply["error"], name
    before = asker.count
    asker.heard.publish(f"{D}/in/infer/light", GRAY)  # nobody could be answered
    asker.heard.publish(f"{D}/in/infer/light/a b", GRAY)
    asker.send("light", GRAY, retain=True)
    assert asker.ask("light", GRAY)["ok"] is True
    topic = f"{D}/health"
    health = asker.heard.wait_for(
        lambda _: (h := asker.heard.last(topic)) and h["infer"]["answered"] and h, "its count"
    )
    assert health["malformed"] == 3
    assert health["infer"]["asked"] == before + 1
    (why,) = health["why"]
    assert why.startswith("model absent: no model of that name")
    # 0.4 MB of a file, whose size nothing had said to be another as JSON.
    np.save(tmp_path / "long.npy", np.full((50_000, 2), 1 / 3))
    there = ("--device", "box", "--broker", broker.url)
    refused = call_cli("infer", str(tmp_path / "long.npy"), "--model", "loud", *there)
    assert "as JSON, " in refused.err
    assert process.stop() == 0


def test_the_answer_goes_where_the_question_says_and_too_much_is_refused(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: str
) -> None:
    """MQTT 5: on the response topic, with the correlation data, and not on `reply` too."""
    asker, process = started(broker, listen, agent, models, per_s=2)
    caller = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    got: list[Any] = []
    ready, done = threading.Event(), threading.Event()

    def on_message(_client: Any, _userdata: Any, message: Any) -> None:
        got.append(message)
        if len(got) == 10:
            done.set()

    caller.on_subscribe = lambda *_: ready.set()
    caller.on_message = on_message
    caller.connect("127.0.0.1", broker.port)
    caller.subscribe("callers/me", 1)
    caller.loop_start()
    try:
        assert ready.wait(PATIENCE)
        for number in range(10):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.ResponseTopic = "callers/me"
            properties.CorrelationData = bytes([number])
            caller.publish(f"{D}/in/infer/light/r{number}", GRAY, 1, properties=properties)
        assert done.wait(PATIENCE)
    finally:
        caller.disconnect()
        caller.loop_stop()
    replies = {m.properties.CorrelationData[0]: json.loads(m.payload) for m in got}
    assert len(replies) == 10
    assert all(reply["id"] == f"r{number}" for number, reply in replies.items())
    assert replies[0]["ok"] is True
    refused = [reply for reply in replies.values() if not reply["ok"]]
    assert refused
    assert all(0 < reply["retry_after_s"] <= 0.5 for reply in refused)
    assert all("infer.per_s = 2" in reply["error"] for reply in refused)
    assert not [heard for heard in asker.heard.heard if "/reply/r" in heard.topic]
    assert process.stop() == 0
