"""What a device says is read only where it has the types that the schemas state."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.declared import as_declared

HEALTH = {
    "schema": 1,
    "time": "2026-01-01T00:00:00.000Z",
    "uptime_s": 5,
    "why": [],
    "temperature_c": 40.5,
    "pipelines": {"door": {"fps": 25.0, "latency_ms": {"p99": 9.1}}},
    "from another version": {"a": [None]},
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "1"),
        ("time", 7),
        ("uptime_s", True),
        ("uptime_s", "5"),
        ("why", {"a": 1}),
        ("why", [1]),
        ("temperature_c", 10**400),
        ("pipelines", {"door": []}),
        ("pipelines", {"door": {"latency_ms": {"p99": None}}}),
        ("disk_free_mb", 0.5),
    ],
)
def test_a_value_of_another_type_is_seen_wherever_it_lies(key: str, value: object) -> None:
    """It is left out; keys that are missing, or that only another version knows, are no fault."""
    assert as_declared("health", HEALTH) == HEALTH
    cleaned = as_declared("health", HEALTH | {key: value})
    assert cleaned != HEALTH | {key: value}
    assert cleaned | {key: HEALTH.get(key)} == HEALTH | {key: HEALTH.get(key)}


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1' + "0" * 400 + "}"])
def test_numbers_that_no_json_reader_takes_make_no_body(text: str) -> None:
    """They came as far as an integer's conversion, and ended whoever looked."""
    message = ReceivedMessage("edge/evil/health", text.encode(), retained=True)
    assert message.body is None
    assert message.said("health") is None


def test_a_mode_and_the_settings_of_a_pipeline_share_a_topic() -> None:
    """Either is enough, and the types of both hold."""
    pipeline: dict[str, Any] = {"schema": 1, "enabled": "ON", "threshold": 0.5, "rate": None}
    assert as_declared("pipeline", pipeline) == pipeline
    assert as_declared("pipeline", {"schema": 1, "mode": None}) == {"schema": 1, "mode": None}
    assert as_declared("pipeline", {"schema": 1, "mode": 5}) == {"schema": 1}
