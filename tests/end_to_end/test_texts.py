"""Texts that others ask about: a model of task embedding, from the settings to the vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings, call_cli
from tests.helpers.text_models import embedder, expected

D = "edge/box"
TEXTS = ["The pump vibrates.", "a forklift passes through the gate", ""]


def test_texts_become_vectors_of_the_version_that_is_live(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """Asked over MQTT and by hand; what is no question is refused; another version is pushed."""
    first = embedder(tmp_path / "models" / "texts")
    second = embedder(tmp_path / "new" / "texts", "2", output={"pooling": "cls"})
    config = agent_settings(
        "box",
        broker.url,
        [],
        models_dirs=[str(tmp_path / "models")],
        infer={"models": ["texts"], "per_s": 100},
        trust={"allow_unsigned": True},
        trial={"probation_s": 0},
    )
    heard = listen(broker.port)
    running = agent(config)
    heard.wait_state(f"{D}/status", state="online")
    asked = 0

    def ask(body: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        data = body if isinstance(body, bytes) else json.dumps(body)
        heard.publish(f"{D}/in/infer/texts/q{asked}", data)
        topic = f"{D}/reply/q{asked}"
        found: dict[str, Any] = heard.wait_for(lambda _: heard.last(topic), topic)
        return found

    def agrees(answer: dict[str, Any], folder: Path, pooling: str) -> bool:
        wanted = np.array([expected(folder, text, pooling) for text in TEXTS])
        return bool((np.sum(np.array(answer["embeddings"]) * wanted, axis=1) > 0.9999).all())

    answer = ask({"texts": TEXTS})
    assert (answer["ok"], answer["model"], answer["pipeline"]) == (True, "texts@1", "@infer")
    assert agrees(answer, first, "mean")
    questions: tuple[Any, ...] = (
        *({"texts": []}, {"texts": "a"}, {"texts": [1]}, {"texts": ["a"] * 257}, {}, []),
        *({"readings": [[1]]}, b"\xff\xd8\xff picture", b'{"texts": ["\\ud800"]}'),
    )
    for wrong in questions:
        refused = ask(wrong)
        assert refused["ok"] is False
        assert '{"texts": […]}' in refused["error"]
    long = ask({"texts": ["a", "b" * 100_001]})
    assert "at most 100000 characters" in long["error"]
    question = tmp_path / "question.json"
    question.write_text(json.dumps({"texts": TEXTS}))
    by_hand = ("--model", "texts", "--device", "box", "--broker", broker.url)
    assert "embeddings [3, 16]" in call_cli("infer", str(question), *by_hand).out
    assert "ok    " in call_cli("check", "--config", str(running.config)).out
    pushed = call_cli("push", str(second), "--device", "box", "--broker", broker.url)
    assert pushed.code == 0, pushed.err
    answer = ask({"texts": TEXTS})
    assert answer["model"] == "texts@2"
    assert agrees(answer, second, "cls")
    heard.wait_state(f"{D}/health", state="ok")
