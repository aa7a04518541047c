"""Roll-outs for other devices, which each device of the broker hears of."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
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


def test_a_key_that_is_laid_down_later_is_used(tmp_path: Path) -> None:
    """The box said that no trusted key had signed it until its next start, as `check` said ok."""
    device = Device(tmp_path)
    generate_key(tmp_path / "their.key")
    payload = seal(device.plan, load_private(tmp_path / "their.key"))
    topic = f"edge/@rollout/{device.plan.id}"
    message = ReceivedMessage(topic, payload, retained=True)
    with pytest.raises(MalformedError, match="signed by no key that is trusted here"):
        device.rollouts.take((device.plan.id,), message)
    device.wait()
    assert [word["why"] for word in device.words] == ["it is signed by no key that is trusted here"]
    (tmp_path / "their.key.pub").rename(tmp_path / "trust" / "their.pub")
    device.rollouts.tick(time.monotonic() + 61 * 60)
    assert [(word["state"], word.get("why")) for word in device.words[1:3]] == [
        ("waiting", None),
        ("receiving", None),
    ]


def test_a_plan_that_was_replaced_is_not_followed_once_its_key_is_there(tmp_path: Path) -> None:
    """What lies on the broker counts, and that names other devices now."""
    device = Device(tmp_path)
    generate_key(tmp_path / "their.key")
    key, name = load_private(tmp_path / "their.key"), device.plan.id
    others = replace(device.plan, waves=(Wave(devices=("other",)),), serial=2)
    for plan in device.plan, others:
        message = ReceivedMessage(f"edge/@rollout/{name}", seal(plan, key), retained=True)
        with suppress(MalformedError):
            device.rollouts.take((name,), message)
    (tmp_path / "their.key.pub").rename(tmp_path / "trust" / "their.pub")
    device.wait()
    assert [word["state"] for word in device.words] == ["waiting"]
