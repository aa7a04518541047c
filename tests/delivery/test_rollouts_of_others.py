"""Roll-outs for other devices, which each device of the broker hears of."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.core.errors import MalformedError
from edge_agent.delivery.plan import Wave, seal
from edge_agent.models.packages.keys import generate_key, load_private
from edge_agent.mqtt.connection import ReceivedMessage
from tests.delivery.test_rollouts_undo import Device


@pytest.mark.parametrize("wave", [Wave(devices=("other",)), Wave(group="lab")])
def test_a_plan_of_others_by_another_key_is_nothing_to_mend(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wave: Wave
) -> None:
    """At each connection a box that no plan had named warned that the key is not trusted."""
    device = Device(tmp_path)
    generate_key(tmp_path / "their.key")
    key = load_private(tmp_path / "their.key")

    def hear(*waves: Wave) -> None:
        payload = seal(replace(device.plan, waves=waves), key)
        topic = f"edge/@rollout/{device.plan.id}"
        message = ReceivedMessage(topic, payload, retained=True, response_topic=None,
                                  correlation=None, ack=lambda: None)  # fmt: skip
        device.rollouts.take((device.plan.id,), message)

    caplog.set_level(logging.DEBUG)
    hear(wave)
    assert [each.levelname for each in caplog.records] == ["DEBUG"]
    assert device.words == []
    with pytest.raises(MalformedError, match="signed by no key that is trusted here"):
        hear(wave, Wave(devices=("edge-01",)))
    assert device.words != []
