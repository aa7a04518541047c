"""Language models of the device itself: asked by others and about events, pushed and exchanged."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openvino_genai")

from edge_agent.answers.generators import open_generator
from edge_agent.config.settings import Settings
from edge_agent.core.errors import EngineError
from edge_agent.inference.engines.generator_process import WORKER
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from edge_agent.serving.budget import MemoryBudget
from tests.helpers.language_model import language_model
from tests.helpers.processes import children_of
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    wait_until,
)

D = "edge/box"
PROMPTS = [f"hello {number} the gate" for number in range(4)]


class Talk:
    """An agent with frames and a language model, and somebody who asks it."""

    def __init__(
        self,
        tmp_path: Path,
        broker: Mosquitto,
        listen: Callable[..., Listener],
        agent: Callable[..., AgentProcess],
    ) -> None:
        language_model(tmp_path / "models" / "tiny")
        brightness(tmp_path / "models" / "light")
        clip = write_clip(tmp_path / "clip.avi", [plain(200 + i) for i in range(25)])
        pipeline = {
            "name": "lamp",
            "source": f"file:{clip}?loop=1",
            "model": "light",
            "rules": [{"name": "bright", "when": "value", "value": "light", "above": 100}],
            "ask": [{"model": "tiny", "prompt": "Why {rule}?"}],
        }
        self.heard = listen(broker.port)
        self.running = agent(
            agent_settings(
                "box",
                broker.url,
                [pipeline],
                engine="auto",
                models_dirs=[str(tmp_path / "models")],
                infer={"models": ["tiny"], "per_s": 1000},
                text={"kv_cache_mb": 4, "max_tokens": 30, "max_waiting": 4},
                trust={"allow_unsigned": True},
                trial={"probation_s": 0},
            )
        )
        self.by_hand = ("--device", "box", "--broker", broker.url)
        self.about = self.heard.wait_state(f"{D}/answer/lamp", model="tiny")
        self._asked = 0

    def send(self, **body: Any) -> str:
        """Ask; gives the topic of the answer."""
        self._asked += 1
        self.heard.publish(f"{D}/in/infer/tiny/q{self._asked}", json.dumps(body))
        return f"{D}/reply/q{self._asked}"

    def reply(self, topic: str) -> dict[str, Any]:
        """Give an answer."""
        found: dict[str, Any] = self.heard.wait_for(lambda _: self.heard.last(topic), topic)
        return found

    def ask(self, **body: Any) -> dict[str, Any]:
        return self.reply(self.send(**body))


@pytest.fixture
def talk(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> Talk:
    """Start it, and wait until it has been asked about an event."""
    return Talk(tmp_path, broker, listen, agent)


def test_a_language_model_answers_several_at_once_as_one_by_one(talk: Talk) -> None:
    """About events too; what is too much or makes no sense is refused, and harms no other."""
    assert (talk.about["tokens"], talk.about["rule"]) == (30, "bright")
    assert talk.about["text"]
    alone = [talk.ask(prompt=prompt)["text"] for prompt in PROMPTS]
    topics = [talk.send(prompt=PROMPTS[number % 4]) for number in range(24)]
    answers = [talk.reply(topic) for topic in topics]
    for number, each in enumerate(answers):
        if each["ok"]:
            assert each["text"] == alone[number % 4]
        else:
            assert "4 questions wait" in each["error"]
            assert each["retry_after_s"] > 0
    assert sum(each["ok"] for each in answers) >= 4
    said = talk.ask(messages=[{"role": "user", "content": "hi"}], max_tokens=7)
    assert (said["model"], said["tokens"], said["finish_reason"]) == ("tiny@1", 7, "length")
    stop = alone[0][3]
    assert talk.ask(prompt=PROMPTS[0], stop=stop)["text"] == alone[0].split(stop)[0]
    for wrong in (
        *({}, {"prompt": ""}, {"prompt": "a", "messages": []}, {"messages": "a"}),
        *({"prompt": "a", "max_tokens": -1}, {"prompt": "a", "temperature": "hot"}),
        *({"prompt": "a", "schema": {"type": "nope"}}, {"prompt": "a " * 50_000}, {"texts": ["a"]}),
    ):
        assert talk.ask(**wrong)["ok"] is False
    beside = talk.send(prompt=PROMPTS[1])
    refused = talk.ask(prompt="a", schema={"type": 5})
    assert refused["error"].startswith("schema: Type should be a string"), refused
    assert talk.reply(beside)["text"] == alone[1], "it begins anew"
    assert talk.ask(prompt=PROMPTS[0])["text"] == alone[0], "it has recovered"
    state = talk.heard.wait_state(f"{D}/model/tiny", live="1")
    assert state["versions"] == ["1"]
    health = talk.heard.wait_state(f"{D}/health", state="ok")
    assert health["pipelines"]["lamp"]["dropped"]["error"] == 0
    talk.send(prompt="hello")
    assert talk.running.stop() == 0


def test_a_language_model_is_pushed_tried_and_taken_back(talk: Talk, tmp_path: Path) -> None:
    """Each question is answered by one version or the other; one that does not load is rejected."""
    before = talk.ask(prompt=PROMPTS[0])["text"]
    second = language_model(tmp_path / "new" / "tiny", "2", seed=2)

    def is_of(version: str) -> bool:
        said = talk.ask(prompt=PROMPTS[0])
        assert said["ok"], said
        assert (said["text"] == before) == (said["model"] == "tiny@1")
        return bool(said["model"] == f"tiny@{version}")

    def is_alike(version: str) -> bool:
        said = talk.ask(prompt=PROMPTS[0])
        assert said["text"] == before
        return bool(said["model"] == f"tiny@{version}")

    assert call_cli("push", str(second), *talk.by_hand).code == 0
    wait_until(lambda: is_of("2"), "the second version")
    assert call_cli("rollback", "tiny", *talk.by_hand).code == 0
    wait_until(lambda: is_of("1"), "the first version")
    third = language_model(tmp_path / "third" / "tiny", "3", seed=3)
    golden = third / "golden.json"
    golden.write_text('[{"prompt": "hello", "text": "no bound"}]')
    assert '"max_tokens" (up to 256)' in call_cli("push", str(third), *talk.by_hand).error
    case = {"prompt": PROMPTS[0], "max_tokens": 30}
    golden.write_text(json.dumps([{**case, "text": before}]))
    pushed = call_cli("push", str(third), *talk.by_hand)
    assert pushed.code == 1
    assert f"rejected: tiny@3: golden: case 0: expected {before!r}, found" in pushed.out
    assert is_of("1")
    (third / "openvino_tokenizer.bin").write_bytes(b"none")
    pushed = call_cli("push", str(third), *talk.by_hand)
    assert pushed.code == 1
    assert "rejected: tiny@3: " in pushed.out
    assert "Exception from" not in pushed.out
    assert is_of("1")
    golden.unlink()
    (third / "openvino_detokenizer.xml").unlink()
    pushed = call_cli("push", str(third), *talk.by_hand)
    assert "rejected: tiny@3: openvino_detokenizer.xml is missing" in pushed.out
    fourth = language_model(tmp_path / "fourth" / "tiny", "4")
    (fourth / "golden.json").write_text(json.dumps([{**case, "text": before}]))
    assert call_cli("push", str(fourth), *talk.by_hand).code == 0
    wait_until(lambda: is_alike("4"), "the fourth version, which says the same")
    done = call_cli("check", "--config", str(talk.running.config))
    assert "tiny@4 runs on openvino:CPU, golden: 1 answer as it should be" in done.out


def test_questions_are_split_between_versions_and_one_that_fails_is_in_health(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """Each version answers its share; what cannot be loaded is said, and `check` says it, too."""
    models = tmp_path / "models"
    for version in ("1", "2"):
        language_model(models / version / "tiny", version, seed=int(version))
    wrong = language_model(models / "1" / "wrong")
    (wrong / "golden.json").write_text('[{"prompt": "hello", "text": "no", "max_tokens": 5}]')
    listener = listen(broker.port)
    folders = [str(models / version) for version in ("1", "2")]
    asked = ["tiny@1:25,tiny@2:75", "wrong"]
    running = agent(
        agent_settings(
            "box",
            broker.url,
            [],
            engine="auto",
            models_dirs=folders,
            infer={"models": asked, "per_s": 1000},
            text={"kv_cache_mb": 4, "max_tokens": 5},
        )
    )

    def ask(model: str, number: int) -> dict[str, Any]:
        listener.wait_for(lambda _: listener.last(f"{D}/health"), "health")
        listener.publish(f"{D}/in/infer/{model}/{model}{number}", '{"prompt": "hello"}')
        topic = f"{D}/reply/{model}{number}"
        found: dict[str, Any] = listener.wait_for(lambda _: listener.last(topic), topic)
        return found

    said = [ask("tiny", number)["model"] for number in range(8)]
    assert Counter(said) == {"tiny@1": 2, "tiny@2": 6}
    errors = {ask("wrong", number)["error"] for number in range(2)}
    assert len(errors) == 1
    listener.wait_why("model wrong@1: golden: case 0: ")
    assert running.stop() == 0
    assert running.words().count("wrong@1: golden") == 1, "a failure is not tried again at once"
    done = call_cli("check", "--config", str(running.config))
    assert done.code == 1
    assert "wrong@1: golden: case 0: " in done.out
    pipeline = {"name": "p", "source": f"dir:{tmp_path}", "model": "tiny"}
    text = agent_settings("box", broker.url, [pipeline], models_dirs=folders)
    (tmp_path / "pipeline.toml").write_text(text)
    done = call_cli("check", "--config", str(tmp_path / "pipeline.toml"))
    assert "is of task generate, which pipelines cannot run" in done.out


def test_a_reload_leaves_a_language_model_alone_that_only_events_ask(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """Its process was ended by each, and the next event's answer came too late."""
    language_model(tmp_path / "models" / "tiny")
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(200 + i) for i in range(25)])
    lamp = {"name": "lamp", "source": f"file:{clip}?loop=1", "model": "light"}
    rules = [{"name": "bright", "when": "value", "value": "light", "above": 100}]
    asking = {**lamp, "rules": rules, "ask": [{"model": "tiny", "prompt": "Why {rule}?"}]}

    def settings(*pipelines: dict[str, Any]) -> str:
        return agent_settings(
            "box",
            broker.url,
            list(pipelines),
            engine="auto",
            models_dirs=[str(tmp_path / "models")],
            text={"kv_cache_mb": 4, "max_tokens": 5},
        )

    heard, running = listen(broker.port), agent(settings(asking))
    heard.wait_state(f"{D}/answer/lamp", model="tiny")
    before = children_of(running.process.pid, WORKER)
    running.config.write_text(settings(asking, {**lamp, "name": "other"}))
    running.signal(signal.SIGHUP)
    heard.wait_state(f"{D}/result/other", model="light@1")
    assert children_of(running.process.pid, WORKER) == before != []
    assert running.stop() == 0


