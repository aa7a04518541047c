"""Events that belong to no rule: the smallest one, from its sender to the broker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.asks import Ask
from edge_agent.config.rules import Action, Rule
from edge_agent.config.settings import Pipeline, Settings
from edge_agent.core.threads import ShutdownQueue
from edge_agent.core.timeline import Timeline
from edge_agent.core.types import Outcome, Sample, Timing, Values
from edge_agent.daemon.event_service import EventService
from edge_agent.mqtt.message import Answered
from edge_agent.mqtt.outbox import CROWDED
from edge_agent.rules.actions import Actions
from edge_agent.rules.asking import Asking
from edge_agent.rules.event import Event
from edge_agent.runtime.pipelines.runner import Runner
from tests.helpers.mqtt_client import make_client
from tests.helpers.rule_engines import make_dispatcher
from tests.helpers.support import PATIENCE, Listener, Mosquitto, wait_until


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


def test_lanes_that_write_events_or_wait_for_who_does_let_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the agent's own dispatcher: its journal, and the rules of its pipelines."""
    rules = (Rule(name="hot", when="value", value="t", above=30.0, frames="1/1"),)
    porch = Pipeline(name="porch", source="mqtt:porch", model="readings", rules=rules)
    runner = Runner(
        Settings(device_id="box", state_dir=str(tmp_path)),
        lanes=1,
        catalog=partial(pytest.fail, "no model is loaded here"),
        loader=partial(pytest.fail, "no model is loaded here"),
        stops=ShutdownQueue(),
        timeline=Timeline(),
    )
    lanes, goes_on, sync = runner.board.lanes, threading.Event(), os.fdatasync
    engine = EventService().open(runner).engines.open(porch, apart=None)

    def hang(descriptor: int) -> None:
        assert goes_on.wait(PATIENCE)
        sync(descriptor)

    def work(seq: int) -> None:
        lanes.running[threading.get_ident()] = time.monotonic()
        sample = Sample(np.zeros(1, np.float32), seq, time.time_ns(), time.monotonic())
        timing = Timing(0.0, 0.0, 0.0)
        engine.process(sample, Outcome("readings", "none", Values({"t": 50.0}), timing), None)
        del lanes.running[threading.get_ident()]

    monkeypatch.setattr(os, "fdatasync", hang)
    threads = [threading.Thread(target=work, args=(seq,), daemon=True) for seq in (1, 2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(lanes.waiting) == 2, "both lanes")
    assert lanes.free
    goes_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert (lanes.running, lanes.waiting) == ({}, {})
