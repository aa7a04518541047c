"""What a browser is told of a fleet, beside what the broker has of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from edge_agent.config.settings import Broker
from edge_agent.delivery.plan import Gate, Plan, Wave, seal
from edge_agent.mqtt.payloads import iso
from edge_agent.ui.reader import Reader
from edge_agent.ui.site import Site
from tests.helpers.support import (
    PATIENCE,
    Lacking,
    Listener,
    Mosquitto,
    Relay,
    free_port,
    wait_until,
)

DEVICES = 120


def test_what_the_broker_leaves_out_is_asked_for(
    tmp_path: Path,
    listen: Callable[..., Listener],
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue that is too short for all that is retained leaves no device without its model.

    Afterwards only what has changed is sent, and a device that is forgotten is gone.
    """
    port = free_port()
    short = f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 250\n"
    broker = Mosquitto(tmp_path, short, port)
    try:
        listener = listen(port, "none")
        said = {
            "status": {"state": "online"},
            "info": {"groups": ["hall"]},
            "model/face": {"live": "3"},
            "health": {"state": "ok"},
        }
        for number in range(DEVICES):
            for topic, body in said.items():
                listener.publish(f"edge/box-{number}/{topic}", json.dumps(body), retain=True)
        monkeypatch.setenv("EDGE_AGENT_BROKER__PROTOCOL", "4")
        url = serve("--broker", broker.url)
        rows: dict[str, Any] = {}

        def hear(until: Callable[[], bool]) -> int:
            """Take in what is sent until something holds; return how many rows that were."""
            sent = 0
            while not until():
                frame = json.loads(browser.recv(PATIENCE))
                sent += len(frame.get("rows", []))
                rows.update({row["id"]: row for row in frame.get("rows", [])})
                for name in frame.get("gone", []):
                    del rows[name]
            return sent

        with connect(url.replace("http", "ws") + "/live", origin=url, max_size=None) as browser:  # type: ignore[arg-type]
            hear(lambda: len(rows) == DEVICES and all(map(_is_whole, rows.values())))
            listener.publish("edge/box-7/status", '{"state": "offline"}', retain=True)
            assert hear(lambda: rows["box-7"]["state"] == "offline") == 1
            for topic in said:
                listener.publish(f"edge/box-7/{topic}", b"", retain=True)
            assert hear(lambda: "box-7" not in rows) <= len(said)
    finally:
        broker.stop()


def _is_whole(row: dict[str, Any]) -> bool:
    return bool(row["groups"] and row["models"] and row["state"] == "ok")


