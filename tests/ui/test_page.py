"""The operator's page, in a real browser, on a real broker with real agents."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from edge_agent.mqtt.payloads import iso
from tests.helpers.no_wildcards import NoWildcards
from tests.helpers.support import (
    CHECKOUT,
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    Relay,
    agent_settings,
    call_cli,
    run_cli,
)
from tests.ui.conftest import serious

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
TURNED = "\u202egnp.exe"
ESCAPED = "\\u202egnp.exe"
LONG = "A" * 1_000_000
CONVEYOR = {
    "name": "conveyor",
    "source": f"file:{CHECKOUT}/models/media/conveyor.mp4?loop=1",
    "model": "parts-inspection",
    "rate": 5,
    "snapshot": {"width": 320, "every_s": 0.2},
    "zones": [
        {"name": "all", "polygon": [[0, 0], [1, 0], [1, 1], [0, 1]], "anchor": "center"},
    ],
    "lines": [{"name": "gate", "points": [[0.5, 0], [0.5, 1]], "anchor": "center"}],
    # No more than a busy machine has pictures made of in time.
    "rules": [
        {"name": "arrives", "when": "enter", "zone": "all", "picture": "crop", "cooldown_s": 2}
    ],
}
BEARING = {
    "name": "bearing",
    "source": f"csv:{CHECKOUT}/models/media/bearing.csv?loop=1&rate=6400",
    "model": "bearing-vibration",
}


def test_two_devices_are_seen_through_a_loss_of_the_broker(
    page: Page,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    serve: Callable[..., str],
) -> None:
    """State, reasons, pictures, events and lines of real agents; the broker is killed and back."""
    lost = {"name": "cam", "source": "rtsp://127.0.0.1:1/none", "model": "parts-inspection"}
    url = serve("--broker", broker.url)
    page.goto(url)
    page.get_by_text("This broker knows of no device yet").wait_for()
    agent(agent_settings("press-1", broker.url, [CONVEYOR], groups=["hall"]), "press")
    agent(agent_settings("motor-7", broker.url, [BEARING, lost]), "motor")
    motor = page.get_by_role("row", name="motor-7").filter(has_text="degraded")
    motor.filter(has_text="nothing answers at 127.0.0.1 port 1").wait_for()
    page.get_by_role("row", name="press-1").filter(has_text="parts-inspection@3").wait_for()
    said = run_cli("status", "--broker", broker.url, "--json").stdout
    states = {each["device"]: each["state"] for each in map(json.loads, said.splitlines())}
    assert states == {"motor-7": "degraded", "press-1": "ok"}

    assert serious(page) == []
    page.get_by_label("Group").select_option("hall")
    motor.wait_for(state="hidden")
    page.get_by_label("Group").select_option("")
    page.get_by_label("Search").fill("BEARING")
    page.get_by_role("row", name="press-1").wait_for(state="hidden")
    page.get_by_label("Search").fill("")

    page.get_by_role("link", name="press-1").press("Enter")
    page.get_by_role("heading", name="press-1").wait_for()
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=PATIENCE * 1000)
    expect(page.locator(".shots img")).to_have_js_property("naturalWidth", 320)
    expect(page.locator(".events img").first).to_have_js_property("complete", value=True)
    expect(page.locator(".events img").first).not_to_have_js_property("naturalWidth", 0)
    page.get_by_text("arrives").first.wait_for()
    expect(page.locator(".chart canvas")).to_have_count(2)
    page.get_by_role("img", name="Results: ").wait_for()
    assert serious(page) == []

    broker.stop(signal.SIGKILL)
    _see_that_it_is_away(page)
    broker.start()
    page.get_by_role("alert").wait_for(state="hidden")
    shown = page.locator(".shots figcaption").text_content() or ""
    expect(page.locator(".shots figcaption")).not_to_have_text(shown)


def _see_that_it_is_away(page: Page) -> None:
    """Read since when, which stays, wherever the page is scrolled to."""
    said = page.get_by_role("alert")
    said.filter(has_text="Broker: ").wait_for()
    since = (said.text_content() or "").partition(" as of ")[2]
    said.filter(has_text="cannot be reached").wait_for()
    assert (said.text_content() or "").partition(" as of ")[2] == since != ""
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.evaluate("scrollY") > 0
    place = said.bounding_box()
    assert place is not None
    assert place["y"] >= 0


def test_whatever_is_published_is_text(
    page: Page,
    dialogs: list[str],
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Markup, marks that turn text, texts of a megabyte and bytes are shown, short, as they are."""
    monkeypatch.setenv("EDGE_AGENT_BROKER__TOPIC_ROOT", "hostile")
    listener = listen(shared_broker.port, "hostile/#")

    def say(device: str, topic: str, body: object) -> None:
        data = body if isinstance(body, bytes) else json.dumps({"schema": 1, **_table(body)})
        listener.publish(f"hostile/{device}/{topic}", data, retain="event" not in topic)

    url = serve("--broker", shared_broker.url)
    page.goto(url)
    info = {
        "groups": [SCRIPT, 7, None],
        "agent": LONG[:1000],
        "facts": {"cpu": IMAGE, "os": [SCRIPT]},
        "pipelines": [{"name": SCRIPT, "source": TURNED, "model": IMAGE}, 5, None],
        "models": "none",
        "engines": {IMAGE: {"a": 1}},
    }
    figures = {"fps": "fast", "latency_ms": {"p99": True}, "dropped": {SCRIPT: 3}}
    huge = {"fps": 1e308, "latency_ms": {"p99": -1e308}}
    health = {
        "state": "ok",
        "why": [TURNED, LONG[:1000]],
        "pipelines": {SCRIPT: figures, "a": huge, "b": huge},
    }
    for device in (SCRIPT.replace("/", "|"), "press-1"):
        say(device, "status", {"state": "online", "time": SCRIPT})
        say(device, "info", info)
        say(device, "health", {**health, "time": "2126-01-01T00:00:00Z"})
        say(
            device, f"model/{IMAGE}", {"live": [1], "last": {"outcome": TURNED, "why": LONG[:1000]}}
        )
        say(device, f"source/{IMAGE}", {"state": SCRIPT, "error": TURNED})
    say("bytes", "health", b"\xff\x00\xfe")
    say("bytes", "status", json.dumps({"state": LONG}).encode())
    page.get_by_role("link", name=SCRIPT.replace("/", "|"), exact=True).wait_for()
    page.get_by_role("row", name="bytes").filter(has_text="cannot be read").wait_for()
    page.get_by_text(ESCAPED).first.wait_for()

    page.get_by_role("link", name="press-1").click()
    page.get_by_role("heading", name="press-1").wait_for()
    events: list[Any] = [
        {"rule": SCRIPT, "when": TURNED, "event": IMAGE, "label": IMAGE, "zone": [SCRIPT]},
        {"rule": {"a": LONG[:1000]}, "count": "many", "why": SCRIPT, "state": "end"},
        b"\x00" * 300,
        b'{"rule": "' + LONG.encode() + b'"}',
        b"[1, 2]",
        b'{"a": 1e999, "b": NaN}',  # no JSON that a browser reads: nothing else was shown then
    ]
    for event in events:
        say("press-1", f"event/{IMAGE}", event)
    say("press-1", f"push/{SCRIPT.replace('/', '|')}", {"state": IMAGE, "percent": "all"})
    say("press-1", "snapshot/door", b"GIF89a" + SCRIPT.encode())
    say("press-1", "count/door", {"zones": {SCRIPT: {"x": IMAGE}}, "lines": [1]})
    say("press-1", "result/door", {"values": {IMAGE: 3, TURNED: "x"}})
    page.locator(".events strong", has_text=SCRIPT).wait_for()
    say("press-1", "answer/door", {"event": IMAGE, "server": SCRIPT, "text": TURNED})
    page.locator(".answer", has_text=f"{SCRIPT}: {ESCAPED}").wait_for()
    page.get_by_text("a message of 1000012 bytes is no JSON object").wait_for()
    page.get_by_text("a message of 22 bytes is no JSON object").wait_for()
    page.get_by_text("bytes is no JPEG that can be shown").wait_for()
    page.locator(".log li", has_text=IMAGE).wait_for()
    page.locator(".u-legend", has_text=IMAGE).wait_for()
    assert (page.locator("script").count(), dialogs) == (2, [])
    assert page.locator("img:not([alt])").count() == 0
    text = page.locator("body").inner_text()
    assert "\u202e" not in text
    assert len(text) < 20_000, "nothing is shown at a length that fills the page"


