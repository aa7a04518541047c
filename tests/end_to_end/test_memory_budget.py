"""A small box: the budget of its profile is of all models that serve together."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest

from tests.helpers.language_model import language_model
from tests.helpers.push import PlainSender, model_folder, plain_package, start_box
from tests.helpers.small_models import brightness, encode_jpeg, plain, write_clip
from tests.helpers.support import (
    CHECKOUT,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"
LIMIT = "more than memory_budget_mb = 256 for all that serves"


def sized(folder: Path, mb: int, version: str = "1") -> Path:
    """Make a model of so many MB; most of it is a hole."""
    brightness(folder, version)
    with (folder / "more.bin").open("wb") as file:
        file.truncate(mb * 2**20 - 2**18)
    return folder


def test_models_that_are_too_large_together_are_refused_with_the_figures(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Each was judged alone: 480 MB served where 256 were allowed, and nothing was said."""
    for name, mb in (("a", 150), ("b", 80), ("c", 40), ("d", 30)):
        sized(tmp_path / "models" / name, mb)
    source = f"file:{write_clip(tmp_path / 'clip.avi', [plain(9)] * 25)}?loop=1"
    pipelines = [{"name": f"p-{name}", "source": source, "model": name} for name in "abc"]
    more = {"models_dirs": [str(tmp_path / "models")], "infer": {"models": ["d"]}}
    text = agent_settings("box", broker.url, pipelines, profile="arm-small", **more)
    running, heard = agent(text), listen(broker.port)
    of_c = f"c@1: its 40 MB and a@1 (150 MB), b@1 (80 MB) are 270 MB together, {LIMIT}"
    of_d = f"d@1: its 30 MB and a@1 (150 MB), b@1 (80 MB) are 260 MB together, {LIMIT}"
    heard.wait_why(f"model c: {of_c}")
    for name in "ab":
        heard.wait_state(f"{D}/result/p-{name}", model=f"{name}@1")
    heard.publish(f"{D}/in/infer/d/q1", encode_jpeg(plain(9)))
    reply = heard.wait_state(f"{D}/reply/q1", ok=False)
    assert of_d in reply["error"]
    assert of_c in running.words()
    check = call_cli("check", "--config", str(running.config))
    assert check.code == 1
    lines = [line for line in check.out.splitlines() if "@1" in line]
    assert [LIMIT in line for line in lines] == [False, False, True, True], check.out
    assert of_c in lines[2]
    assert of_d in lines[3]
    assert not heard.on(f"{D}/result/p-c")
    # Once there is room, they serve.
    running.config.write_text(
        agent_settings("box", broker.url, pipelines[1:], profile="arm-small", **more)
    )
    running.signal(signal.SIGHUP)
    heard.wait_state(f"{D}/result/p-c", model="c@1")
    wait_until(lambda: "model d is live" in running.words(), "the model that is asked")
    heard.publish(f"{D}/in/infer/d/q2", encode_jpeg(plain(9)))
    assert heard.wait_state(f"{D}/reply/q2", ok=True)["model"] == "d@1"
    assert running.stop() == 0


