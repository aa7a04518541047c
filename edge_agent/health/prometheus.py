"""The health payload as Prometheus text on a loopback port: opt-in, `[health] metrics_port`.

Serves the latest payload of the health topic, so that scrapes are cheap and both agree. Needs the
extra `metrics`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..core.errors import RequestError, UsageError
from ..core.logs import ANSWER

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .bounded_server import BoundedServer

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""The only address: serving it elsewhere needs a proxy, which controls access."""
PREFIX = "edge_agent"
MISSING = (
    f"needs prometheus-client; install it with: {sys.executable} -m pip install prometheus-client"
)

Health = Mapping[str, Any]
"""A health payload according to section 3 of the interface."""


def serve(
    port: int, device: str, version: str, latest: Callable[[], Health | None]
) -> BoundedServer:
    """Answer scrapes of the latest health on a port, in separate threads; 0: any free port."""
    where = f"health.metrics_port: {port}"
    try:
        from prometheus_client import CollectorRegistry

        from .bounded_server import BoundedServer
    except ModuleNotFoundError:
        raise UsageError(f"{where}: {MISSING}") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(device, version, latest))
    try:
        server = BoundedServer(HOST, port, registry)
    except OSError as problem:
        raise UsageError(f"{where}: {problem.strerror}; choose another port") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    log.info("metrics at http://%s:%d/metrics", HOST, server.server_port, extra=ANSWER)
    return server