def test_what_was_removed_while_the_page_was_away_is_not_shown(
    broker: Mosquitto, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll-out that was finished stayed with its buttons, and a device that was forgotten."""
    monkeypatch.setattr("edge_agent.ui.site.RETURN_SECONDS", 0.0)
    monkeypatch.setattr("edge_agent.ui.site.ANSWER_SECONDS", 0.5)
    listener, relay = listen(broker.port), Relay(broker.port)
    rows: dict[str, Any] = {}
    lie = [f"edge/box-{number}/status" for number in range(30)]
    for topic in (*lie, "edge/box-1/model/a", "edge/box-1/model/b"):
        listener.publish(topic, '{"state": "online", "live": "1"}', retain=True)
    for name in ("one", "two"):
        listener.publish(f"edge/@rollout/{name}", _plan(name), retain=True)
    site = Site("edge")
    viewer, shown = site.join(), list[str]()

    def hear() -> tuple[int, list[str], list[str]]:
        """Give how many devices are shown, the models of one, and the roll-outs."""
        frame = site.frame(viewer)
        rows.update({row["id"]: row for row in frame.get("rows", [])})
        for name in frame.get("gone", []):
            del rows[name]
        shown[:] = [each["id"] for each in frame["rollouts"]] if "rollouts" in frame else shown
        models = rows["box-1"]["models"] if "box-1" in rows else []
        return len(rows), sorted(each["name"] for each in models), sorted(shown)

    settings = Broker(url=relay.url)
    reader = Reader(settings, site.filters(), site.take, site.told, site.missing)
    try:
        wait_until(lambda: hear() == (30, ["a", "b"], ["one", "two"]), "all of it")
        relay.shut()
        relay.cut()
        for topic in ("edge/@rollout/one", "edge/box-7/status", "edge/box-1/model/b"):
            listener.publish(topic, b"", retain=True)
        listener.catch_up()
        relay.open()
        wait_until(lambda: hear() == (29, ["a"], ["two"]), "what is left")
    finally:
        reader.close()
        relay.shut()


def _plan(name: str) -> bytes:
    now = time.time_ns()
    plan = Plan(id=name, transfer="a" * 32, name="level", version="2", created=iso(now),
                expires=iso(now + 10**13), waves=(Wave(),), gate=Gate(), on_failure="stop",
                spread_s=0, serial=1, time=iso(now), by="x", state="running", wave=0)  # fmt: skip
    return seal(plan, None)


def test_what_a_node_of_a_cluster_lacks_stays_on_the_page(
    broker: Mosquitto, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll-out that lies on the others was left out, until it changed."""
    monkeypatch.setattr("edge_agent.ui.site.ANSWER_SECONDS", 0.5)
    listener, near = listen(broker.port, "none"), Relay(broker.port)
    node = Lacking(broker.port, b"@rollout/one")
    site, asked = Site("edge"), list[bool]()

    def missing(whole: bool) -> list[str]:
        asked.append(whole)
        return site.missing(whole)

    def shown() -> tuple[list[str], list[str]]:
        """Give the roll-outs and the devices that a browser is shown now."""
        frame = site.frame(site.join())
        plans, rows = frame.get("rollouts", []), frame.get("rows", [])
        return [each["id"] for each in plans], [each["id"] for each in rows]

    listener.publish("edge/@rollout/one", _plan("one"), retain=True)
    settings = Broker(url=(near.url, node.url))
    reader = Reader(settings, site.filters(), site.take, site.told, missing)
    try:
        wait_until(lambda: shown() == (["one"], []), "the roll-out")
        near.shut()
        near.cut()
        listener.publish("edge/box/status", '{"state": "online"}', retain=True)
        wait_until(lambda: shown() == (["one"], ["box"]), "the other node")
        asked.clear()
        wait_until(lambda: len(asked) > 4, "what is missing to be requested")
        assert shown() == (["one"], ["box"])
    finally:
        reader.close()
        node.shut()


def test_a_browser_that_reads_nothing_is_let_go(
    broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """What was queued for it took up to 256 MB; the page connects again by itself."""
    listener = listen(broker.port, "none")
    url = serve("--broker", broker.url)
    listener.publish("edge/box/status", '{"state": "online"}', retain=True)
    where = url.replace("http", "ws") + "/live"
    with connect(where, origin=url, max_size=None, max_queue=1) as browser:  # type: ignore[arg-type]
        browser.send('{"watch": "box"}')
        while json.loads(browser.recv(PATIENCE)).get("watch") != "box":
            pass
        for number in range(400):
            listener.publish("edge/box/event/door", json.dumps({"n": number, "x": "x" * 120_000}))
        with pytest.raises(ConnectionClosedError, match="too slow"):
            list(iter(lambda: browser.recv(PATIENCE), ""))


def test_many_devices_asked_for_at_once_do_not_block_the_page_for_others(
    broker: Mosquitto, serve: Callable[..., str]
) -> None:
    """Each opened a thread and a connection to the broker before anybody else was answered."""
    url = serve("--broker", broker.url)
    where = url.replace("http", "ws") + "/live"
    with connect(where, origin=url) as hasty, connect(where, origin=url) as other:  # type: ignore[arg-type]
        server = Path(f"/proc/{_server_of(url)}/status")
        for number in range(3000):
            hasty.send(json.dumps({"watch": f"box-{number}"}))
        other.send('{"watch": "box"}')
        assert "hello" in json.loads(other.recv(PATIENCE))
        threads = re.search(r"Threads:\s*(\d+)", server.read_text())
        assert threads is not None
        assert int(threads[1]) < 50


def _server_of(url: str) -> int:
    """Return the process that serves a page."""
    port = urlsplit(url).port
    return next(
        child.pid
        for child in psutil.Process().children()
        if any(each.laddr.port == port for each in child.net_connections())
    )