def test_a_push_that_is_too_large_beside_others_is_rejected_with_the_figures(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """What it takes in its trial is another measure, and bounded by the memory that is free."""
    sized(tmp_path / "library" / "large", 250)
    pipelines = [{"name": "door", "model": "level"}, {"name": "other", "model": "large"}]
    box = start_box(
        *(tmp_path, broker, listen(broker.port), agent, "box"),
        pipelines=pipelines,
        profile="arm-small",
        trust={"allow_unsigned": True},
    )
    random = np.random.default_rng(1)
    new = model_folder(tmp_path / "new" / "level", "2")
    (new / "more.bin").write_bytes(random.bytes(8 << 20))
    done = call_cli("push", str(new), "--device", "box", "--broker", broker.url)
    assert done.code == 1
    figures = f"level@2: its 9 MB and large@1 (250 MB) are 259 MB together, {LIMIT}"
    assert figures in done.out + done.err
    assert figures in box.wait_settled(outcome="rejected")["last"]["why"]
    box.results_go_on("1")
    (new / "more.bin").unlink()
    done = call_cli("push", str(new), "--device", "box", "--broker", broker.url)
    assert done.code == 0, done.err
    box.results_go_on("2")


def test_what_is_loaded_while_a_push_is_in_shadow_leaves_it_its_room(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """A version on trial was not counted: once it was live, more served than was allowed."""
    program, models = tmp_path / "program", tmp_path / "models"
    for name in ("edge_agent", "device_profiles", "models"):
        copytree(CHECKOUT / name, program / name, ignore=ignore_patterns("__pycache__", ".*cache"))
    (program / "device_profiles" / "own.toml").write_text(
        'description = "a test\'s own"\nmemory_budget_mb = 10\n'
        '[[engines]]\nengine = "onnxruntime"\n'
    )
    sized(models / "a", 2)
    sized(models / "b", 7)
    text = agent_settings(
        "box",
        broker.url,
        [
            {
                "name": "door",
                "source": f"file:{write_clip(tmp_path / 'clip.avi', [plain(9)] * 25)}?loop=1",
                "model": "a",
            }
        ],
        profile="own",
        models_dirs=[str(models)],
        infer={"models": ["b"]},
        trial={"shadow_frames": 100_000, "timeout_s": 600, "probation_s": 0},
        trust={"allow_unsigned": True},
    )
    running = agent(text, prefix=("env", "--chdir", str(program)))
    heard = listen(broker.port)

    def asked(number: int) -> dict[str, Any]:
        heard.publish(f"{D}/in/infer/b/q{number}", encode_jpeg(plain(9)))
        return heard.wait_state(f"{D}/reply/q{number}")

    heard.wait_state(f"{D}/result/door", model="a@1")
    new = plain_package(sized(tmp_path / "a-2", 6, "2"), "a", "2")
    with PlainSender(broker.port, "box", new) as sender:
        sender.offer().wait("shadow")
        assert "b@1: its 7 MB and a@2 (6 MB), a@1 (2 MB) are 15 MB together" in asked(1)["error"]
        # No frames, no shadow.
        heard.publish(f"{D}/in/command/set", '{"id": "s", "pipeline": "door", "enabled": false}')
        sender.wait("live")
    heard.wait_why("model b: b@1: its 7 MB and a@2 (6 MB) are 13 MB together")
    assert not asked(2)["ok"]
    assert running.stop() == 0


def test_a_language_model_that_there_is_no_room_for_does_not_take_the_place_of_another(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """It went live and passed its probation, and from then on nobody was answered."""
    pytest.importorskip("openvino_genai")
    sized(tmp_path / "models" / "large", 245)
    language_model(tmp_path / "models" / "tiny")
    source = f"file:{write_clip(tmp_path / 'clip.avi', [plain(9)] * 25)}?loop=1"
    text = agent_settings(
        "box",
        broker.url,
        [{"name": "door", "source": source, "model": "large"}],
        engine="auto",
        profile="arm-small",
        models_dirs=[str(tmp_path / "models")],
        infer={"models": ["tiny"]},
        text={"kv_cache_mb": 4, "max_tokens": 5},
        trust={"allow_unsigned": True},
    )
    running, heard = agent(text), listen(broker.port)
    heard.wait_state(f"{D}/result/door", model="large@1")

    def answered_by(number: int) -> str:
        heard.publish(f"{D}/in/infer/tiny/q{number}", '{"prompt": "hello"}')
        reply = heard.wait_state(f"{D}/reply/q{number}", ok=True)
        return str(reply["model"])

    assert answered_by(1) == "tiny@1"
    new = language_model(tmp_path / "new" / "tiny", "2")
    (new / "more.bin").write_bytes(np.random.default_rng(1).bytes(8 << 20))
    done = call_cli("push", str(new), "--device", "box", "--broker", broker.url)
    assert done.code == 1
    assert f"and large@1 (245 MB) are 258 MB together, {LIMIT}" in done.out, done.out
    assert answered_by(2) == "tiny@1"
    assert running.stop() == 0
