"""Asking a bigger model about events: what it says, at which pace, and that its key is nobody's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.model_server import ModelServer
from tests.helpers.small_models import brightness, detector, plain, write_clip, write_pictures
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    run_cli,
)
from tests.rules.test_servers import flood

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"
KEY = "sk-geheim-0123456789"
YARD = [[0.0, 0.0], [0.6, 0.0], [0.6, 0.6], [0.0, 0.6]]
PERSON = {"name": "person", "when": "dwell", "zone": "yard", "for_s": 0.1}
ASK = {
    "server": "big",
    "rules": ["person"],
    "prompt": "What is the {label} in zone {zone} doing?",
}


@pytest.fixture
def serve() -> Iterator[Callable[..., ModelServer]]:
    """Make servers that are closed after the test."""
    made: list[ModelServer] = []

    def make(*answers: Any) -> ModelServer:
        made.append(ModelServer(*answers))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def door(tmp_path: Path) -> dict[str, Any]:
    """Give a pipeline that finds a person in the yard, in every frame."""
    detector(tmp_path / "models" / "finder", [(0, 0.9, 0.1, 0.1, 0.4, 0.5)], ["person"])
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(220)] * 25)
    return {
        "name": "door",
        "source": f"file:{clip}?loop=1",
        "model": "finder",
        "zones": [{"name": "yard", "polygon": YARD}],
        "rules": [PERSON],
        "ask": [ASK],
    }


def settings(
    tmp_path: Path, url: str, pipelines: list[dict[str, Any]], *servers: dict[str, Any], **more: Any
) -> str:
    """Write the settings of an agent."""
    models = [str(tmp_path / "models")]
    return agent_settings("box", url, pipelines, models_dirs=models, servers=[*servers], **more)


def big(server: ModelServer, **more: Any) -> dict[str, Any]:
    """Give the settings of a server."""
    return {"name": "big", "url": f"{server.url}/v1", "kind": "openai", "model": "m", **more}


def credential(tmp_path: Path) -> dict[str, str]:
    """Give the environment with the key as systemd has it."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "servers.big.key").write_text(f"{KEY}\n")
    return {"CREDENTIALS_DIRECTORY": str(folder)}


def test_an_event_is_asked_about_and_the_key_is_nowhere(
    tmp_path: Path,
    door: dict[str, Any],
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    serve: Callable[..., ModelServer],
) -> None:
    """Two tries fail, the third is answered: with event and rule, once, for Home Assistant too."""
    server = serve(
        lambda request: request.send({"error": {"message": f"no, {KEY}"}}, 500),
        lambda request: request.send(b"", 429, Retry_After="1"),
        lambda request: request.says(f"She waits, {KEY}."),
    )
    heard = listen(broker.port, "#")
    running = agent(
        settings(tmp_path, broker.url, [door], big(server), homeassistant={"enabled": True}),
        environ=credential(tmp_path),
    )
    answer = heard.wait_state(f"{D}/answer/door", server="big")
    (event,) = heard.on(f"{D}/event/door")
    assert answer["event"] == event["event"]
    assert (answer["rule"], answer["text"]) == ("person", "She waits, ***.")
    assert (answer["tokens"], answer["pipeline"], answer["schema"]) == (42, "door", 1)
    assert answer["ms"] > 0
    health = heard.wait_state(f"{D}/health", answers={"answered": 1, "failed": 0, "skipped": 0})
    assert health["why"] == []
    posts = [request.json["messages"][0]["content"] for request in server.asked]
    assert len(posts) == 3
    assert posts[0] == posts[2]
    assert posts[0][0]["text"] == "What is the person in zone yard doing?"
    assert '"label":"person"' in posts[0][1]["text"]
    assert posts[0][2]["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")
    assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
    assert not [each for each in heard.heard if each.topic.startswith(f"{D}/picture/")]
    found = heard.wait_for(lambda _: heard.last("homeassistant/device/edge-agent_box/config"), "HA")
    assert found["components"]["door_answer"]["state_topic"] == f"{D}/answer/door"
    heard.publish(f"{D}/answer/door", json.dumps(answer), retain=True)
    tailed = run_cli("tail", "--kind", "answer", "-n", "1", "--broker", broker.url)
    line = Path(f"/proc/{running.process.pid}/cmdline").read_bytes()
    assert running.stop() == 0
    assert "person: She waits, ***. · big" in tailed.stdout
    assert KEY.encode() not in line
    assert KEY not in running.words()
    assert not [each for each in heard.heard if KEY.encode() in each.payload]


