"""Events of a running agent: told once, ended always, over a broker that is away and a kill."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.small_models import (
    brightness,
    decode_picture,
    detector,
    lamp_finder,
    plain,
    write_clip,
)
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    Relay,
    agent_settings,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"
YARD = [[0.0, 0.0], [0.6, 0.0], [0.6, 0.6], [0.0, 0.6]]
PERSON = {"name": "person", "when": "dwell", "zone": "yard", "for_s": 0.2}


class Yard:
    """A detector that always finds a person in the yard, on a clip that plays for ever."""

    def __init__(self, tmp_path: Path) -> None:
        detector(tmp_path / "models" / "finder", [(0, 0.9, 0.1, 0.1, 0.4, 0.5)], ["person"])
        brightness(tmp_path / "models" / "light")
        # Bright for a second, dark for a second.
        clip = write_clip(tmp_path / "clip.avi", [plain(220)] * 25 + [plain(20)] * 25)
        self.models = str(tmp_path / "models")
        self.source = f"file:{clip}?loop=1"

    def settings(self, url: str, *rules: dict[str, Any], model: str = "finder", **more: Any) -> str:
        """Write the settings of an agent with these rules."""
        pipeline: dict[str, Any] = {"name": "door", "source": self.source, "model": model}
        if model == "finder":
            pipeline["zones"] = [{"name": "yard", "polygon": YARD}]
        if rules:
            pipeline["rules"] = list(rules)
        pipeline |= more.pop("pipeline", {})
        return agent_settings("box", url, [pipeline], models_dirs=[self.models], **more)


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    """Make models and clip."""
    return Yard(tmp_path)


def wait_events(
    heard: Listener, claim: Callable[[list[dict[str, Any]]], object]
) -> list[dict[str, Any]]:
    """Wait until the events heard so far are as they should be; gives them."""
    heard.wait_for(lambda _: claim(heard.on(f"{D}/event/door")), "events")
    return heard.on(f"{D}/event/door")


def states(events: list[dict[str, Any]]) -> list[str]:
    """Give the states."""
    return [event["state"] for event in events]


def test_an_event_begins_and_ends_with_the_agent_with_picture_and_evidence(
    yard: Yard, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Results carry track and zone; the crop shows the box and is kept; a stop ends what lasts."""
    heard = listen(broker.port)
    running = agent(
        yard.settings(broker.url, {**PERSON, "picture": "crop"}, evidence={"keep_mb": 1})
    )
    (event,) = wait_events(heard, lambda events: events)
    assert event["rule"] == "person"
    assert event["when"] == "dwell"
    assert (event["label"], event["zone"], event["track"]) == ("person", "yard", 1)
    assert event["device"] == "box"
    result = heard.last(f"{D}/result/door")
    assert result is not None
    (found,) = result["detections"]
    assert (found["track"], found["zones"]) == (1, ["yard"])
    heard.wait_state(f"{D}/count/door", zones={"yard": {"person": 1}}, lines={})
    topic = f"{D}/picture/door/{event['event']}"
    data = heard.wait_for(
        lambda all_: next((h.payload for h in all_ if h.topic == topic), None), topic
    )
    x1, y1, x2, y2 = event["box"]
    height, width = decode_picture(data).shape[:2]
    assert x2 - x1 <= width <= 2.2 * (x2 - x1)
    assert y2 - y1 <= height <= 2.2 * (y2 - y1)
    again = {"id": "again", "event": event["event"]}
    heard.publish(f"{D}/in/command/picture", json.dumps(again))
    heard.wait_state(f"{D}/reply/again", ok=True)
    heard.wait_for(lambda all_: [h.topic for h in all_].count(topic) == 2, "the picture again")
    assert running.stop() == 0
    events = wait_events(heard, lambda events: len(events) == 2)
    assert states(events) == ["begin", "end"]
    assert events[1]["why"] == "stopped"
    assert events[1]["seconds"] > 0
    assert "replayed" not in events[1]


