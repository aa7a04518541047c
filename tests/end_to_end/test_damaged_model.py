"""The only model of a device is damaged on its disk."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.helpers.small_models import brightness, write_clip
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    wait_until,
)


def test_one_that_has_run_keeps_the_agent_up(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """Nobody may be there to mend it: the agent stays up, says why, and takes another version.

    With settings that have never worked it is an error of theirs, and ends with 2.
    """
    device = "box"
    network = brightness(tmp_path / "models" / "light") / "model.onnx"
    clip = write_clip(tmp_path / "gray.avi", [np.full((16, 16, 3), 90, np.uint8)] * 5)
    pipeline = {"name": "eye", "source": f"file:{clip}?loop=1&pace=real", "model": "light"}
    heard = listen(broker.port, f"edge/{device}/#")
    running = agent(
        agent_settings(device, broker.url, [pipeline], models_dirs=[str(tmp_path / "models")])
    )
    wait_until(lambda: heard.on(f"edge/{device}/result/eye") != [], "a result")
    served = running.folder / "state" / "served.json"
    wait_until(served.is_file, "that it has run to be kept")
    assert running.stop() == 0

    whole = network.read_bytes()
    network.write_bytes(whole[: len(whole) // 2])
    running.restart()
    heard.wait_why(f"model light: {network}: not a valid ONNX file")
    wait_until(lambda: "nothing can run, as it has before" in running.words(), "its line")
    assert running.process.poll() is None

    network.write_bytes(whole)
    before = len(heard.on(f"edge/{device}/result/eye"))
    running.signal(signal.SIGHUP)
    wait_until(
        lambda: len(heard.on(f"edge/{device}/result/eye")) > before, "results after the mend"
    )
    assert running.stop() == 0

    network.write_bytes(whole[: len(whole) // 2])
    served.unlink()
    running.restart()
    assert running.wait() == 2
    assert "Traceback" not in running.words()
