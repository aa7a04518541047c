"""Events that belong to no rule: the smallest one, from its sender to the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_agent.config.asks import Ask
from edge_agent.config.rules import Action
from edge_agent.config.settings import Settings
from edge_agent.mqtt.message import Answered
from edge_agent.mqtt.outbox import CROWDED
from edge_agent.rules.actions import Actions
from edge_agent.rules.asking import Asking
from edge_agent.rules.event import Event
from tests.helpers.mqtt_client import make_client
from tests.helpers.rule_engines import make_dispatcher
from tests.helpers.support import Listener, Mosquitto, wait_until


def test_an_event_of_no_rule_is_published_and_acted_on(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """A camera that has seen something itself needs neither rule nor engine nor pipeline."""
    heard = listen(broker.port, "#")
    client = make_client(broker.url)
    running = threading.Thread(target=client.run, daemon=True)
    running.start()
    wait_until(lambda: client.connected, "a connection")
    dispatcher = make_dispatcher(client, Settings(device_id="box", state_dir=str(tmp_path)))
    now = time.time_ns()
    dispatcher.submit(
        Event(
            dispatcher.name_event(),
            rule="doorbell",
            when="pressed",
            pipeline="porch",
            state="once",
            seq=None,
            time_ns=now,
            began_ns=now,
            facts={"button": 2},
            actions=(Action(publish="chime/{pipeline}", payload="RING"),),
        )
    )
    dispatcher.step()
    event = heard.wait_state("edge/box/event/porch", state="once")
    assert (event["rule"], event["when"], event["state"]) == ("doorbell", "pressed", "once")
    assert event["button"] == 2
    assert "seq" not in event
    dispatcher.close()
    dispatcher.run()
    client.close()
    running.join()
    assert [each.payload for each in heard.heard if each.topic == "chime/porch"] == [b"RING"]


def test_an_event_beyond_the_pace_is_skipped_also_without_its_picture() -> None:
    """A crowd of events on a busy device is no series of errors: nobody would have asked."""
    said: list[str] = []
    asking = Asking(Settings, lambda _pipeline, answer: said.append(answer["error"]))
    ask = Ask(server="big", prompt="What?", at_most="1/day")
    keys = ("device", "session", "pipeline", "event", "rule")
    event = dict.fromkeys(keys, "door")
    asking.put(ask, event, None, unseen=True)
    asking.put(ask, event, b"picture")
    asking.put(ask, event, None, unseen=True)
    assert said == ["there was no room for its picture"]
    assert asking.health() == {"answered": 0, "failed": 1, "skipped": 1}


def test_a_message_of_qos_1_waits_where_too_many_are_in_flight() -> None:
    """A flood of another sensor's results had it given up at once, with the broker there."""
    given: list[str] = []
    crowded = True

    def publish(topic: str, _: bytes, /, *, answered: Answered, **__: Any) -> bool:
        given.append(topic)
        answered(CROWDED if crowded else None)
        return True

    acting = Actions(publish, lambda: "edge")
    for name in ("a", "b"):
        acting.act(Action(publish=f"plant/{name}", qos=1), {"rule": "r"})
    assert set(given) == {"plant/a"}
    crowded = False
    acting.flush()
    assert given[-2:] == ["plant/a", "plant/b"]
    assert (acting.done, acting.failed) == (2, 0)
