"""`edge-agent bench`: measures this device in comparison with a plain script."""

from __future__ import annotations

import argparse

from ..main import Command, add_commands

KINDS = (
    Command("pipeline", "frames per second, streams, cost of each step", "bench_pipeline"),
    Command("cameras", "what a camera costs by part, and how many can run", "bench_cameras"),
    Command("infer", "answers on demand over HTTP and MQTT, beside a plain server", "bench_infer"),
    Command(
        "push",
        "a push beside the raw rate of the same broker, and what frames notice of it",
        "bench_push",
    ),
    Command(
        "cold-start",
        "from the start of a process to its first result, beside plain scripts",
        "bench_cold_start",
    ),
)


EXAMPLES = (
    "edge-agent bench pipeline yolov8n.onnx        beside plain scripts",
    "edge-agent bench cold-start parts-inspection  from exec to the first result",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the measurements, each a separate module."""
    add_commands(parser, KINDS, "bench", "WHAT")
