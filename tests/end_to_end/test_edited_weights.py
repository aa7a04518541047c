"""A network whose weights were edited contradicts its golden outputs: it serves on no way in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    run_cli,
    wait_until,
)

FORCED = ("auto", "openvino", "onnxruntime")


def edited(folder: Path, version: str = "1") -> Path:
    """Make a model that gives the mean of a picture where its golden outputs say another number."""
    brightness(folder, version)
    arrays: dict[str, Any] = {
        "input/picture": np.full((1, 3, 16, 16), 200, np.float32),
        "output/light": np.array([44], np.float32),
    }
    np.savez(folder / "golden.npz", **arrays)
    return folder


def settings(folder: Path, broker: Mosquitto, engine: str) -> str:
    """Write settings with a pipeline of the model, which lies in a folder of models_dirs."""
    pictures = write_pictures(folder / "pictures", [plain(90), plain(30)])
    pipeline = {"name": "eye", "source": f"{pictures}?loop=1&rate=20", "model": "light"}
    models = [str(folder / "models")]
    return agent_settings("box", broker.url, [pipeline], engine=engine, models_dirs=models)


@pytest.mark.parametrize("engine", FORCED)
def test_an_edited_network_never_serves_past_its_golden_outputs(
    engine: str,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """From models_dirs, at the first start and after it, whichever engine serves first.

    What had left before the first start knew ends with that; a restart publishes nothing at all.
    """
    edited(tmp_path / "models" / "light")
    heard = listen(broker.port, "edge/box/#")
    running = agent(settings(tmp_path, broker, engine))
    heard.wait_why("golden: ")
    wait_until(
        lambda: heard.wait_state("edge/box/model/light").get("live") is not None,
        "the model's topic",
    )
    before = len(heard.on("edge/box/result/eye"))
    reports = len(heard.on("edge/box/health"))
    heard.wait_for(lambda _: len(heard.on("edge/box/health")) >= reports + 5, "further reports")
    assert len(heard.on("edge/box/result/eye")) == before
    assert heard.on("edge/box/health")[-1]["state"] == "degraded"
    assert running.stop() == 0

    running.restart()
    reports = len(heard.on("edge/box/health"))
    heard.wait_for(lambda _: len(heard.on("edge/box/health")) >= reports + 5, "further reports")
    heard.wait_why("golden: ")
    assert len(heard.on("edge/box/result/eye")) == before
    assert "found sound" not in running.words()


def test_an_edited_network_is_not_added(broker: Mosquitto, tmp_path: Path) -> None:
    """By hand it is refused at once, with the key that moves the margin."""
    config = tmp_path / "config.toml"
    config.write_text(settings(tmp_path, broker, "auto"))
    (tmp_path / "models").mkdir()
    added = run_cli("add", str(edited(tmp_path / "light")), "--config", str(config))
    assert added.returncode == 1
    assert "golden: " in added.stderr
    assert "[trial] tolerance" in added.stderr