def test_a_server_that_stalls_holds_up_nobody_and_the_pace_is_kept(
    tmp_path: Path,
    door: dict[str, Any],
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    serve: Callable[..., ModelServer],
) -> None:
    """It costs its own questions an error each, in time; a stop does not wait for it."""
    stalls = serve(lambda request: request.closing.wait())
    quick = serve(lambda request: request.says("A flash."))
    clip = write_clip(tmp_path / "flash.avi", ([plain(220)] * 5 + [plain(20)] * 5) * 3)
    bright = {"name": "bright", "when": "value", "value": "light", "above": 100, "frames": "1/1"}
    lamp = {
        "name": "lamp",
        "source": f"file:{clip}?loop=1",
        "model": "light",
        "rules": [bright],
        "ask": [
            {"server": "stalls", "prompt": "What?", "timeout_s": 0.2, "at_most": "100/s"},
            {"server": "quick", "prompt": "Why {label}?", "at_most": "2/day"},
        ],
    }
    door["ask"] = [{**ASK, "server": "slow", "timeout_s": 600}]
    servers = [
        big(stalls, name="stalls"),
        big(stalls, name="slow"),
        big(quick, name="quick"),
    ]
    heard = listen(broker.port)
    running = agent(settings(tmp_path, broker.url, [lamp, door], *servers))

    def said(server: str, key: str) -> list[str]:
        answers = [each for each in heard.on(f"{D}/answer/lamp") if each["server"] == server]
        return [each[key] for each in answers if key in each]

    late = "no answer within 0.2 s"
    heard.wait_for(
        lambda _: said("stalls", "error").count(late) > 1 and len(said("quick", "text")) == 2,
        "answers",
    )
    assert said("stalls", "text") == []
    assert set(said("quick", "text")) == {"A flash."}
    heard.wait_why("ask: server stalls: no answer within 0.2 s")
    heard.wait_for(
        lambda _: (heard.last(f"{D}/health") or {})["answers"]["skipped"] > 1, "some to be skipped"
    )
    assert len(said("quick", "text")) == 2
    heard.wait_for(lambda _: stalls.asked, "a question")
    assert running.stop() == 0
    heard.catch_up()
    assert heard.on(f"{D}/answer/door")[0]["error"] == "the agent stops"
    lines = [line for line in running.words().splitlines() if "server stalls" in line]
    assert len(lines) == 1


def test_a_server_that_lies_costs_no_frame_and_no_key(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    serve: Callable[..., ModelServer],
) -> None:
    """Redirects, garbage, a hang-up, half an answer, too much, too busy: a line each, at most."""
    part = json.dumps({"choices": [{"delta": {"content": f"A flash, {KEY}."}}]})
    server = serve(
        lambda request: request.send(b"", 302, Location=f"/{KEY}"),
        lambda request: request.send(f"<html>{KEY}".encode()),
        lambda _request: None,
        lambda request: request.send(b"{", Content_Length="9"),
        flood,
        lambda request: request.send({"error": f"wait, {KEY}"}, 429, Retry_After="1"),
        lambda request: request.send(
            f"data: {part}\n\n".encode(), Content_Type="text/event-stream"
        ),
    )
    brightness(tmp_path / "models" / "light")
    # No more events than may wait with a picture, however late they are looked at.
    flashes = [plain(20), plain(220)] * 6
    pictures = write_pictures(tmp_path / "pictures", [*flashes, *[plain(20)] * 88])
    lamp = {
        "name": "lamp",
        "source": f"{pictures}/?rate=10",
        "model": "light",
        "qos": 1,
        "rules": [
            {"name": "bright", "when": "value", "value": "light", "above": 100, "frames": "1/1"}
        ],
        "ask": [{"server": "big", "prompt": "Why?", "at_most": "4/day"}],
    }
    heard = listen(broker.port, "#")
    running = agent(
        settings(tmp_path, broker.url, [lamp], big(server)), environ=credential(tmp_path)
    )
    answers = heard.wait_for(
        lambda _: (found := heard.on(f"{D}/answer/lamp")) and len(found) == 4 and found, "4 answers"
    )
    assert [each.get("error", "").partition(",")[0].partition(";")[0] for each in answers] == [
        "answered 302",
        "the answer is not a JSON object",
        "the answer is larger than 256 KiB",
        "",
    ]
    assert answers[3]["text"] == "A flash, ***."
    health = heard.wait_for(
        lambda _: (h := heard.last(f"{D}/health")) and h["answers"]["answered"] and h, "a count"
    )
    assert health["answers"]["failed"] == 3
    assert len(server.asked) == 7
    account = health["pipelines"]["lamp"]
    assert account["captured"] == account["inferred"] + account["waiting"]
    heard.wait_for(lambda _: len(heard.on(f"{D}/result/lamp")) > 21, "results")
    assert running.stop() == 0
    heard.catch_up()
    numbers = [result["seq"] for result in heard.on(f"{D}/result/lamp")]
    assert numbers == list(range(len(numbers)))
    assert KEY not in running.words()
    assert not [each for each in heard.heard if KEY.encode() in each.payload]