def test_a_pinned_language_model_ends_when_its_files_are_removed_from_the_store(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """So does one that was asked before its trial, and rejected; its process went on answering."""
    heard = listen(broker.port)
    running = agent(
        agent_settings(
            "box",
            broker.url,
            [],
            engine="auto",
            infer={"models": ["tiny@1"], "per_s": 1000},
            text={"kv_cache_mb": 4, "max_tokens": 5},
            trust={"allow_unsigned": True},
            trial={"probation_s": 0},
        )
    )
    by_hand = ("--device", "box", "--broker", broker.url)
    heard.wait_state(f"{D}/status", state="online")
    assert call_cli("push", str(language_model(tmp_path / "tiny")), *by_hand).code == 0
    numbers = count()

    def ask() -> dict[str, Any]:
        topic = f"tiny/q{next(numbers)}"
        heard.publish(f"{D}/in/infer/{topic}", '{"prompt": "hello"}')
        reply = f"{D}/reply/{topic.removeprefix('tiny/')}"
        found: dict[str, Any] = heard.wait_for(lambda _: heard.last(reply), reply)
        return found

    assert ask()["model"] == "tiny@1"
    store = Store(running.folder / "state")
    with store.locked():
        store.discard("tiny", "1")
    wait_until(lambda: not ask()["ok"], "a refusal")
    assert "tiny" in ask()["error"]
    wait_until(lambda: not children_of(running.process.pid, WORKER), "the end of its process")


def test_a_language_model_above_the_budget_is_refused(tmp_path: Path) -> None:
    """Its cache counts, too."""
    model = load(language_model(tmp_path / "tiny"))
    with pytest.raises(EngineError, match=r"memory_budget_mb = 4; lower text.kv_cache_mb"):
        open_generator(model, Settings(), MemoryBudget(4, kv_cache_mb=4), pytest.fail)
