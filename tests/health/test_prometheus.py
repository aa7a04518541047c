"""Health as Prometheus text: over a real port, read by Prometheus's own parser."""

from __future__ import annotations

import builtins
import contextlib
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge_agent.core.errors import UsageError
from edge_agent.health.bounded_server import BoundedServer
from edge_agent.health.prometheus import HOST, serve
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    free_port,
    wait_until,
)

HEALTH: dict[str, Any] = {
    "schema": 1,
    "uptime_s": 21.1,
    "state": "degraded",
    "why": ["source of door: gone"],
    "pipelines": {
        "door": {
            "fps": 25.0,
            "captured": 523,
            "inferred": 507,
            "published": 507,
            "lost": 0,
            "waiting": 1,
            "dropped": {"superseded": 14, "error": 1},
            "latency_ms": {"p50": 4.464, "p95": 28.178, "p99": 58.146},
            "source": "lost",
        }
    },
    "models": {
        "parts@6": {
            "engine": "openvino:CPU",
            "inferred": 330,
            "infer_ms": {"p50": 2.0, "p95": 11.0, "p99": 21.0},
        }
    },
    "rss_mb": 276.3,
    "cpu_percent": 14.0,
    "temperature_c": 61.5,
    "disk_free_mb": 72996,
    "spool": {"waiting": 3, "lost": 0, "refused": 0, "path": "spool.db"},
    "reconnects": 2,
    "malformed": 5,
    "watchdog": {"enabled": True, "fed": 9},
}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(port: int) -> Samples:
    """Read all samples, by name and labels."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> Iterator[BoundedServer]:
    """Serve one payload on a free port."""
    served = serve(0, "box", "1.2", lambda: HEALTH)
    yield served
    served.close()


def test_health_is_served_in_base_units(metrics: BoundedServer) -> None:
    """Counts are counters, times are seconds, sizes are bytes, each with its labels."""
    samples = scrape(metrics.server_port)
    door = ("pipeline", "door")
    expected: Samples = {
        ("edge_agent_info", (("device", "box"), ("version", "1.2"))): 1,
        ("edge_agent_degraded", ()): 1,
        ("edge_agent_uptime_seconds", ()): 21.1,
        ("edge_agent_resident_memory_bytes", ()): 276.3 * 2**20,
        ("edge_agent_cpu_cores", ()): 0.14,
        ("edge_agent_temperature_celsius", ()): 61.5,
        ("edge_agent_disk_free_bytes", ()): 72996 * 2**20,
        ("edge_agent_reconnects_total", ()): 2,
        ("edge_agent_malformed_messages_total", ()): 5,
        ("edge_agent_watchdog_fed_total", ()): 9,
        ("edge_agent_spool_waiting", ()): 3,
        ("edge_agent_pipeline_captures_total", (door,)): 523,
        ("edge_agent_pipeline_inferences_total", (door,)): 507,
        ("edge_agent_pipeline_dropped_total", (door, ("reason", "superseded"))): 14,
        ("edge_agent_pipeline_source_running", (door,)): 0,
        ("edge_agent_pipeline_age_seconds", (door, ("quantile", "0.99"))): 0.058146,
        (
            "edge_agent_model_inference_seconds",
            (("engine", "openvino:CPU"), ("model", "parts@6"), ("quantile", "0.5")),
        ): 0.002,
    }
    for key, value in expected.items():
        assert samples[key] == pytest.approx(value), key
    assert not any(name.startswith("edge_agent_spool_path") for name, _ in samples)


def test_before_the_first_health_there_is_only_who_we_are() -> None:
    """A scrape right after the start is answered, with nothing made up."""
    served = serve(0, "box", "1.2", lambda: None)
    try:
        assert [name for name, _ in scrape(served.server_port)] == ["edge_agent_info"]
    finally:
        served.close()


def test_what_a_box_does_not_have_is_left_out() -> None:
    """Without a temperature there is no such metric, rather than a zero."""
    cool = {key: value for key, value in HEALTH.items() if key != "temperature_c"}
    served = serve(0, "box", "1.2", lambda: cool)
    try:
        assert "edge_agent_temperature_celsius" not in {
            name for name, _ in scrape(served.server_port)
        }
    finally:
        served.close()


def test_only_loopback_is_listened_to(metrics: BoundedServer) -> None:
    """The port is open on 127.0.0.1 and on no other address, not even another of loopback."""
    socket.create_connection((HOST, metrics.server_port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", metrics.server_port), 5)


def test_half_requests_take_neither_threads_nor_the_port(metrics: BoundedServer) -> None:
    """Any local user may open connections and say nothing: others are answered all the same."""
    before = threading.active_count()
    held = [socket.create_connection((HOST, metrics.server_port), 5) for _ in range(60)]
    try:
        for each in held:
            with contextlib.suppress(OSError):  # it has been closed for a later one
                each.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert "edge_agent_uptime_seconds" in {name for name, _ in scrape(metrics.server_port)}
        assert threading.active_count() - before < 20
    finally:
        for each in held:
            each.close()


def test_a_port_that_is_taken_is_one_clear_line(metrics: BoundedServer) -> None:
    """The error names the key and the mend."""
    with pytest.raises(UsageError, match=r"^health\.metrics_port: \d+: Address already in use; "):
        serve(metrics.server_port, "box", "1.2", lambda: HEALTH)


def test_without_the_library_the_mend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where prometheus-client is not installed, the error says how to install it."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match="-m pip install prometheus-client"):
        serve(0, "box", "1.2", lambda: HEALTH)


def test_closing_frees_the_port() -> None:
    """After `close` the same port can be opened again at once."""
    served = serve(0, "box", "1.2", lambda: HEALTH)
    port = served.server_port
    served.close()
    again = serve(port, "box", "1.2", lambda: HEALTH)
    again.close()


@pytest.fixture
def clip(tmp_path: Path) -> dict[str, object]:
    """Give a pipeline that goes on for ever."""
    brightness(tmp_path / "models" / "light")
    path = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(25)])
    return {"name": "p", "source": f"file:{path}?loop=1", "model": "light"}


def test_an_agent_serves_what_it_publishes(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
    clip: dict[str, object],
) -> None:
    """With `metrics_port` a running agent is scraped; its counts grow and fit its health."""
    listener = listen(broker.port)
    port = free_port()
    settings = agent_settings(
        "box",
        broker.url,
        [clip],
        models_dirs=[str(tmp_path / "models")],
        health={"interval_s": 0.2, "metrics_port": port},
    )
    running = agent(settings)
    listener.wait_for(
        lambda heard: any(h.topic == "edge/box/health" and h.json["models"] for h in heard),
        "health with a model",
    )
    wait_until(lambda: "metrics at http://" in running.words(), "the port to be open")
    key = ("edge_agent_pipeline_inferences_total", (("pipeline", "p"),))
    first = scrape(port)[key]
    wait_until(lambda: scrape(port)[key] > first, "the count to grow")
    inferred = [h["pipelines"]["p"]["inferred"] for h in listener.on("edge/box/health")]
    assert first in inferred
    assert running.stop() == 0


def test_a_taken_port_does_not_stop_the_agent(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
    clip: dict[str, object],
) -> None:
    """Another program on the port costs the metrics, not the results; health says so."""
    listener = listen(broker.port)
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        settings = agent_settings(
            "box",
            broker.url,
            [clip],
            models_dirs=[str(tmp_path / "models")],
            health={"interval_s": 0.2, "metrics_port": port},
        )
        running = agent(settings)
        health = listener.wait_why("health.metrics_port")
        assert health["state"] == "degraded"
        listener.wait_for(
            lambda heard: any(h.topic == "edge/box/result/p" for h in heard), "a result"
        )
        assert running.stop() == 0
