"""Text from outside that wants to be a line of the log or an order to the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from tests.helpers.small_models import brightness, detector, plain, write_pictures
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    run_cli,
)
from tests.helpers.tiny_networks import node, save_onnx

EVIL = "\n12:00:00 INFO    all is well\r\x1b[2J\x9b31m\u2028\u202e"
"""A line break, a line as the log writes them, and orders to a terminal."""


def harmless(text: str) -> bool:
    """Whether no line is forged and no terminal takes orders."""
    return all(line.isprintable() for line in text.split("\n")) and "\n12:00:00" not in text


def evil_names(folder: Path) -> Path:
    """Make a model whose tensors are called something that its decoder does not look for."""
    brightness(folder)
    save_onnx(
        folder / "model.onnx",
        [node("ReduceMean", ["picture" + EVIL], ["light" + EVIL], axes=[1, 2, 3], keepdims=0)],
        [("picture" + EVIL, "float32", (1, 3, 16, 16))],
        [("light" + EVIL, "float32", (1,))],
    )
    return folder


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Make models whose labels, tensors and golden outputs are named to deceive."""
    place = tmp_path / "models"
    detector(place / "faces", [(0, 0.9, 0.1, 0.1, 0.5, 0.5)], ["face" + EVIL])
    evil_names(place / "names")
    folder = evil_names(place / "wrong")
    manifest = (folder / "model.toml").read_text()
    (folder / "model.toml").write_text(manifest.replace('"raw"', '"yolox"'))
    other = brightness(place / "golden")
    picture = np.zeros((1, 3, 16, 16), np.float32)
    arrays: dict[str, Any] = {"input/picture": picture, "output/light" + EVIL: picture}
    np.savez(other / "golden.npz", **arrays)
    return [str(place)]


def pipelines(tmp_path: Path) -> list[dict[str, object]]:
    """Give a pipeline for each model, and one whose folder is missing."""
    place = tmp_path / "x"
    source = write_pictures(place, [plain(9)])
    made: list[dict[str, object]] = [
        {"name": name, "source": f"{source}?loop=1&rate=5", "model": name}
        for name in ("faces", "names", "wrong", "golden")
    ]
    return [*made, {"name": "gone", "source": f"dir:gone{EVIL}", "model": "faces"}]


def test_no_command_repeats_what_forges_a_line(tmp_path: Path, models: list[str]) -> None:
    """`check`, `try` and `add` show names of labels, tensors and files without their effects."""
    config = tmp_path / "config.toml"
    nobody = "mqtt://127.0.0.1:1"
    config.write_text(agent_settings("box", nobody, pipelines(tmp_path), models_dirs=models))
    source = str(tmp_path / "x")
    (tmp_path / f"odd{EVIL}.onnx").write_bytes(b"nothing")
    commands = [
        ("check", "--config", config),
        ("add", f"{models[0]}/wrong", "--config", config),
        ("add", f"{models[0]}/golden", "--config", config),
        ("try", source, f"{models[0]}/faces"),
        ("try", source, f"{models[0]}/names/model.onnx"),
        ("try", source, str(tmp_path / f"odd{EVIL}.onnx")),
        ("try", f"{source}{EVIL}", f"{models[0]}/faces"),
        ("push", f"{models[0]}/wrong", "--device", f"box{EVIL}"),
        ("models", "--device", "box", f"--broker=mqtt://u:p@{EVIL}"),
    ]
    said = ""
    for command in commands:
        done = run_cli(*map(str, command), cwd=tmp_path)
        assert harmless(done.stdout), (command, done.stdout)
        assert harmless(done.stderr), (command, done.stderr)
        said += done.stdout + done.stderr
    assert said.count("12:00:00 INFO    all is well") > 4  # it was there to be shown


def test_no_line_of_the_log_is_forged(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
    models: list[str],
) -> None:
    """Names of labels, tensors, files and commands stand in the log, each within its own line."""
    listener = listen(broker.port, "#")
    running = agent(agent_settings("box", broker.url, pipelines(tmp_path), models_dirs=models))
    listener.wait_state("edge/box/source/gone", state="lost")
    command = json.dumps({"id": "1", "pipeline": f"x{EVIL}", "rate": 1})
    listener.publish("edge/box/in/command/set", command)
    listener.wait_state("edge/box/reply/1", ok=False)
    listener.publish("edge/box/in/command/ping", '{"id": "2"}')
    listener.wait_state("edge/box/reply/2", ok=True)
    assert running.stop() == 0
    assert "all is well" in running.words()
    assert harmless(running.words()), running.words()


def test_settings_that_are_wrong_forge_no_line(tmp_path: Path) -> None:
    """What an error of the settings quotes stands within its one line."""
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps({f"key{EVIL}": 1, "profile": f"x{EVIL}"}))
    done = run_cli("run", "--config", str(config))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert harmless(done.stderr)
