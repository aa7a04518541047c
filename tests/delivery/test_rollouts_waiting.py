"""Roll-outs whose package does not come."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from edge_agent.mqtt.connection import ReceivedMessage
from tests.delivery.test_rollouts_undo import Device
from tests.helpers.push import model_folder, plain_package


def test_a_later_roll_out_that_expired_before_it_began_here_supersedes_none(tmp_path: Path) -> None:
    """The device got neither: one was superseded, and the other one expired."""
    device = Device(tmp_path)
    before = device.plan
    device.hear(id="later", version="3", created=before.expires, expires=before.created)
    assert (device.state, device.words[-1]["why"]) == ("waiting", f"expired at {before.created}")
    device.plan = before
    device.hear()
    assert device.state == "receiving"


def test_a_device_whose_package_is_gone_from_the_broker_says_so(tmp_path: Path) -> None:
    """It said "receiving" for as long as the plan lay there, and nothing else."""
    device = Device(tmp_path)
    package = plain_package(model_folder(tmp_path / "3", "3"), "level", "3")
    device.hear(transfer=package.transfer, version="3")
    why = "nothing of its package has come from the broker for 60 s: is it still there"
    assert device.state == "receiving"
    assert device.words[-1]["why"].startswith(why)

    levels = (package.transfer, "offer")
    offer = {"schema": 1, "package": base64.b64encode(package.header).decode()}
    message = ReceivedMessage("/".join(levels), json.dumps(offer).encode(), retained=True,
                              response_topic=None, correlation=None, ack=lambda: None)  # fmt: skip
    device.router.drawn(levels, message)
    assert device.state == "receiving"
    assert "why" not in device.words[-1]
    device.hear()  # the offer has come, and no block
    assert device.words[-1]["why"].startswith(why)