def test_a_long_reason_ends_in_a_mark_where_the_list_cuts_it(
    page: Page, broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """It stopped amid a sentence, as if that were all; the device's own page has the whole of it.

    A model of which no version is there was called `face@none`.
    """
    listener = listen(broker.port, "edge/gate/#")
    why = f"source of door: {'a long way round, ' * 20}and the mend"
    for topic, body in (
        ("status", {"state": "online", "session": "s"}),
        ("health", {"state": "degraded", "why": [why], "time": iso(time.time_ns())}),
        ("model/face", {"name": "face", "live": None, "error": "no model of that name"}),
    ):
        listener.publish(f"edge/gate/{topic}", json.dumps(body), retain=True)
    page.goto(serve("--broker", broker.url))
    row = page.get_by_role("row", name="gate").filter(has_text="degraded")
    row.filter(has_text=re.compile("a long way round.*…")).wait_for()
    row.filter(has_text="face (none)").wait_for()
    page.get_by_role("link", name="gate").click()
    page.get_by_text("and the mend").first.wait_for()


def test_an_event_that_ended_while_the_link_was_away_does_not_stay_begun(
    page: Page, broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """It was shown as on for ever, in every browser; now what may be missing is said, once."""
    listener = listen(broker.port, "edge/gate/#")

    def event(name: str, state: str) -> None:
        said = {"event": name, "rule": name, "when": "count", "state": state, "began": iso(0)}
        listener.publish("edge/gate/event/belt", json.dumps(said))

    listener.publish("edge/gate/status", json.dumps({"state": "online"}), retain=True)
    relay = Relay(broker.port)
    page.goto(f"{serve('--broker', relay.url)}/#/device/gate")
    page.get_by_text("last seen").wait_for()
    events = page.locator(".events li")
    for name in ("jam", "full"):
        event(name, "begin")
        events.filter(has_text=f"{name} begin").wait_for()
    for _ in range(2):
        relay.shut()
        relay.cut()
        page.get_by_role("alert").filter(has_text="What is shown is as of").wait_for()
        event("jam", "end")
        relay.open()
        page.get_by_role("alert").wait_for(state="hidden")
    page.reload()
    events.filter(has_text="jam begin, its end may have been missed").wait_for()
    events.filter(has_text="may be missing: the page had no connection").wait_for()
    assert events.count() == 3
    event("full", "update")
    page.get_by_text("update", exact=True).wait_for()
    relay.shut()
    relay.cut()


def test_a_broker_that_withholds_what_is_retained_is_said(
    page: Page, shared_broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """On RabbitMQ a lost device did not exist, and a fleet was "0 devices", without a word."""
    listener = listen(shared_broker.port, "edge/lost/#")
    said = {"state": "offline", "reason": "lost", "time": iso(time.time_ns())}
    listener.publish("edge/lost/status", json.dumps(said), retain=True)
    relay = NoWildcards(shared_broker.port)
    page.goto(serve("--broker", relay.url))
    status = call_cli("status", "--broker", relay.url).err
    words = status.partition("not complete: ")[2].partition(";")[0]
    page.get_by_role("alert").filter(has_text=f"Broker: {words}; only what is published").wait_for()
    assert "as of" not in (page.get_by_role("alert").text_content() or "")
    listener.publish("edge/lost/status", json.dumps(said), retain=True)
    page.get_by_role("row", name="lost").filter(has_text="offline").wait_for()
    relay.shut()
    relay.cut()


def test_clocks_that_are_wrong_are_said_and_health_ages_by_its_arrival(
    page: Page,
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Silent health was "ok" for an hour, current health "1 h old"; an event had no date."""
    monkeypatch.setenv("EDGE_AGENT_BROKER__TOPIC_ROOT", "clocks")
    listener = listen(shared_broker.port, "clocks/#")
    page.goto(serve("--broker", shared_broker.url))
    page.get_by_text("This broker knows of no device yet").wait_for()

    def say(device: str, ahead: int, interval_s: float) -> None:
        at = iso(time.time_ns() + ahead * 10**9)
        status = {"state": "online", "reason": "reconnected", "time": at}
        health = {"state": "ok", "time": at, "interval_s": interval_s}
        for kind, body in (("status", status), ("health", health)):
            listener.publish(f"clocks/{device}/{kind}", json.dumps(body), retain=True)

    say("ahead", 3600, 600)
    say("behind", -3600, 600)
    say("silent", 3600, 0.1)
    for name, words in (
        ("ahead", r"ok\W*its clock is 1 h ahead of this machine's"),
        ("behind", r"ok\W*its clock is 1 h behind this machine's"),
        ("silent", r"unknown\W*online, but its last health, \d+ s old: ok; its clock is 1 h ahead"),
    ):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
        row.filter(has_text=re.compile(words)).wait_for()

    page.get_by_role("link", name="ahead").click()
    page.get_by_role("heading", name="ahead", exact=True).wait_for()
    old = {"event": "e", "rule": "leak", "state": "once", "began": "2020-02-03T12:05:06Z"}
    listener.publish("clocks/ahead/event/p", json.dumps(old))
    page.locator(".events time", has_text="Feb 3, 2020, ").wait_for()


def test_the_ages_of_devices_that_say_nothing_go_on(
    page: Page,
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device was "offline since …, 0 s ago; its last health, 2 s old" for days."""
    monkeypatch.setenv("EDGE_AGENT_BROKER__TOPIC_ROOT", "ages")
    listener = listen(shared_broker.port, "ages/#")
    now, health = iso(time.time_ns()), r"its last health, \d+ s old: ok"
    for name, state, reason in (("gone", "offline", "stopped"), ("hung", "online", "reconnected")):
        status = json.dumps({"state": state, "reason": reason, "time": now})
        listener.publish(f"ages/{name}/status", status, retain=True)
        said = json.dumps({"state": "ok", "interval_s": 0.01, "time": now})
        listener.publish(f"ages/{name}/health", said, retain=True)
    page.goto(serve("--broker", shared_broker.url))
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=PATIENCE * 1000)
    for name, words in (
        ("gone", rf"offline\W*since .*, \d+ s ago \(stopped\); {health}"),
        ("hung", rf"unknown\W*online, but {health}"),
    ):
        cell = page.get_by_role("row", name=name).locator(".c-state")
        expect(cell).to_have_text(re.compile(words))
        expect(cell).not_to_have_text(cell.text_content() or "")
        expect(cell).to_have_text(re.compile(words))
    page.get_by_role("link", name="gone").click()
    shown = page.get_by_text(re.compile(r"since .* ago \(stopped\)"))
    expect(shown).not_to_have_text(shown.text_content() or "")


class Stalling(Relay):
    """A tunnel that may keep its connections, new ones too, and pass nothing on."""

    def __init__(self, target: int) -> None:
        self.moving = threading.Event()
        self.moving.set()
        super().__init__(target)

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        self.moving.wait()
        super().pass_on(data, source, sink)


def test_a_tunnel_that_stalls_is_no_live_page(
    page: Page, shared_broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """A browser sees no pings: a device that was stopped stayed "ok", without a word."""
    listener = listen(shared_broker.port, "edge/far/#")
    listener.publish("edge/far/status", '{"state": "online"}', retain=True)
    tunnel = Stalling(int(serve("--broker", shared_broker.url).rpartition(":")[2]))
    page.clock.install()
    with page.expect_websocket() as opened:
        page.goto(f"http://127.0.0.1:{tunnel.port}/#/device/nobody")
    opened.value.wait_for_event("framereceived", lambda frame: frame == "{}")
    page.goto(f"http://127.0.0.1:{tunnel.port}/#/")
    row, alert = page.get_by_role("row", name="far"), page.get_by_role("alert")
    row.filter(has_text="online").wait_for()
    tunnel.moving.clear()
    listener.publish("edge/far/status", '{"state": "offline"}', retain=True)
    page.clock.fast_forward(20_000)
    page.clock.fast_forward(10_000)
    alert.filter(has_text="cannot be reached; trying again. What is shown is as of").wait_for()
    tunnel.moving.set()
    row.filter(has_text="offline").wait_for()
    alert.wait_for(state="hidden")
    tunnel.shut()
    tunnel.cut()


def test_the_password_is_asked_for(
    page: Page, shared_broker: Mosquitto, serve: Callable[..., str]
) -> None:
    """A wrong password is said; the right one leads to the devices."""
    page.goto(serve("--broker", shared_broker.url, password="blue horse"))
    assert serious(page) == []
    page.get_by_label("Password of this page").fill("red horse")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").filter(has_text="wrong password").wait_for()
    page.get_by_label("Password of this page").fill("blue horse")
    page.get_by_label("Password of this page").press("Enter")
    page.get_by_label("Search").wait_for()


def _table(body: object) -> dict[str, Any]:
    return body if isinstance(body, dict) else {}
