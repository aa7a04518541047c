"""The operator's page with `--operate`: what is set, drawn and pushed is done by a real agent."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge_agent.mqtt.payloads import iso
from tests.helpers.push import QUICK, model_folder, plain_package
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


def test_settings_drawings_and_pushes_reach_the_device(
    page: Page,
    dialogs: list[str],
    shared_broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
    serve: Callable[..., str],
    tmp_path: Path,
) -> None:
    """A threshold, a zone with a rule, a signed push by drop, its rollback; one that is refused."""
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
    )
    agent(settings)
    listener.wait_state("edge/operated/model/level", live="1")
    url = serve("--broker", shared_broker.url, "--operate", "--key", str(key))
    page.goto(f"{url}/#/device/operated")

    _look_at_what_is_kept(page)
    _set_and_draw(page, listener)
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
    assert dialogs == ["Roll back to 1 on operated?", "Abort on operated?"]


def _look_at_what_is_kept(page: Page) -> None:
    """List it until there is a clip, play that, and save the picture."""
    part = page.locator("section", has=page.get_by_role("heading", name="Kept of events"))
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
    area.click(position={"x": 10, "y": 10})
    for move in ("Shift+ArrowDown", "Shift+ArrowLeft"):
        for _ in range(4):
            area.press(move)
        area.press("Enter")
    shot.get_by_label("Name").fill("all")
    shot.get_by_label("with a rule").check()
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


def _push_and_return(page: Page, listener: Listener, folder: Path) -> None:
    """Push by drop, go back, and push what is refused."""
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
    page.get_by_label("a folder").set_input_files(older)
    page.locator(".log li", has_text="level.tar failed").wait_for()
    page.locator(".log li", has_text="rejected").first.wait_for()


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
