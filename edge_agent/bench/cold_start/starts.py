"""The ways to a first result that are compared: how each is started, and what it says of itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...mqtt.loopback import Loopback

SCRIPT = Path(__file__).parents[1] / "common" / "start_script.py"
DEVICE = "bench"
RESULTS = f"edge/{DEVICE}/result/clip"
AGENT = "agent"
NONE, ORT, BEST = "none", "ort", "best"
VARIANTS = (NONE, ORT, "openvino", "openvino-cache", BEST, AGENT)
MEANING: Mapping[str, str] = {
    NONE: "a script with no model",
    ORT: "plain ONNX Runtime script",
    "openvino": "plain OpenVINO script",
    "openvino-cache": "the same with its model cache",
    BEST: "best whole-model load of ONNX Runtime",
    AGENT: "this",
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


def starts(model: Mapping[str, Any], clip: Path, loopback: Loopback) -> list[Start]:
    """Prepare all variants for a model; what each needs is written below the model's place.

    Args:
        model: as `readying.look` gives it.
        clip: that is opened.
        loopback: takes the results.

    """
    place = Path(model["place"])
    made = []
    for variant in VARIANTS:
        if variant == AGENT:
            command = _agent(model, clip, loopback, place / AGENT)
            made.append(Start(variant, command, RESULTS))
            continue
        topic = f"{DEVICE}/{variant}"
        cache = place / variant if variant == "openvino-cache" else None
        how = {
            **model["how"],
            "model": model["best"] if variant == BEST else model["network"],
            "optimised": variant == BEST,
            "cache": str(cache) if cache else None,
            "clip": str(clip),
            "port": loopback.port,
            "topic": topic,
        }
        settings = place / f"{variant}.json"
        settings.write_text(json.dumps(how))
        engine = variant.partition("-")[0]
        made.append(Start(variant, [sys.executable, str(SCRIPT), engine, str(settings)], topic))
    return made


def _agent(model: Mapping[str, Any], clip: Path, loopback: Loopback, place: Path) -> list[str]:
    library = place / "models"
    library.mkdir(parents=True)
    (library / model["name"]).symlink_to(model["folder"], target_is_directory=True)
    source = f"file:{quote(str(clip))}?loop=1&pace=real"
    settings = place / "edge-agent.toml"
    settings.write_text(
        f'device_id = "{DEVICE}"\nstate_dir = "state"\nmodels_dirs = ["models"]\n'
        f'[broker]\nurl = "{loopback.url}"\nprotocol = {loopback.protocol}\n'
        f'[[pipelines]]\nname = "clip"\nsource = {json.dumps(source)}\nmodel = "{model["name"]}"\n'
    )
    return [sys.executable, "-m", "edge_agent", "run", "--config", str(settings)]


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
