"""The ways to a first result that are compared: how each is started, and what it says of itself."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...core.bundled import bundled
from ...mqtt.loopback import Loopback

SCRIPT = Path(__file__).parents[1] / "common" / "start_script.py"
DEVICE = "bench"
RESULTS = f"edge/{DEVICE}/result/clip"
AGENT = "agent"
STATE = "state"
"""Folder of the agent's state, in its place."""
NONE, ORT, BEST = "none", "ort", "best"
SCRIPTS = (NONE, ORT, "openvino", "openvino-cache", BEST)
KINDS: Mapping[str, str] = {
    "first": f"{AGENT}-first",
    "settings": f"{AGENT}-settings",
    "reinstalled": f"{AGENT}-reinstalled",
    "prepared": AGENT,
}
"""Kinds of starts of the agent, and the variant that each is."""
VARIANTS = (*SCRIPTS, *KINDS.values())
MEANING: Mapping[str, str] = {
    NONE: "a script with no model",
    ORT: "plain ONNX Runtime script",
    "openvino": "plain OpenVINO script",
    "openvino-cache": "the same with its model cache",
    BEST: "best whole-model load of ONNX Runtime",
    KINDS["first"]: "this, with an empty state folder",
    KINDS["settings"]: "with a form, one value of the settings changed before each start",
    KINDS["reinstalled"]: "with a form, another copy of the program at each start",
    AGENT: "with a form, nothing changed",
}

SCRIPT_STEPS = ("python", "imports", "model", "clip", "infer", "publish")
WHOLE = "first_publish"
"""The agent's step that is no part: from exec to the first result, as it saw it itself."""


@dataclass(frozen=True, slots=True)
class Start:
    """A way to a first result, ready to be gone again and again."""

    variant: str
    command: list[str]
    topic: str
    """Of its results."""
    place: Path | None = None
    """The agent's own folder, or None if it is a script."""
    ready: Callable[[], None] = lambda: None
    """Called before each start, untimed."""
    cwd: Path | None = None


def starts(
    model: Mapping[str, Any], clip: Path, loopback: Loopback, kinds: Sequence[str]
) -> list[Start]:
    """Prepare all variants for a model, as `prepare_models.look` gives it.

    What each needs is written below the model's place; *kinds* are those of the agent's starts.
    """
    place = Path(model["place"])
    made = []
    for variant in SCRIPTS:
        topic = f"{DEVICE}/{variant}"
        cache = place / variant if variant == "openvino-cache" else None
        how = {
            **model["how"],
            "model": model["best"] if variant == BEST else model["network"],
            "optimized": variant == BEST,
            "cache": str(cache) if cache else None,
            "clip": str(clip),
            "port": loopback.port,
            "topic": topic,
        }
        settings = place / f"{variant}.json"
        settings.write_text(json.dumps(how))
        engine = variant.partition("-")[0]
        made.append(Start(variant, [sys.executable, str(SCRIPT), engine, str(settings)], topic))
    made += [_agent(kind, model, clip, loopback) for kind in KINDS if kind in kinds]
    return made


def _agent(kind: str, model: Mapping[str, Any], clip: Path, loopback: Loopback) -> Start:
    place = Path(model["place"]) / KINDS[kind]
    library = place / "models"
    library.mkdir(parents=True)
    (library / model["name"]).symlink_to(model["folder"], target_is_directory=True)
    source = f"file:{quote(str(clip))}?loop=1&pace=real"
    settings = place / "edge-agent.toml"
    text = (
        f'device_id = "{DEVICE}"\nstate_dir = "state"\nmodels_dirs = ["models"]\n'
        f'[broker]\nurl = "{loopback.url}"\nprotocol = {loopback.protocol}\n'
        f'[[pipelines]]\nname = "clip"\nsource = {json.dumps(source)}\nmodel = "{model["name"]}"\n'
    )
    settings.write_text(text)
    command = [sys.executable, "-m", "edge_agent", "run", "--config", str(settings)]
    numbers = itertools.count(1)

    def changed() -> None:
        settings.write_text(f"{text}rate = {1000 + next(numbers)}\n")

    def emptied() -> None:
        shutil.rmtree(place / STATE, ignore_errors=True)

    copies = [place / "program-a", place / "program-b"]

    def exchanged() -> None:
        (place / "program").unlink(missing_ok=True)
        (place / "program").symlink_to(copies[next(numbers) % 2])

    if kind == "reinstalled":
        for copy in copies:
            _copy_program(copy)
        exchanged()
        return Start(KINDS[kind], command, RESULTS, place, exchanged, place / "program")
    ready = {"first": emptied, "settings": changed}.get(kind, lambda: None)
    return Start(KINDS[kind], command, RESULTS, place, ready)


def _copy_program(place: Path) -> None:
    """Copy the program and what comes with it, the environment left where it is."""
    package = Path(sys.modules["edge_agent"].__path__[0])
    shutil.copytree(package, place / package.name)
    for kind in ("device_profiles", "models"):
        if (folder := bundled(kind)).parent == package.parent:
            shutil.copytree(folder, place / kind)


def script_steps(marks: Mapping[str, float], begun: float, ended: float) -> dict[str, float]:
    """Return what each of a script's steps took, ms, in order; they add up to the whole.

    Args:
        marks: when each step was done, seconds of the monotonic clock.
        begun: when it was started.
        ended: when its result was here.
    """
    times = {step: marks[step] for step in SCRIPT_STEPS if step in marks} | {"publish": ended}
    steps, before = {}, begun
    for step, at in times.items():
        steps[step] = (at - before) * 1e3
        before = at
    return steps


Progress = Callable[[str], None]
"""Takes a line about how far it is."""
