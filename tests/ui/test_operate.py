"""The operator's page with `--operate`: what is set, drawn and pushed is done by a real agent."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tomli_w

from edge_agent.config.settings import Remote
from edge_agent.mqtt.payloads import iso
from tests.helpers.boxes import Boxes
from tests.helpers.push import QUICK, model_folder, plain_package
from tests.helpers.small_models import encode_jpeg, plain
from tests.helpers.support import (
    CHECKOUT,
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
)
from tests.ui.conftest import serious

if TYPE_CHECKING:
    from playwright.sync_api import Page


DROPPED = """([name, content]) => {
    const data = new DataTransfer();
    data.items.add(new File([Uint8Array.from(atob(content), (c) => c.charCodeAt(0))], name));
    return data;
}"""


def test_settings_drawings_and_pushes_reach_the_device(
    page: Page,
    dialogs: list[str],
    shared_broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
    serve: Callable[..., str],
    tmp_path: Path,
) -> None:
    """A threshold, a zone whose event has a clip, a push by drop, its rollback; what is refused.

    Settings that stop results come back by themselves.
    """
    key = tmp_path / "push.key"
    assert call_cli("keygen", str(key)).code == 0
    listener = listen(shared_broker.port, "edge/operated/#")
    level = model_folder(tmp_path / "models" / "level", "1")
    conveyor = {
        "name": "conveyor",
        "source": f"file:{CHECKOUT}/models/media/conveyor.mp4?loop=1",
        "model": "parts-inspection",
        "rate": 5,
        "snapshot": {"width": 320, "every_s": 0.2},
    }
    seen = {"name": "seen", "when": "count", "above": 0, "clip": True, "picture": "frame"}
    settings = agent_settings(
        "operated",
        shared_broker.url,
        [
            {**conveyor, "rules": [seen]},
            {**conveyor, "name": "level", "model": "level", "snapshot": False},
        ],
        evidence={"keep_mb": 50, "before_s": 1.0, "after_s": 1.0},
        trust={"keys": [f"{key}.pub"]},
        trial={**QUICK, "probation_s": 2.0},
        models_dirs=[str(level.parent)],
        remote={"may": [*Remote().may, "source"]},
    )
    agent(settings)
    listener.wait_state("edge/operated/model/level", live="1")
    url = serve("--broker", shared_broker.url, "--operate", "--key", str(key))
    page.goto(f"{url}/#/device/operated")

    _look_at_what_is_kept(page)
    _set_and_draw(page, listener)
    _watch_the_return(page, listener)
    _push_and_return(page, listener, tmp_path)

    package = plain_package(model_folder(tmp_path / "stuck", "3"), "level", "3", key=key)
    offer = {
        "schema": 1,
        "package": base64.b64encode(package.header).decode(),
        "signature": base64.b64encode(package.signature or b"").decode(),
        "time": iso(time.time_ns()),
    }
    listener.publish(f"edge/operated/in/push/{package.transfer}/offer", json.dumps(offer))
    page.get_by_role("button", name="Abort").click()
    page.locator(".log li", has_text="aborted by the sender").wait_for()
    said = ["Remove zone all on operated?", "Roll back to 1 on operated?", "Abort on operated?"]
    assert dialogs == said


def _look_at_what_is_kept(page: Page) -> None:
    """List it until there is a clip, play that, and save the picture."""
    part = page.locator("section", has=page.get_by_role("heading", name="Kept pictures and clips"))
    clips = part.locator("li", has_text="conveyor, clip")
    while not clips.count():
        part.get_by_role("button", name="List what is kept").click()
        page.get_by_role("status").filter(has_text="asked").wait_for(state="hidden")
    clips.first.get_by_role("button", name="Show").click()
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(part.locator("video")).to_have_js_property("readyState", 4, timeout=PATIENCE * 1000)
    assert part.locator("video").evaluate("video => video.duration") > 1
    part.locator("li", has_text="conveyor, picture").first.get_by_role("button").click()
    part.locator("img").wait_for()
    with page.expect_download() as saved:
        part.get_by_role("link", name="Save").click()
    assert saved.value.path().read_bytes().startswith(b"\xff\xd8\xff")


def _set_and_draw(page: Page, listener: Listener) -> None:
    """Set a threshold, and one that is none; draw a zone and send it."""
    group = page.get_by_role("group", name="conveyor")
    group.get_by_label("threshold").fill("0.7")
    group.get_by_label("threshold").press("Enter")
    listener.wait_state("edge/operated/pipeline/conveyor", threshold=0.7)
    group.get_by_label("threshold").fill("7")
    group.get_by_label("threshold").press("Enter")
    page.get_by_text("refused: ").filter(has_text="threshold").wait_for()

    shot = page.locator("figure", has_text="conveyor,")
    shot.get_by_role("button", name="Draw zones, lines, masks").click()
    area = shot.get_by_role("application")
    area.click(position={"x": 250, "y": 10})
    for move in ("Shift+ArrowDown", "Shift+ArrowLeft"):
        for _ in range(4):
            area.press(move)
        area.press("Enter")
    shot.get_by_label("Name").fill("all")
    shot.get_by_label("Rule", exact=True).select_option("enter")
    shot.get_by_label("keep a clip").check()
    shot.get_by_role("button", name="Add").click()
    text = shot.get_by_label("TOML of what was drawn").input_value()
    assert re.search(r'\[\[pipelines.zones]]\nname = "all"\npolygon = \[\[0\.\d+,', text), text
    assert '[[pipelines.rules]]\nname = "all-enter"\nwhen = "enter"\nzone = "all"' in text
    shot.get_by_role("button", name="Send to the device").click()
    page.get_by_text("what was drawn: done").wait_for()
    assert serious(page) == []
    config = listener.last("edge/operated/config") or {}
    held = config["pipelines"]["conveyor"]
    assert [each["name"] for each in (*held["zones"], *held["rules"])] == [
        "all",
        "seen",
        "all-enter",
    ]
    entered = page.locator(".events li", has_text="all-enter").last
    while not entered.locator("video").count():
        entered.get_by_role("button", name="Clip").click()
        page.get_by_role("status").filter(has_text="asked").wait_for(state="hidden")
        said = page.locator(".notice").text_content() or ""
        assert not said or "a clip is written evidence.after_s after" in said
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") == 320, "on a phone"
    page.set_viewport_size({"width": 1280, "height": 720})
    shot.get_by_role("button", name="Remove zone all").click()
    page.get_by_text("Remove zone all: done").wait_for()
    held = (listener.last("edge/operated/config") or {})["pipelines"]["conveyor"]
    assert (held["zones"], [each["name"] for each in held["rules"]]) == ([], ["seen"])


def _watch_the_return(page: Page, listener: Listener) -> None:
    """Send settings that stop results, and see what the page says of that."""
    body = {"pipelines": {"level": {"source": "v4l2:/dev/video99"}}}
    listener.publish("edge/operated/in/command/configure", json.dumps(body))
    page.get_by_text("A change is on probation.").wait_for()
    page.get_by_text("The last change is rolled-back: level: gave results before").wait_for()


def _push_and_return(page: Page, listener: Listener, folder: Path) -> None:
    """Push a folder, go back, and drop a file that is refused."""
    newer = model_folder(folder / "level", "2", hidden=8)
    page.get_by_label("a folder").set_input_files(newer)
    listener.wait_state("edge/operated/model/level", live="2")
    card = page.locator(".card", has=page.get_by_role("heading", name="level", exact=True))
    card.get_by_text("2 live").wait_for()
    for phase in ("verifying", "probation", "live"):
        page.locator(".log li", has_text=phase).first.wait_for()
    card.get_by_role("button", name="Roll back to 1").click()
    listener.wait_state("edge/operated/model/level", live="1")
    page.get_by_text("level back to 1: done").wait_for()

    older = model_folder(folder / "older" / "level", "1", hidden=12)
    packed = folder / "older.tar"
    signed = ("--key", str(folder / "push.key"))
    assert call_cli("pack", str(older), "-o", str(packed), *signed).code == 0
    content = base64.b64encode(packed.read_bytes()).decode()
    page.locator(".drop").dispatch_event(
        "drop", {"dataTransfer": page.evaluate_handle(DROPPED, [packed.name, content])}
    )
    page.locator(".log li", has_text="older.tar failed").wait_for()
    page.get_by_text("it is being sent").wait_for(state="hidden")
    page.locator(".log li", has_text="rejected").first.wait_for()


def test_a_roll_out_is_watched_and_paused(
    page: Page, dialogs: list[str], broker: Mosquitto, serve: Callable[..., str], tmp_path: Path
) -> None:
    """Its waves, how many are how far, who lags and why; paused and aborted by two buttons."""
    key = tmp_path / "push.key"
    assert call_cli("keygen", str(key)).code == 0
    model_folder(tmp_path / "2", "2")
    plan = tmp_path / "plan.toml"
    waves = [{"devices": ["box-0001", "box-0002", "box-0003"]}, {"group": "lab"}]
    gate = {"hold_s": 600, "max_rejected": 0.5}
    plan.write_text(tomli_w.dumps({"package": "2", "waves": waves, "gate": gate}))
    signed = ("--broker", broker.url, "--key", str(key))
    with Boxes(broker.port, 6) as boxes:
        boxes.rejects = lambda name, _version: name == "box-0002"
        page.goto(serve(*signed, "--operate"))
        start = [sys.executable, "-m", "edge_agent", "rollout", "start", str(plan), *signed]
        leading = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = page.locator("section.part", has_text="Roll-outs")
        wave = part.locator("li", has_text="box-0001, box-0002, box-0003")
        wave.filter(has_text="3 devices: 2 live, 1 rejected").wait_for()
        wave.filter(has_text="rejected: golden outputs differ (box-0002)").wait_for()
        part.locator("li", has_text="@lab: 3 devices: 3 waiting").wait_for()
        lags = page.get_by_role("row", name="box-0002").locator(".behind")
        lags.filter(has_text="rejected: golden outputs differ").wait_for()
        assert serious(page) == []
        for verb, word in (("Pause", "paused"), ("Abort", "aborted")):
            part.get_by_role("button", name=verb).click()
            part.locator("strong", has_text=word).wait_for()
        assert leading.wait(PATIENCE) == 1
        assert [each.split()[0] for each in dialogs] == ["Pause", "Abort"]


def test_a_mode_is_set_and_what_a_device_no_longer_has_is_not_shown(
    page: Page, shared_broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """The mode was shown as a pipeline that is off, beside pipelines of an earlier state folder."""
    listener = listen(shared_broker.port, "edge/moody/#")

    def say(topic: str, **body: object) -> None:
        listener.publish(f"edge/moody/{topic}", json.dumps({"schema": 1, **body}), retain=True)

    say("status", state="online", session="s", reason="started")
    say("info", session="s", pipelines=[{"name": "door", "source": "dir:p"}], has=["face"])
    for name in ("door", "gone"):
        say(f"pipeline/{name}", enabled="ON", threshold=0.5)
    for name in ("face", "left"):
        say(f"model/{name}", name=name, live="1", versions=["1"])
    say("pipeline/@device", mode="day")
    page.goto(f"{serve('--broker', shared_broker.url, '--operate')}/#/device/moody")
    page.get_by_text("mode day").wait_for()
    group = page.get_by_role("group")
    group.filter(has_text="door").wait_for()
    page.locator(".card", has_text="face").wait_for()
    assert not page.locator(".card", has_text="left").count()
    assert group.filter(visible=True).count() == 2
    mode = page.get_by_label("mode", exact=True)
    assert mode.input_value() == "day"
    mode.fill("night")
    mode.press("Enter")
    asked = listener.wait_state("edge/moody/in/command/set", mode="night")
    assert asked["pipeline"] == "@device"
    assert serious(page) == []


def test_a_value_that_was_refused_or_not_answered_does_not_stay(
    page: Page, shared_broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """The field kept 5 and the switch "off" while the device held 0.5 and was on."""
    listener = listen(shared_broker.port, "edge/firm/#")

    def say(topic: str, *, retain: bool = True, **body: object) -> None:
        listener.publish(f"edge/firm/{topic}", json.dumps({"schema": 1, **body}), retain=retain)

    say("status", state="online", session="s", reason="started")
    say("info", session="s", pipelines=[{"name": "belt", "source": "dir:p", "model": "face"}])
    say("pipeline/belt", enabled="ON", threshold=0.5)
    say("pipeline/@device", mode="day")
    page.clock.install()
    page.goto(f"{serve('--broker', shared_broker.url, '--operate')}/#/device/firm")
    group = page.get_by_role("group", name="belt")
    threshold, mode = group.get_by_label("threshold"), page.get_by_label("mode", exact=True)
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=PATIENCE * 1000)
    for field, value, held in ((threshold, "5", "0.5"), (mode, "night", "day")):
        expect(field).to_have_value(held)
        field.fill(value)
        field.press("Enter")
        key = "mode" if field is mode else "threshold"
        wanted: dict[str, Any] = {key: value if field is mode else float(value)}
        asked = listener.wait_state("edge/firm/in/command/set", **wanted)
        say(f"reply/{asked['id']}", retain=False, id=asked["id"], ok=False, error="it cannot be")
        page.get_by_text(f"{key} {value}: refused: it cannot be").wait_for()
        expect(field).to_have_value(held)
    switch = group.get_by_role("switch")
    switch.click()
    listener.wait_state("edge/firm/in/command/set", enabled=False)
    page.clock.fast_forward(31_000)
    page.get_by_text("no answer within 30 s; it may still be done").wait_for()
    expect(switch).to_be_checked()
    # Somebody else has set it, while the cursor is still where one has written.
    threshold.fill("0.6")
    threshold.press("Enter")
    say("pipeline/belt", enabled="OFF", threshold=0.7)
    expect(switch).not_to_be_checked()
    expect(threshold).to_have_value("0.7")


def test_what_is_over_keeps_its_score_and_a_sensor_has_no_threshold(
    page: Page, shared_broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """An end told of "lit, score 0.00"; of readings a threshold was offered that did nothing."""
    listener = listen(shared_broker.port, "edge/lamp/#")

    def say(topic: str, *, retain: bool = True, **body: object) -> None:
        listener.publish(f"edge/lamp/{topic}", json.dumps({"schema": 1, **body}), retain=retain)

    pipelines = [
        {"name": "door", "source": "dir:p", "model": "face"},
        {"name": "room", "source": "mqtt:room", "model": "readings"},
    ]
    say("status", state="online", session="s", reason="started")
    say("info", session="s", pipelines=pipelines, has=["face"])
    for name in ("door", "room"):
        say(f"pipeline/{name}", enabled="ON", threshold=None)
    page.goto(f"{serve('--broker', shared_broker.url, '--operate')}/#/device/lamp")
    page.get_by_role("group", name="door").get_by_label("threshold").wait_for()
    page.get_by_role("group", name="room").get_by_label("results a second").wait_for()
    page.get_by_role("group", name="room").get_by_label("threshold").wait_for(state="hidden")

    flash = {"event": "e-1", "rule": "flash", "when": "class", "label": "lit", "began": "2026"}
    for state, score in (("begin", 0.98), ("end", 0.0)):
        say("event/door", retain=False, **flash, state=state, score=score)
    page.locator(".events li", has_text="flash end").filter(has_text="score 0.98").wait_for()


def test_a_shape_that_was_added_can_be_taken_back(
    page: Page, shared_broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """One that the device refused stayed for ever, and whatever was sent with it was refused."""
    listener = listen(shared_broker.port, "edge/drawn/#")
    status = {"schema": 1, "state": "online", "session": "s", "reason": "started"}
    listener.publish("edge/drawn/status", json.dumps(status), retain=True)
    page.goto(f"{serve('--broker', shared_broker.url)}/#/device/drawn")
    page.get_by_role("heading", name="drawn", exact=True).wait_for()
    while not page.locator("figure").count():  # snapshots are read while somebody looks
        listener.publish("edge/drawn/snapshot/door", encode_jpeg(plain(90)))
    shot = page.locator("figure")
    shot.get_by_role("button", name="Draw zones, lines, masks").click()
    area, text = shot.get_by_role("application"), shot.get_by_label("TOML of what was drawn")
    for name in ("good", "bow"):
        shot.get_by_label("Name").fill(name)
        for x, y in ((10, 10), (40, 40), (40, 10), (10, 40)):
            area.click(position={"x": x, "y": y})
        shot.get_by_role("button", name="Add").click()
    assert text.input_value().count("name =") == 2
    back = shot.get_by_role("button", name="Take back")
    back.click()
    shot.get_by_text("bow was taken back; 4 points.").wait_for()
    assert [each.split('"')[1] for each in re.findall("name = .*", text.input_value())] == ["good"]
    assert shot.get_by_label("Name").input_value() == "bow"
    for _ in range(5):  # its points, and the other one
        back.click()
    shot.get_by_text("good was taken back; 4 points.").wait_for()
    assert text.is_hidden()


def test_a_page_that_is_read_only_sends_nothing(
    page: Page, shared_broker: Mosquitto, listen: Callable[..., Listener], serve: Callable[..., str]
) -> None:
    """Without `--operate` the server refuses what a browser asks for, whatever it shows."""
    listener = listen(shared_broker.port)
    page.goto(serve("--broker", shared_broker.url))
    answer = page.evaluate(
        """async () => {
            const socket = new WebSocket(location.origin.replace("http", "ws") + "/live");
            const asked = { do: "restart", device: "quiet", id: "1", body: {} };
            socket.onopen = () => socket.send(JSON.stringify(asked));
            const push = await fetch("/push?device=quiet&name=a.onnx", { method: "POST" });
            return new Promise((done) => {
                socket.onmessage = ({ data }) => {
                    const said = JSON.parse(data).says?.find(([kind]) => kind === "reply");
                    if (said) done([push.status, said[2].error]);
                };
            });
        }"""
    )
    assert answer == [404, "this page is read-only: start it with --operate"]
    listener.catch_up()
    assert [each for each in listener.heard if "/in/" in each.topic] == []
