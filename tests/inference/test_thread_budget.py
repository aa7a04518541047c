"""Engine threads of all models together stay within the cores, on either engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.config.device_profile import DeviceProfile, EngineLine
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.registry import EngineName
from edge_agent.models.manifest import load
from edge_agent.serving.choice import DeviceEngines
from tests.helpers.small_models import brightness

ENGINES: tuple[EngineName, ...] = ("openvino", "onnxruntime")


@pytest.mark.parametrize("cpus", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("lanes", [0, 1, 2, 4])
@pytest.mark.parametrize("threads", [0, 1, 3, 16])
@pytest.mark.parametrize("own_lanes", [None, 1])
def test_lanes_times_threads_are_no_more_than_the_cores(
    tmp_path: Path, cpus: int, lanes: int, threads: int, own_lanes: int | None
) -> None:
    """Whatever a profile says: each lane has a thread, and none has more than its part."""
    lines = tuple(EngineLine(engine=name, threads=threads, lanes=own_lanes) for name in ENGINES)
    profile = DeviceProfile(description="p", engines=lines, lanes=lanes)
    engines = DeviceEngines(profile, replace(read_facts(), cpus=cpus), "auto")
    choices = engines.choices_for(load(brightness(tmp_path / "m")))
    assert [choice.engine for choice in choices] == list(ENGINES)
    for choice in choices:
        assert choice.lanes == engines.lanes == (lanes or min(2, cpus))
        assert 1 <= choice.threads <= max(1, cpus // choice.lanes)
        assert choice.threads <= (threads or cpus)