class MetricsPort:
    """The service: the port in the current settings, or why it is not open."""

    name = "metrics"

    def __init__(
        self, port: int, device: str, version: str, latest: Callable[[], Health | None]
    ) -> None:
        self._port = port
        self._about = device, version, latest
        self._changing = threading.Lock()
        self._server: BoundedServer | None = None
        self._problem: str | None = None

    def run(self) -> None:
        """Open the port; the library answers in its own threads."""
        self.answer_on(self._port)

    def answer_on(self, port: int) -> None:
        """Move to another port or to none; if that fails, keep the present one."""
        with self._changing:
            self._port, self._problem = port, None
            if port == (self._server.server_port if self._server is not None else 0):
                return
            try:
                server = serve(port, *self._about) if port else None
            except UsageError as problem:
                self._problem = str(problem)
                log.error("metrics: %s", problem, extra=ANSWER)  # noqa: TRY400 - one line, no traceback
                return
            self._close()
            self._server = server
            if server is None:
                log.info("metrics: the port is closed", extra=ANSWER)

    def problems(self) -> list[str]:
        """Return why the port is not open."""
        return [] if self._problem is None else [self._problem]

    def close(self) -> None:
        """Close the port."""
        with self._changing:
            self._port = 0
            self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def exposition(device: str, version: str, latest: Callable[[], Health | None]) -> bytes:
    """Return the latest health payload as Prometheus text."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ModuleNotFoundError:
        raise RequestError(MISSING) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(device, version, latest))
    return generate_latest(registry)


@dataclass(eq=False)
class _Collector:
    """Builds the metric families at every scrape."""

    device: str
    version: str
    latest: Callable[[], Health | None]

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import InfoMetricFamily

        about = {"device": self.device, "version": self.version}
        yield InfoMetricFamily(PREFIX, "Which device, which version.", about)
        health = self.latest()
        if health is not None:
            yield from families(health)


class _Metric(NamedTuple):
    """One metric and its place in the health payload."""

    kind: Literal["gauge", "counter"]
    name: str
    path: str
    """Keys separated by dots. `{label}` makes each key a label, `{label}+key` also makes the value
    of *key* in it a label; `label=key` makes this key a label. Missing values give no sample."""
    text: str
    convert: Callable[[Any], float] = float
    """Converts to base units."""


def _bytes(megabytes: float) -> float:
    return megabytes * 2**20


def _seconds(milliseconds: float) -> float:
    return milliseconds / 1e3


def _cores(percent: float) -> float:
    return percent / 100


def _not_ok(state: str) -> float:
    return float(state != "ok")


def _running(state: str) -> float:
    return float(state == "running")


_EACH = "pipelines.{pipeline}"
_DRIFT = f"{_EACH}.drift.inputs.{{of}} {_EACH}.drift.of=score"
_MODEL = "models.{model}+engine"
_TOOK = f"{_MODEL}.infer_ms.{{quantile}}"
_DROPPED = f"{_EACH}.dropped.{{reason}}"
_SPOOL = ("waiting", "on_disk", "bytes", "replayed", "dropped", "lost", "refused")
_ENDS = ("asked", "answered", "failed", "refused")
_WAITS = "What waits for the broker, or did not make it"
_AGE = "Capture to publication, of the last 1000 results."
_M = _Metric
# fmt: off
_METRICS = (
    _M("gauge", "degraded", "state", "1: not as it should be; `why` says more.", _not_ok),
    _M("gauge", "uptime_seconds", "uptime_s", "Since the agent started."),
    _M("gauge", "resident_memory_bytes", "rss_mb", "Of the agent and language models.", _bytes),
    _M("gauge", "cpu_cores", "cpu_percent", "In use by the agent and its children.", _cores),
    _M("gauge", "temperature_celsius", "temperature_c", "Of the hottest sensor."),
    _M("gauge", "disk_free_bytes", "disk_free_mb", "Where state_dir is.", _bytes),
    _M("counter", "reconnects", "reconnects", "Connections to the broker after the first."),
    _M("counter", "malformed_messages", "malformed", "Messages that could not be understood."),
    _M("counter", "watchdog_fed", "watchdog.fed", "Times that systemd's watchdog was fed."),
    *(_M("gauge", f"spool_{key}", f"spool.{key}", f"{_WAITS}: {key}.") for key in _SPOOL),
    _M("counter", "pipeline_captures", f"{_EACH}.captured", "Frames or windows that came."),
    _M("counter", "pipeline_inferences", f"{_EACH}.inferred", "Those that went through the model."),
    _M("counter", "pipeline_results", f"{_EACH}.published", "Results handed to a connection."),
    _M("counter", "pipeline_results_lost", f"{_EACH}.lost", "Results dropped."),
    _M("counter", "pipeline_dropped", _DROPPED, "Captures that went no further."),
    _M("gauge", "pipeline_inferences_per_second", f"{_EACH}.fps", "Since the last payload."),
    _M("gauge", "pipeline_source_running", f"{_EACH}.source", "1: it is running.", _running),
    _M("gauge", "pipeline_waiting", f"{_EACH}.waiting", "Captures that wait or are in a lane."),
    _M("gauge", "pipeline_age_seconds", f"{_EACH}.latency_ms.{{quantile}}", _AGE, _seconds),
    *(_M("counter", f"infer_{key}", f"infer.{key}", f"Questions: {key}.") for key in _ENDS),
    _M("gauge", "infer_waiting", "infer.waiting", "Questions under way."),
    _M("gauge", "infer_age_seconds", "infer.latency_ms.{quantile}", "Until answered.", _seconds),
    _M("gauge", "pipeline_drift", _DRIFT, "Population stability index of inputs and score."),
    _M("counter", "model_inferences", f"{_MODEL}.inferred", "By this version on this engine."),
    _M("gauge", "model_inference_seconds", _TOOK, "Of the last inferences.", _seconds),
)
# fmt: on
_QUANTILES = {"p50": "0.5", "p95": "0.95", "p99": "0.99"}


def families(health: Health) -> Iterator[Metric]:
    """Build the metric families of a health payload, without missing figures."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    for metric in _METRICS:
        found = [each for path in metric.path.split() for each in _find(health, path.split("."))]
        if not found:
            continue
        family = kinds[metric.kind](
            f"{PREFIX}_{metric.name}", metric.text, labels=tuple(found[0][0])
        )
        for labels, value in found:
            family.add_metric(tuple(labels.values()), metric.convert(value))
        yield family


def _find(node: Mapping[str, Any], path: list[str]) -> Iterator[tuple[dict[str, str], Any]]:
    """Yield the labels and the value of everything at a path."""
    step, *rest = path
    label, _, only = step.rpartition("=")
    beside = ""
    if step.startswith("{"):
        label, _, beside = step[1:].partition("}")
    for key in node if step.startswith("{") else (only,):
        child = node.get(key)
        labels = {label: _QUANTILES[key] if label == "quantile" else key} if label else {}
        if beside and child is not None:
            labels[beside[1:]] = child[beside[1:]]
        if not rest and child is not None:
            yield labels, child
        elif rest and isinstance(child, Mapping):
            for more, value in _find(child, rest):
                yield {**labels, **more}, value
