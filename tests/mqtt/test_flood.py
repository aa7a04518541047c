"""Garbage by the thousand on a device's inbox: counted, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
)

COUNT = 10_000
D = "edge/box"


def garbage(seed: int) -> list[tuple[str, bytes]]:
    """Make messages that mean nothing: topics that are none of ours, payloads of all kinds."""
    chance = random.Random(seed)  # noqa: S311 - garbage, not secrets
    topics = [
        "command/ping", "command/set", "command/nothing", "command/a/b", "command",
        "model", "push/t/offer", "push/t/list/0", "push/t/block/0", "push/t/block/999999999999",
        "push/t/block/x", "push/../offer", "push", "x", "push/t/abort/now", "model/x",
    ]  # fmt: skip
    payloads: list[Callable[[], bytes]] = [
        lambda: chance.randbytes(chance.randint(1, 200)),
        lambda: b"{" * chance.randint(1, 2000),
        lambda: b"[" * 20_000,
        lambda: b'{"id": 7}',
        lambda: b'{"id": "../../etc/passwd"}',
        lambda: json.dumps({"id": "x" * 65}).encode(),
        lambda: b'{"id": null, "pipeline": []}',
        lambda: b"9" * 5000,
        lambda: b"\xff\xfe" * 50,
        lambda: b'"' + b"a" * 300 + b'"',
        lambda: b"\x00" * 512,
    ]
    return [(f"{D}/in/{chance.choice(topics)}", chance.choice(payloads)()) for _ in range(COUNT)]


@pytest.fixture
def patient_broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run a broker that keeps what a receiver is behind with: by default it drops beyond 1,000."""
    started = Mosquitto(tmp_path / "broker", "max_queued_messages 0\n")
    yield started
    started.stop()


@pytest.mark.parametrize("qos", [0, 1])
def test_ten_thousand_malformed_messages_change_nothing_but_a_counter(
    patient_broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
    qos: int,
) -> None:
    """After the flood: the same session, results going on, nothing pushed, no reply but one.

    Memory is where it was, and a command that is right is still done.
    """
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(25)])
    # Its clip is dark on purpose.
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "light", "camera": False}
    listener = listen(patient_broker.port, f"{D}/#")
    running = agent(
        agent_settings(
            "box", patient_broker.url, [pipeline], models_dirs=[str(tmp_path / "models")]
        )
    )
    before = listener.wait_for(
        lambda heard: next(
            (h.json for h in heard if h.topic == f"{D}/health" and h.json["models"]), None
        ),
        "health with a model",
    )
    session = listener.on(f"{D}/status")[-1]["session"]
    sender = mqtt.Client(CallbackAPIVersion.VERSION2)
    sender.max_queued_messages_set(0)
    sender.connect("127.0.0.1", patient_broker.port)
    sender.loop_start()
    receipts = [sender.publish(topic, payload, qos) for topic, payload in garbage(seed=qos)]
    for receipt in receipts:
        receipt.wait_for_publish(PATIENCE)
    sender.publish(f"{D}/in/command/ping", b'{"id": "after"}', 1).wait_for_publish(PATIENCE)
    sender.disconnect()
    sender.loop_stop()

    answer = listener.wait_state(f"{D}/reply/after", ok=True)
    assert answer["result"]["session"] == session
    after = listener.wait_for(
        lambda heard: next(
            (
                h.json
                for h in reversed(heard)
                if h.topic == f"{D}/health" and h.json["malformed"] > 0.8 * COUNT
            ),
            None,
        ),
        "the flood to be counted",
    )
    assert before["malformed"] == 0
    assert after["malformed"] <= COUNT
    assert (after["state"], after["reconnects"]) == ("ok", 0)
    check_account(after["pipelines"]["p"])
    assert after["pipelines"]["p"]["inferred"] > before["pipelines"]["p"]["inferred"]
    assert after["rss_mb"] < before["rss_mb"] + 60
    said = [h for h in listener.heard if "/in/" not in h.topic]
    assert {h.json["state"] for h in said if "/push/" in h.topic} == {"rejected"}
    assert {h.topic for h in said if "/reply/" in h.topic} == {f"{D}/reply/after"}
    model = listener.last(f"{D}/model/light")
    assert model is not None
    assert (model["live"], model["versions"]) == ("1", ["1"])
    assert running.words().count("\n") < 80
    assert running.stop() == 0
