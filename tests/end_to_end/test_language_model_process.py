"""A language model runs in a process of its own: frames go on, and neither outlives its use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from edge_agent.inference.engines.generator_process import WORKER
from tests.helpers.language_model import language_model
from tests.helpers.processes import children_of
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
    wait_until,
)

pytest.importorskip("openvino_genai")
openai = pytest.importorskip("openai")

HEALTH = "edge/box/health"
LONG = 2000
"""Tokens of an answer that takes long."""
PROMPTS = [f"hello {number} the gate" for number in range(8)]


class Talk:
    """An agent with frames, a language model, and OpenAI's client for it."""

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
        lamp = {"name": "lamp", "source": f"file:{clip}?loop=1", "model": "light"}
        port = free_port()
        self.heard = listen(broker.port)
        self.running = agent(
            agent_settings(
                "box",
                broker.url,
                [lamp],
                engine="auto",
                models_dirs=[str(tmp_path / "models")],
                health={"interval_s": 1},
                http={"listen": f"127.0.0.1:{port}"},
                infer={"models": ["tiny"], "per_s": 1000},
                text={"kv_cache_mb": 4, "max_tokens": LONG},
                trust={"allow_unsigned": True},
                trial={"probation_s": 60},
            )
        )
        self.url = broker.url
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        )
        self.heard.wait_for(lambda _: "http: " in self.running.words() or None, "a listener")
        self.heard.wait_for(lambda _: self.frames()["inferred"] or None, "frames")

    def say(self, prompt: str = "hello", length: int = 40) -> str:
        made = self.client.completions.create(model="tiny", prompt=prompt, max_tokens=length)
        return str(made.choices[0].text)

    def begin(self, length: int = LONG) -> Any:
        """Ask for an answer that takes long; give the rest of it once it has begun."""
        pieces = self.client.completions.create(
            model="tiny", prompt="hello", max_tokens=length, stream=True
        )
        next(pieces)
        return pieces

    @property
    def child(self) -> psutil.Process:
        """The process of the model."""
        (found,) = children_of(self.running.process.pid, WORKER)
        return found

    def health(self) -> dict[str, Any]:
        return self.heard.last(HEALTH) or {}

    def frames(self) -> dict[str, Any]:
        """Give the newest counts of the pipeline."""
        counts: dict[str, Any] = self.health().get("pipelines", {}).get("lamp", {"inferred": 0})
        return counts


@pytest.fixture
def talk(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> Talk:
    """Start it."""
    return Talk(tmp_path, broker, listen, agent)


def test_frames_go_on_while_eight_wait_for_a_token_that_takes_long(talk: Talk) -> None:
    """The agent has none of the library's code, which lets nothing else of Python run."""
    alone = [talk.say(prompt) for prompt in PROMPTS]
    agent, child = talk.running.process.pid, talk.child
    assert "openvino_genai" in Path(f"/proc/{child.pid}/maps").read_text()
    assert "openvino_genai" not in Path(f"/proc/{agent}/maps").read_text()
    assert child.nice() > psutil.Process(agent).nice()
    memory = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (child.pid, agent)]
    assert memory[0] > memory[1], "if memory runs out, the child ends, not the agent"
    rss = psutil.Process(agent).memory_info().rss / 2**20
    talk.heard.wait_for(lambda _: talk.health()["rss_mb"] > rss + 20 or None, "its memory to count")
    child.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(8) as callers:
        answers = [callers.submit(talk.say, prompt) for prompt in PROMPTS]
        talk.heard.wait_for(lambda _: talk.health()["infer"]["waiting"] == 8 or None, "eight")
        before = talk.frames()

        def go_on() -> bool:
            return bool(talk.frames()["inferred"] >= before["inferred"] + 50)

        wait_until(go_on, "two seconds of frames")
        child.send_signal(signal.SIGCONT)
        assert [answer.result() for answer in answers] == alone


def test_a_killed_process_costs_its_answers_and_the_next_question_starts_another(
    talk: Talk,
) -> None:
    """Health says why; the agent and its frames go on."""
    alone, first = talk.say(), talk.child
    rest = talk.begin()
    first.kill()
    with pytest.raises(openai.APIError, match="tiny@1: its process ended with SIGKILL"):
        list(rest)
    assert talk.say() == alone
    assert talk.child.pid != first.pid
    why = talk.heard.wait_state(HEALTH, state="degraded")["why"]
    assert why == [
        "model tiny@1: its process ended with SIGKILL; was there too little memory?",
    ]
    assert "model tiny@1: its process ended with SIGKILL" in talk.running.words()
    assert talk.frames()["dropped"]["error"] == 0
    assert talk.running.stop() == 0


def test_a_version_whose_process_ends_at_its_questions_fails_its_probation(
    talk: Talk, tmp_path: Path
) -> None:
    """It was "live" after that, and nobody was answered."""
    before = talk.say()
    new = language_model(tmp_path / "new" / "tiny", "2", seed=2)
    pushed = call_cli("push", str(new), "--device", "box", "--broker", talk.url)
    assert pushed.code == 0, pushed.out
    wait_until(lambda: talk.say() != before, "the second version")
    for _ in range(3):
        rest = talk.begin()
        talk.child.kill()
        with pytest.raises(openai.APIError, match="tiny@2: its process ended with SIGKILL"):
            list(rest)
    why = "rolled back: 3 times during its probation: tiny@2: its process ended with SIGKILL"
    wait_until(lambda: why in talk.running.words(), "the rollback")
    wait_until(lambda: talk.say() == before, "the first version")
    assert talk.running.stop() == 0


def test_a_version_that_is_damaged_on_the_disk_answers_from_memory(
    talk: Talk, tmp_path: Path
) -> None:
    """Its process was ended for it, and the version before answered, with health ok."""
    new = language_model(tmp_path / "new" / "tiny", "2", seed=2)
    before = talk.say()
    pushed = call_cli("push", str(new), "--device", "box", "--broker", talk.url)
    assert pushed.code == 0, pushed.out
    wait_until(lambda: talk.say() != before, "the second version")
    after, child = talk.say(), talk.child
    (weights,) = talk.running.folder.glob("state/models/tiny/2/openvino_model.bin")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    heard = len(talk.heard.on(HEALTH))
    wait_until(lambda: len(talk.heard.on(HEALTH)) > heard + 3, "some seconds")
    assert (talk.say(), talk.child.pid) == (after, child.pid)
    child.kill()
    wait_until(lambda: not child.is_running(), "the end of its process")
    assert talk.say() == before
    talk.heard.wait_why("model tiny@2: is damaged; 1 answers")
    assert talk.running.stop() == 0


def test_a_stop_of_the_service_lets_an_answer_end(talk: Talk) -> None:
    """Systemd signals all processes of a service at once."""
    rest, child = talk.begin(150), talk.child
    for pid in (child.pid, talk.running.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert [piece.choices[0].finish_reason for piece in rest][-1] == "length"
    assert talk.running.wait() == 0
    assert not psutil.pid_exists(child.pid)


def test_no_process_outlives_an_agent_that_is_killed(talk: Talk) -> None:
    """Even amid an answer."""
    talk.begin()
    child = talk.child
    talk.running.signal(signal.SIGKILL)
    talk.running.wait()

    def gone() -> bool:
        # In a container nobody may collect what has ended.
        return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

    wait_until(gone, "its end")