@pytest.mark.parametrize(
    ("ask", "server", "words"),
    [
        ({}, {"url": "ftp://big/"}, "servers[big].url: expected http://"),
        ({}, {"url": "http://user:geheim@big/v1?key=geheim"}, "servers[big].url: holds '?'"),
        ({}, {"key": "two words"}, "servers[big].key: expected ASCII letters"),
        ({}, {"key": "a\nb"}, "servers[big].key: expected ASCII letters"),
        ({}, {"ca_file": "ca.pem"}, "servers[big].ca_file: needs TLS"),
        ({}, {"kind": "grpc"}, "servers[big].kind: expected"),
        ({}, {"name": "a b"}, "servers[0].name: 'a b' is not a name"),
        ({"server": "bigger"}, {}, "ask[0].server: there is no server 'bigger'; there are big"),
        ({"model": "tiny"}, {}, "ask[0]: expected either `server` or `model`"),
        ({"rules": ["persons"]}, {}, "ask[0].rules: there is no rule 'persons'"),
        ({"prompt": "What is {lable}?"}, {}, "ask[0].prompt: there is no {lable}"),
        ({"prompt": " "}, {}, "ask[0].prompt: expected 1 to"),
        ({"at_most": "10/minute"}, {}, 'ask[0].at_most: expected "10/min"'),
        ({"at_most": "0/min"}, {}, 'ask[0].at_most: expected "10/min"'),
        ({"timeout_s": 0}, {}, "timeout_s"),
        ({"timeout_s": float("nan")}, {}, "timeout_s"),
        ({"often": 1}, {}, "often"),
    ],
)
def test_wrong_settings_are_refused_with_one_line(
    tmp_path: Path, door: dict[str, Any], ask: dict[str, Any], server: dict[str, Any], words: str
) -> None:
    """File, key and mend; no secret."""
    url = {"name": "big", "url": "http://127.0.0.1:1/v1", "model": "m"}
    config = tmp_path / "wrong.toml"
    config.write_text(
        settings(tmp_path, "mqtt://127.0.0.1:1", [{**door, "ask": [{**ASK, **ask}]}], url | server)
    )
    done = call_cli("run", "--config", str(config))
    assert done.code == 2
    assert words in done.error
    assert "wrong.toml" in done.error
    assert "geheim" not in done.error


def test_check_asks_whether_servers_are_there(
    tmp_path: Path, broker: Mosquitto, serve: Callable[..., ModelServer]
) -> None:
    """Each is a line; one that is not there fails it."""
    server = serve(lambda request: request.says("?"))
    config = tmp_path / "config.toml"
    there, gone = big(server, key=KEY), big(server, name="gone", model="other", key=KEY)
    config.write_text(settings(tmp_path, broker.url, [], there, gone))
    done = call_cli("check", "--config", str(config))
    assert done.code == 1
    assert "ok    server big: m is there, openai" in done.out
    assert "FAIL  server gone: does not list the model 'other'; it has m" in done.out
    assert KEY not in done.out
    assert server.asked == []
