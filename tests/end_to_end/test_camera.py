"""How well a camera is, as health and events of an agent say it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings


def test_a_dark_camera_is_in_health_and_makes_an_event(
    tmp_path: Path,
    shared_broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """Also where nothing moves, so that nothing is inferred; over once there is light."""
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(0)] * 8 + [plain(120 + n) for n in range(9)], 1)
    rules = [
        {"name": "blind", "when": "camera", "labels": ["dark"]},
        {"name": "moved", "when": "camera", "labels": ["turned"]},
    ]
    door = {"name": "door", "source": f"file:{clip}?loop=1", "model": "light", "motion": True}
    settings = agent_settings(
        "seen",
        shared_broker.url,
        [{**door, "rules": rules}, {**door, "name": "any", "camera": False}],
        models_dirs=[str(tmp_path / "models")],
        health={"interval_s": 0.5},
    )
    listener = listen(shared_broker.port, "edge/seen/#")
    agent(settings)
    topic = "edge/seen/event/door"
    begun = listener.wait_state(topic, state="begin")
    assert (begun["rule"], begun["when"], begun["label"]) == ("blind", "camera", "dark")
    ended = listener.wait_state(topic, state="end")
    assert (ended["event"], ended["label"], ended["why"]) == (begun["event"], "dark", "over")
    assert {each["rule"] for each in listener.on(topic)} == {"blind"}

    def camera(health: dict[str, Any]) -> Any:
        return health["pipelines"]["door"].get("camera")

    def well(_: object) -> bool:
        return bool(camera(listener.last("edge/seen/health") or {}) == "ok")

    listener.wait_for(well, "a health in which the camera is well")
    said = listener.on("edge/seen/health")
    words = "camera of door: dark: nothing is seen in its picture"
    dark = [each for each in said if words in each["why"]]
    assert {camera(each) for each in dark} == {"dark"}
    assert not any("camera" in each["pipelines"]["any"] for each in said)
