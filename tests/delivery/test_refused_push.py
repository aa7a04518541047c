"""A push by a user whom the access list does not let, where mosquitto then ends the connection.

From 2.0.16 on, and 2.0.11 of Debian, it does so after each refusal with `max_queued_messages 0`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.cli.laying import reconnect
from edge_agent.config.settings import Broker
from edge_agent.core.errors import BrokerError
from edge_agent.mqtt.one_shot import OneShotClient, is_loss
from tests.helpers.push import model_folder
from tests.helpers.support import Listener, Mosquitto, run_cli, wait_until

Listening = Callable[..., Listener]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Mosquitto]:
    """Start a broker on which all may be read, and devices alone may say something."""
    rights = tmp_path / "rights"
    rights.write_text("topic read edge/#\ntopic write edge/+/status\ntopic write edge/+/info\n")
    broker = Mosquitto(tmp_path / "broker", f"acl_file {rights}\n")
    yield broker
    broker.stop()


@pytest.mark.parametrize(
    ("target", "topic"), [("edge-01", "edge/edge-01/in/push/"), ("@lab", "edge/@package/")]
)
def test_a_forbidden_push_ends_with_the_reason_alone(
    guarded: Mosquitto, listen: Listening, tmp_path: Path, target: str, topic: str
) -> None:
    """It was "offered", then lost its connection again and again; to a group, without a reason."""
    listener = listen(guarded.port)
    listener.publish("edge/edge-01/status", '{"state": "online"}', retain=True)
    listener.publish("edge/edge-01/info", '{"groups": ["lab"]}', retain=True)
    key, new = tmp_path / "signer.pem", model_folder(tmp_path / "new", "2", hidden=400)
    assert run_cli("keygen", str(key)).returncode == 0
    by = ("--broker", guarded.url, "--timeout", "4")
    done = run_cli("push", str(new), "--device", target, "--key", str(key), *by)
    assert done.returncode == 1
    assert re.fullmatch(
        f"edge-agent: the broker does not let us publish to {topic}[0-9a-f]{{32}}/(offer|list/0): "
        "Not authorized; see its access list\n",
        done.stderr,
    )


def test_a_refusal_is_heard_over_the_next_connection(guarded: Mosquitto, listen: Listening) -> None:
    """It ended while what is retained was acknowledged, each time, and the reason was not read."""
    listener = listen(guarded.port)
    for number in range(50):
        listener.publish(f"edge/box-{number}/status", '{"state": "online"}', retain=True)
    with OneShotClient(Broker(url=guarded.url), ["edge/+/status"]) as client:
        reconnect(client, time.monotonic())
        client.publish("edge/box-1/in/push/0/offer", b"{}")
        wait_until(lambda: client.gone, "the end of the connection")
        with pytest.raises(BrokerError, match="does not let us publish") as refusal:
            list(client)
        assert not is_loss(client, refusal.value)