def test_a_reload_of_the_rules_ends_what_lasts_and_opens_no_source_again(
    yard: Yard, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Other rules take over on the running pipeline; what had begun under the old ones ends."""
    heard = listen(broker.port)
    same = {**PERSON, "name": "same"}
    running = agent(yard.settings(broker.url, PERSON, same))
    wait_events(heard, lambda events: states(events) == ["begin", "begin"])
    running.config.write_text(yard.settings(broker.url, same, {**PERSON, "name": "other"}))
    running.signal(signal.SIGHUP)
    events = wait_events(heard, lambda events: len(events) == 4)
    told = [(each["rule"], each["state"], each.get("why")) for each in events[2:]]
    assert told == [("person", "end", "reloaded"), ("other", "begin", None)]
    assert [each["state"] for each in heard.on(f"{D}/source/door")] == ["running"]
    heard.publish(f"{D}/in/set/door/enabled", "OFF")
    events = wait_events(heard, lambda events: len(events) == 6)
    assert {(each["rule"], each["why"]) for each in events[4:]} == {
        ("same", "stopped"),
        ("other", "stopped"),
    }


def test_none_is_lost_and_each_is_ended_over_a_broker_away_and_a_kill(
    yard: Yard, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Killed while the broker is away: every event of before arrives, those begun get their end.

    What arrives twice says `replayed`.
    """
    relay = Relay(broker.port)
    heard = listen(broker.port)
    rules = [
        PERSON,
        {"name": "bright", "when": "value", "value": "light", "above": 100, "below": 100},
    ]
    light = {"name": "lamp", "source": yard.source, "model": "light", "rules": [rules[1]]}
    settings = agent_settings(
        "box",
        relay.url,
        [
            {
                "name": "door",
                "source": yard.source,
                "model": "finder",
                "zones": [{"name": "yard", "polygon": YARD}],
                "rules": [PERSON],
            },
            light,
        ],
        models_dirs=[yard.models],
    )
    running = agent(settings)

    def on_lamp() -> list[dict[str, Any]]:
        return heard.on(f"{D}/event/lamp")

    heard.wait_for(lambda _: heard.on(f"{D}/event/door") and on_lamp(), "events")
    relay.shut()
    relay.cut()
    journal = running.folder / "state" / "events.log"
    open_before = {each["event"] for each in on_lamp()}

    def begun_meanwhile() -> bool:
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        said = [event for line in lines for event, _ in line["events"]]
        names = {each["event"] for each in said if each["pipeline"] == "lamp"}
        return bool(names - open_before)

    wait_until(begun_meanwhile, "an event to begin while the broker is away")
    running.process.kill()
    running.wait()
    relay.open()
    running.restart()
    heard.wait_for(
        lambda _: (
            [e for e in heard.on(f"{D}/event/door") if e["state"] == "end"]
            and len({e["session"] for e in on_lamp()}) == 2
        ),
        "the events of both runs",
    )
    assert running.stop() == 0
    heard.catch_up()
    events = [*heard.on(f"{D}/event/door"), *on_lamp()]
    begun = {e["event"] for e in events if e["state"] == "begin"}
    ended = {e["event"] for e in events if e["state"] == "end"}
    assert begun == ended
    for name in begun:
        states = [e["state"] for e in events if e["event"] == name]
        assert (states[0], states[-1]) == ("begin", "end")
    first_hand = Counter(
        (e["event"], e["state"], e["time"]) for e in events if not e.get("replayed")
    )
    assert max(first_hand.values()) == 1


def test_a_result_that_was_told_has_its_event_after_a_kill(
    yard: Yard, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Killed as soon as the result is heard: what began or ended with it arrives all the same."""
    bright = {"name": "bright", "when": "value", "value": "light", "above": 100, "below": 100}
    heard = listen(broker.port)
    running = agent(yard.settings(broker.url, bright, model="light"))
    kills = 5

    def results(session: str) -> list[dict[str, Any]]:
        return [each for each in heard.on(f"{D}/result/door") if each["session"] == session]

    def turns(session: str) -> dict[int, str]:
        """By number of the result: what began or ended with it, the second that is so.

        After two that were not: between dropped frames, one alone ends nothing.
        """
        told = {each["seq"]: each["values"]["light"] > 100 for each in results(session)}
        return {
            seq: "begin" if light else "end"
            for seq, light in told.items()
            if [told.get(seq - n) for n in (1, 2, 3)] == [light, not light, not light]
        }

    def sessions() -> list[str]:
        return list(dict.fromkeys(each["session"] for each in heard.on(f"{D}/result/door")))

    def turned(run: int) -> bool:
        return len(sessions()) > run and len(turns(sessions()[run])) >= 2

    for run in range(kills):
        wait_until(partial(turned, run), "something to begin and to end")
        running.process.kill()
        running.wait()
        running.restart()
    wait_until(partial(turned, kills), "something to begin and to end in the last run")
    last = sessions()[-1]
    heard.wait_for(
        lambda _: any(each["session"] == last for each in heard.on(f"{D}/event/door")), "its events"
    )
    assert running.stop() == 0
    heard.catch_up()
    events = heard.on(f"{D}/event/door")
    there = {(each["session"], each["seq"], each["state"]) for each in events}
    promised = {(one, seq, state) for one in sessions() for seq, state in turns(one).items()}
    assert promised
    assert promised <= there
    killed = [each for each in events if each["session"] != last]
    begun, ended = (
        {e["event"] for e in killed if e["state"] == state} for state in ("begin", "end")
    )
    assert begun == ended


def test_totals_of_lines_survive_a_kill_and_are_reset_by_command(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """What has been published of them is still there at the next start."""
    from tests.helpers.support import CHECKOUT

    media = CHECKOUT / "models"
    belt = {
        "name": "door",
        "source": f"file:{media / 'media' / 'conveyor.mp4'}",
        "model": "parts-inspection",
        "lines": [{"name": "gate", "points": [[0.5, 1.0], [0.5, 0.0]], "anchor": "center"}],
    }
    heard = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [belt]))

    def crossed() -> int:
        latest = heard.last(f"{D}/count/door")
        return sum(latest["lines"]["gate"]["out"].values()) if latest else 0

    heard.wait_for(lambda _: crossed() >= 2, "two parts to cross")
    running.process.kill()
    running.wait()
    before = crossed()
    since = (heard.last(f"{D}/count/door") or {})["since"]
    begin = len(heard.heard)
    running.restart()
    topic = f"{D}/count/door"
    fresh = heard.wait_for(
        lambda all_: [h.json for h in all_[begin:] if h.topic == topic], "the count again"
    )
    assert sum(fresh[0]["lines"]["gate"]["out"].values()) >= before
    assert fresh[0]["since"] == since
    heard.publish(f"{D}/in/command/reset", '{"id": "r", "pipeline": "door"}')
    heard.wait_state(f"{D}/reply/r", ok=True)
    heard.wait_for(lambda _: (heard.last(topic) or {})["since"] != since, "the count to begin anew")


class Hook:
    """A web server that answers as it is told."""

    def __init__(self, *statuses: int) -> None:
        self.bodies: list[dict[str, Any]] = []
        left = list(statuses)
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                hook.bodies.append(json.loads(self.rfile.read(size)))
                self.send_response(left.pop(0) if left else 204)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hook() -> Iterator[Callable[..., Hook]]:
    """Make web servers that are closed after the test."""
    made: list[Hook] = []

    def make(*statuses: int) -> Hook:
        made.append(Hook(*statuses))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_actions_are_carried_out_and_tried_again(
    yard: Yard, broker: Mosquitto, listen: Listeners, agent: Agents, hook: Callable[..., Hook]
) -> None:
    """A message with what the event says, and a post that a server first answers with 500."""
    server = hook(500, 503)
    heard = listen(broker.port, "#")
    do = [
        {"publish": "siren/{pipeline}/{label}", "payload": '{"state": "ON", "of": "{zone}"}'},
        {"http": server.url, "on": "begin"},
    ]
    agent(yard.settings(broker.url, {**PERSON, "do": do}))
    heard.wait_state("siren/door/person", state="ON", of="yard")
    heard.wait_state(f"{D}/health", actions={"done": 2, "failed": 0})
    (event,) = wait_events(heard, lambda events: events)
    assert server.bodies == [event] * 3


def test_a_stop_posts_the_ends_too(
    yard: Yard, broker: Mosquitto, listen: Listeners, agent: Agents, hook: Callable[..., Hook]
) -> None:
    """What a begin has switched on is switched off by the end, also where the agent stops."""
    server = hook()
    heard = listen(broker.port)
    do = [{"http": server.url, "on": "begin"}, {"http": server.url, "on": "end"}]
    running = agent(yard.settings(broker.url, {**PERSON, "do": do}))
    wait_events(heard, lambda events: events)
    wait_until(lambda: len(server.bodies) == 1, "the begin to be posted")
    assert running.stop() == 0
    assert [each["state"] for each in server.bodies] == ["begin", "end"]
    assert server.bodies[1]["why"] == "stopped"


def test_a_stop_says_which_messages_the_broker_has_not_taken(
    yard: Yard, broker: Mosquitto, agent: Agents, hook: Callable[..., Hook]
) -> None:
    """Where the broker is away; what an end causes is sent by the next run, and is not meant."""
    server = hook()
    broker.stop()
    do = [{"publish": "siren", "qos": 1, "on": "all"}, {"http": server.url, "on": "begin"}]
    running = agent(yard.settings(broker.url, {**PERSON, "do": do}))
    wait_until(lambda: len(server.bodies) == 1, "the begin to be posted")
    assert running.stop() == 0
    said = "action: 1 message given up: the broker was away (rule person)"
    assert said in running.words()


def test_servers_that_hang_or_redirect_are_one_line_and_hold_up_nothing(
    yard: Yard, broker: Mosquitto, listen: Listeners, agent: Agents, hook: Callable[..., Hook]
) -> None:
    """Results go on meanwhile; what was given up is counted and a reason in health."""
    server = hook(301)
    heard = listen(broker.port)
    running = agent(yard.settings(broker.url, {**PERSON, "do": [{"http": server.url}]}))
    heard.wait_why("redirects are not followed")
    heard.wait_state(f"{D}/health", actions={"done": 0, "failed": 1})
    lines = [line for line in running.words().splitlines() if "redirects" in line]
    assert len(lines) == 1
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"zones": [{"name": "z", "polygon": [[0, 0], [1, 1]]}]},
            "zones[z].polygon: a polygon takes 3",
        ),
        ({"lines": [{"name": "l", "points": [[0, 0], [0, 0]]}]}, "lines[l].points: points 1 and 2"),
        (
            {"rules": [{"name": "r", "when": "enter", "zone": "z"}]},
            "rules[r].zone: there is no zone 'z'",
        ),
        ({"rules": [{"name": "r", "when": "cross"}]}, "rules[r].line"),
        ({"rules": [{"name": "r", "when": "enter", "frames": "3/2"}]}, "rules[r].frames"),
        ({"rules": [{"name": "r", "when": "value", "above": 1}]}, "rules[r].value"),
        (
            {"rules": [{"name": "r", "when": "count", "above": 1, "below": 2}]},
            "rules[r].below: with both",
        ),
        (
            {"rules": [{"name": "r", "when": "enter", "do": [{"publish": "a/{who}"}]}]},
            "rules[r].do[0].publish: there is no {who}",
        ),
        (
            {"rules": [{"name": "r", "when": "enter", "do": [{"publish": "a/{label.x}"}]}]},
            "rules[r].do[0].publish: 'a/{label.x}': braces hold one word",
        ),
        (
            {"zones": [{"name": "z", "polygon": [[0, 0], [1, 1], [1, 0], [0, 1]]}]},
            "zones[z].polygon: crosses itself",
        ),
        (
            {"zones": [{"name": "z", "polygon": [[0, 0], [1.5, 0], [1, 1]]}]},
            "zones[z].polygon[1][0]: expected a number of at most 1, found 1.5",
        ),
        (
            {"zones": [{"name": "z", "polygon": [[float("nan"), 0], [1, 0], [1, 1]]}]},
            "zones[z].polygon[0][0]: expected a number of at most 1, found nan",
        ),
        (
            {"zones": [{"name": "z", "polygon": [[i % 2, 0] for i in range(1000)]}]},
            "zones[z].polygon: a polygon takes 3 to 256 points, found 1000",
        ),
        (
            {"rules": [{"name": "r", "when": "enter", "do": [{"publish": "a/#"}]}]},
            "rules[r].do[0].publish: 'a/#'",
        ),
        (
            {
                "rules": [
                    {
                        "name": "r",
                        "when": "enter",
                        "do": [{"publish": "edge/{device}/in/command/restart"}],
                    }
                ]
            },
            "below 'in/'",
        ),
        (
            {
                "source": "mqtt:plc/door",
                "rules": [{"name": "r", "when": "drift", "do": [{"publish": "plc/{pipeline}"}]}],
            },
            "rules[r].do[0].publish: 'plc/{pipeline}': is the topic of the pipeline's own source",
        ),
        (
            {"rules": [{"name": "r", "when": "enter", "do": [{"http": "ftp://x/"}]}]},
            "rules[r].do[0].http: expected http://",
        ),
        ({"rules": [{"name": "r", "when": "enter", "do": [{}]}]}, "either `publish` or `http`"),
    ],
)
def test_wrong_rules_are_refused_with_one_line(
    yard: Yard, tmp_path: Path, keys: dict[str, Any], words: str
) -> None:
    """File, key and mend, and exit status 2."""
    from tests.helpers.support import call_cli

    config = tmp_path / "wrong.toml"
    config.write_text(yard.settings("mqtt://127.0.0.1:1", pipeline={"zones": [], **keys}))
    done = call_cli("run", "--config", str(config))
    assert done.code == 2
    assert words in done.error
    assert "wrong.toml" in done.error


def test_a_hanging_server_is_given_up_after_its_tries() -> None:
    """A server that sends a byte now and then is cut off, too."""
    import socket

    from edge_agent.config.rules import Action
    from edge_agent.rules import actions as module
    from edge_agent.rules.actions import Actions

    door = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def drip() -> None:
        while not stopping.is_set():
            try:
                client, _ = door.accept()
            except OSError:
                return
            client.sendall(b"HTTP/1.1 ")
            while not stopping.wait(0.05):
                try:
                    client.sendall(b" ")
                except OSError:
                    break
            client.close()

    threading.Thread(target=drip, daemon=True).start()
    acting = Actions(lambda *_, **__: True, lambda: "edge")
    limits = module.HTTP_SECONDS, module.PAUSE_SECONDS
    module.HTTP_SECONDS, module.PAUSE_SECONDS = 0.3, 0.0
    thread = threading.Thread(target=acting.run)
    thread.start()
    try:
        url = f"http://127.0.0.1:{door.getsockname()[1]}/"
        acting.act(Action(http=url), {"rule": "r"})
        wait_until(lambda: acting.failed == 1, "the post to be given up")
        assert "no answer within" in (acting.problem({url}) or "")
    finally:
        stopping.set()
        acting.close()
        thread.join()
        door.close()
        module.HTTP_SECONDS, module.PAUSE_SECONDS = limits


def test_a_hanging_server_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posts to a server go one after the other, those to different ones side by side."""
    import socket
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from edge_agent.config.rules import Action
    from edge_agent.rules.actions import Actions

    monkeypatch.setattr("edge_agent.rules.actions.HTTP_SECONDS", PATIENCE)
    heard: list[bytes] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

    acting = Actions(lambda *_, **__: True, lambda: "edge")
    threads = [threading.Thread(target=acting.run)]
    with socket.create_server(("127.0.0.1", 0)) as deaf, HTTPServer(("127.0.0.1", 0), Hook) as hook:
        threads.append(threading.Thread(target=hook.serve_forever))
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                for server in (deaf.getsockname(), hook.server_address):
                    url = f"http://127.0.0.1:{server[1]}/"
                    acting.act(Action(http=url), {"rule": "r", "seq": number})
            wait_until(lambda: acting.done == 5, "the posts to the one that answers")
            assert acting.failed == 0, "the other one still has time"
            assert [json.loads(body)["seq"] for body in heard] == list(range(5))
            # A server that is away: the others' successes are none of its own.
            with socket.create_server(("127.0.0.1", 0)) as gone:
                away = f"http://127.0.0.1:{gone.getsockname()[1]}/"
            acting.act(Action(http=away), {"rule": "r"})
            wait_until(lambda: acting.failed == 1, "the post to the one that is away")
            acting.act(Action(http=url), {"rule": "r", "seq": 5})
            acting.act(Action(publish="x"), {"rule": "r"})
            wait_until(lambda: acting.done == 7, "two more")
            assert "Connection refused" in (acting.problem({away, url}) or "")
            assert "[Errno" not in (acting.problem({away, url}) or "")
            assert acting.problem({url}) is None, "no rule posts there any more"
        finally:
            acting.close()
            hook.shutdown()
            for thread in threads:
                thread.join()


def test_what_waits_too_long_is_named_without_its_secrets() -> None:
    """The oldest gives way, and is what is told of: no login, query or token of its URL."""
    from edge_agent.config.rules import Action
    from edge_agent.rules.actions import MOST, Actions

    acting = Actions(lambda *_, **__: True, lambda: "edge")
    url = "https://user:word@hooks.example/T024BE7LD/x8Zq3LmN0pRt5vWy?key=q"
    acting.act(Action(http=url), {"rule": "r"})
    for _ in range(MOST):
        acting.act(Action(http="http://other.example/"), {"rule": "r"})
    assert acting.failed == 1
    told = acting.problem({url}) or ""
    assert "hooks.example" in told
    assert not [word for word in ("user", "word", "pRt5vWy", "key=q") if word in told]


def test_a_label_cannot_lead_a_message_elsewhere() -> None:
    """What a model calls its labels is one level of a topic, and never one below `in/`."""
    from edge_agent.config.rules import Action
    from edge_agent.rules.actions import Actions

    sent: list[str] = []

    def publish(topic: str, _data: bytes, **_: object) -> bool:
        sent.append(topic)
        return True

    acting = Actions(publish, lambda: "edge")
    event = {"rule": "r", "label": "a/+#b", "state": "once"}
    acting.act(Action(publish="x/{label}"), event)
    acting.act(Action(publish="edge/box/{label}/command/restart"), {**event, "label": "in"})
    acting.act(Action(publish="plates/{text}"), {**event, "text": "AB/12"})
    assert sent == ["x/a___b", "plates/AB_12"]
    assert acting.failed == 1


def test_what_a_source_reads_is_not_published_on() -> None:
    """A topic is compared as it is sent: a label may make it a source's, and loop forever."""
    from edge_agent.config.rules import Action
    from edge_agent.rules.actions import MOST_TOPICS, Actions

    sent: list[str] = []

    def publish(topic: str, _data: bytes, **_: object) -> bool:
        sent.append(topic)
        return True

    acting = Actions(publish, lambda: "edge", lambda: ["plant/own", "plant/other"])
    event = {"rule": "r", "label": "own", "state": "once"}
    acting.act(Action(publish="plant/{label}"), event)
    acting.act(Action(publish="plant/{label}"), {**event, "label": "siren"})
    assert sent == ["plant/siren"]
    assert acting.failed == 1
    acting.act(Action(publish="plant/other"), event)
    acting.act(Action(publish="plant/{label}"), {**event, "label": "lamp"})
    assert "a source of this agent reads it" in (acting.problem({"plant/other"}) or "")
    assert "plant/own" in (acting.problem({"plant/{label}"}) or ""), "another topic's success"
    for number in range(MOST_TOPICS):
        acting.act(Action(publish="edge/{label}/in/x"), {**event, "label": f"l{number}"})
    assert acting.problem({"plant/{label}", "plant/other"}) is None, "only so many are remembered"


def test_pictures_are_kept_up_to_the_limit_and_the_oldest_go_first(tmp_path: Path) -> None:
    """A crop has its box in the middle, at the edge of the frame, too."""
    from edge_agent.rules.evidence import Evidence
    from edge_agent.rules.rendering import crop

    picture = np.arange(100 * 100, dtype=np.int64).reshape(100, 100)
    box = (10.0, 60.0, 30.0, 90.0)
    seen = crop(picture, box)
    middle = seen[seen.shape[0] // 2, seen.shape[1] // 2]
    assert middle in {picture[75, 20], picture[74, 20], picture[74, 19], picture[75, 19]}
    assert seen.shape[0] >= 30
    assert seen.shape[1] >= 20
    evidence = Evidence(tmp_path / "evidence")
    for number in range(6):
        evidence.keep("p", f"e-{number}", bytes(300_000), 1)
        evidence.close(PATIENCE)
    assert evidence.find("e-0", "picture") is None
    assert evidence.find("../../e-5", "picture") is None
    kept = evidence.find("e-5", "picture")
    assert kept == tmp_path / "evidence" / "p" / "e-5.jpg"
    assert len(list((tmp_path / "evidence").glob("*/*"))) == 3


def still_scene(folder: Path, rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a clip in which a person stands still, the model that finds him, and a pipeline."""
    detector(folder / "models" / "finder", [(0, 0.9, 0.1, 0.1, 0.4, 0.5)], ["person"])
    clip = write_clip(folder / "clip.avi", [plain(120)] * 25)
    return {
        "name": "door",
        "source": f"file:{clip}?loop=1",
        "model": "finder",
        "motion": True,
        "zones": [{"name": "yard", "polygon": YARD}],
        "rules": rules,
    }


def test_who_stands_in_a_still_picture_is_found_again(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """With `motion`, after a change or a pause of the camera, though nothing moves any more.

    A parked car was counted no longer, and its event had ended for ever.
    """
    there = {"name": "there", "when": "count", "zone": "yard", "frames": "3/4"}
    pipeline = still_scene(tmp_path, [there])
    heard = listen(broker.port)
    agent(agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")]))

    def began(times: int) -> None:
        wait_events(heard, lambda events: sum(e["state"] == "begin" for e in events) == times)
        heard.wait_state(f"{D}/count/door", zones={"yard": {"person": 1}}, lines={})

    began(1)
    for enabled in (False, True):
        body = {"pipeline": "door", "enabled": enabled}
        heard.publish(f"{D}/in/command/set", json.dumps(body).encode())
    began(2)
    patch = {"pipelines": {"door": {"rules": [{**there, "frames": "2/4"}]}}}
    heard.publish(f"{D}/in/command/configure", json.dumps(patch).encode())
    began(3)


def test_who_stands_in_a_still_picture_dwells(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """With `motion` the frames of a still scene are not inferred, and time goes on in it."""
    rules = [
        {**PERSON, "for_s": 3.0, "picture": "crop"},
        {"name": "empty", "when": "absent", "labels": ["dog"], "for_s": 3.0},
    ]
    pipeline = still_scene(tmp_path, rules)
    heard = listen(broker.port)
    agent(agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")]))
    events = wait_events(heard, lambda events: len(events) == 2)
    assert {(event["rule"], event["state"]) for event in events} == {
        ("person", "begin"),
        ("empty", "begin"),
    }
    # Not one of them comes with a result: what is told of is a frame that was left out.
    inferred = {result["seq"] for result in heard.on(f"{D}/result/door")}
    assert not inferred & {event["seq"] for event in events}


def test_what_has_gone_from_a_still_picture_has_left(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """With `motion` its track was held as long as nothing else moved: no `leave`, still counted."""
    lamp_finder(tmp_path / "models" / "finder")
    clip = write_clip(tmp_path / "clip.avi", [plain(220)] * 100 + [plain(10)] * 400)
    pipeline = {
        "name": "door",
        "source": f"file:{clip}?loop=1",
        "model": "finder",
        "motion": True,
        "zones": [{"name": "yard", "polygon": YARD}],
        "rules": [{"name": "left", "when": "leave", "zone": "yard"}],
    }
    heard = listen(broker.port)
    agent(agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")]))
    (left,) = wait_events(heard, lambda events: len(events) == 1)
    assert left["rule"] == "left"
    heard.wait_state(f"{D}/count/door", zones={"yard": {}})
    # Now that it is known, the still scene is left alone again.
    heard.wait_for(
        lambda _: heard.on(f"{D}/health")[-1]["pipelines"]["door"]["captured"] > left["seq"] + 100,
        "health",
    )
    later = [r for r in heard.on(f"{D}/result/door") if r["seq"] > left["seq"] + 20]
    assert len(later) < 10


def test_who_stands_in_a_still_picture_is_found_again_after_a_loss(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Tracks and rules begin anew, though nothing has moved since: with other rules too."""
    pipeline = still_scene(tmp_path, [{"name": "there", "when": "count", "zone": "yard"}])
    heard = listen(broker.port)
    settings = agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")])
    running = agent(settings)
    wait_events(heard, lambda events: len(events) == 1)
    heard.publish(f"{D}/in/set/door/enabled", "OFF")
    wait_events(heard, lambda events: len(events) == 2)
    heard.publish(f"{D}/in/set/door/enabled", "ON")
    wait_events(heard, lambda events: len(events) == 3)
    heard.wait_state(f"{D}/count/door", zones={"yard": {"person": 1}})
    running.config.write_text(settings.replace('"there"', '"here"'))
    running.signal(signal.SIGHUP)
    events = wait_events(heard, lambda events: len(events) == 5)
    assert [(event["rule"], event["state"], event.get("why")) for event in events] == [
        ("there", "begin", None),
        ("there", "end", "stopped"),
        ("there", "begin", None),
        ("there", "end", "reloaded"),
        ("here", "begin", None),
    ]
