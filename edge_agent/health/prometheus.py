"""The health payload as Prometheus text, on a port of loopback: opt-in, `[health] metrics_port`.

Serves the latest payload of the health topic, so that a scrape costs nothing and both agree. Needs
the extra `metrics`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..core.errors import UsageError
from ..core.logs import ANSWER

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""Never another: to serve it elsewhere takes a proxy, which decides who may read it."""
PREFIX = "edge_agent"

Health = Mapping[str, Any]
"""A health payload, as section 3 of the interface has it."""


class MetricsServer:
    """An HTTP server, from `start` to `close`."""

    def __init__(
        self, port: int, device: str, version: str, latest: Callable[[], Health | None]
    ) -> None:
        """Build the server; it listens from `start` on.

        Args:
            port: of loopback; 0: any free one, for tests.
            device: this device's id.
            version: of the agent.
            latest: returns the latest health payload; None: none yet.

        """
        self.port = port
        self._device = device
        self._version = version
        self._latest = latest
        self._server: Any = None

    def start(self) -> None:
        """Answer from now on, in a thread of its own.

        Raises:
            UsageError: the library is not installed, or the port is taken.

        """
        where = f"health.metrics_port: {self.port}"
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError:
            raise UsageError(
                f"{where}: needs prometheus-client; install it with: "
                f"{sys.executable} -m pip install prometheus-client"
            ) from None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._device, self._version, self._latest))
        try:
            self._server, _ = start_http_server(self.port, addr=HOST, registry=registry)
        except OSError as problem:
            raise UsageError(f"{where}: {problem.strerror}; choose another port") from None
        # A reader that hangs up is nothing to print a traceback for.
        self._server.handle_error = lambda _request, client: log.debug("%s hung up", client)
        self.port = self._server.server_port
        log.info("metrics at http://%s:%d/metrics", HOST, self.port, extra=ANSWER)

    def close(self) -> None:
        """Stop answering; may be called without `start`."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class MetricsPort:
    """The service: the port as the settings have it at the moment, or why it is not open."""

    name = "metrics"

    def __init__(
        self, port: int, device: str, version: str, latest: Callable[[], Health | None]
    ) -> None:
        """Prepare; nothing is open before `run`.

        Args:
            port: of loopback; 0: none.
            device: this device's id.
            version: of the agent.
            latest: returns the latest health payload; None: none yet.

        """
        self._port = port
        self._about = device, version, latest
        self._changing = threading.Lock()
        self._server: MetricsServer | None = None
        self._problem: str | None = None

    def run(self) -> None:
        """Open the port; the library answers in threads of its own."""
        self.answer_on(self._port)

    def answer_on(self, port: int) -> None:
        """Move to another port, or to none; where that cannot be, the present one stays.

        Args:
            port: of loopback; 0: none.

        """
        with self._changing:
            self._port, self._problem = port, None
            if port == (self._server.port if self._server is not None else 0):
                return
            server = MetricsServer(port, *self._about) if port else None
            if server is not None:
                try:
                    server.start()
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


class _Collector:
    """Builds the metric families at every scrape."""

    def __init__(self, device: str, version: str, latest: Callable[[], Health | None]) -> None:
        self._device = device
        self._version = version
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import InfoMetricFamily

        about = {"device": self._device, "version": self._version}
        yield InfoMetricFamily(PREFIX, "Which device, which version.", about)
        health = self._latest()
        if health is not None:
            yield from families(health)


Samples = Iterable[tuple[Sequence[str], float]]
"""Label values, in the order of the family's labels, and the value."""


class _Family(NamedTuple):
    """One metric, and how it is read from the health payload."""

    kind: Literal["gauge", "counter"]
    name: str
    text: str
    read: Callable[[Health], Samples]
    """Without samples there is no metric."""
    labels: tuple[str, ...] = ()


def _device(*keys: str, factor: float = 1) -> Callable[[Health], Samples]:
    """Read one number of the whole device, times a factor to base units; nothing if absent."""

    def read(health: Health) -> Samples:
        value: Any = health
        for key in keys:
            value = value.get(key)
            if value is None:
                return []
        return [((), value * factor)]

    return read


def _pipelines(read: Callable[[Health], float]) -> Callable[[Health], Samples]:
    """Read one number of each pipeline."""
    return lambda health: [((name,), read(one)) for name, one in _of(health, "pipelines")]


def _dropped(health: Health) -> Samples:
    for name, pipeline in _of(health, "pipelines"):
        for reason, count in pipeline["dropped"].items():
            yield (name, reason), count


def _age(health: Health) -> Samples:
    for name, pipeline in _of(health, "pipelines"):
        yield from _quantiles((name,), pipeline["latency_ms"])


def _drift(health: Health) -> Samples:
    for name, pipeline in _of(health, "pipelines"):
        drift = pipeline.get("drift", {})
        for channel, index in drift.get("inputs", {}).items():
            yield (name, channel), index
        if drift.get("score") is not None:
            yield (name, "score"), drift["score"]


def _model_inferences(health: Health) -> Samples:
    for name, model in _of(health, "models"):
        yield (name, model["engine"]), model["inferred"]


def _model_seconds(health: Health) -> Samples:
    for name, model in _of(health, "models"):
        yield from _quantiles((name, model["engine"]), model["infer_ms"])


def _of(health: Health, key: str) -> Iterable[tuple[str, Health]]:
    found: Mapping[str, Health] = health.get(key, {})
    return found.items()


def _quantiles(labels: tuple[str, ...], percentiles: Mapping[str, Any] | None) -> Samples:
    """Convert percentiles in ms to quantiles in seconds."""
    for key, quantile in (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99")):
        value = (percentiles or {}).get(key)
        if value is not None:
            yield (*labels, quantile), value / 1e3


_PIPELINE = ("pipeline",)
_FAMILIES = (
    _Family(
        *("gauge", "degraded", "1: not as it should be; `why` says more."),
        lambda health: [((), float(health.get("state") != "ok"))],
    ),
    _Family("gauge", "uptime_seconds", "Since the agent started.", _device("uptime_s")),
    _Family(
        *("gauge", "resident_memory_bytes", "Memory of the agent's process."),
        _device("rss_mb", factor=2**20),
    ),
    _Family(
        *("gauge", "cpu_cores", "Cores in use by the agent and its children."),
        _device("cpu_percent", factor=0.01),
    ),
    _Family("gauge", "temperature_celsius", "Of the hottest sensor.", _device("temperature_c")),
    _Family(
        *("gauge", "disk_free_bytes", "Where state_dir is."), _device("disk_free_mb", factor=2**20)
    ),
    _Family(
        *("counter", "reconnects", "Connections to the broker after the first."),
        _device("reconnects"),
    ),
    _Family(
        *("counter", "malformed_messages", "Messages that could not be understood."),
        _device("malformed"),
    ),
    _Family(
        *("counter", "watchdog_fed", "Times that systemd's watchdog was fed."),
        _device("watchdog", "fed"),
    ),
    *(
        _Family(
            *("gauge", f"spool_{key}", f"What waits for the broker, or did not make it: {key}."),
            _device("spool", key),
        )
        for key in ("waiting", "on_disk", "bytes", "replayed", "dropped", "lost", "refused")
    ),
    _Family(
        *("counter", "pipeline_captures", "Frames or windows that the source gave."),
        *(_pipelines(lambda one: one["captured"]), _PIPELINE),
    ),
    _Family(
        *("counter", "pipeline_inferences", "Those that went through the model."),
        *(_pipelines(lambda one: one["inferred"]), _PIPELINE),
    ),
    _Family(
        *("counter", "pipeline_results", "Results handed to the broker's connection."),
        *(_pipelines(lambda one: one["published"]), _PIPELINE),
    ),
    _Family(
        *("counter", "pipeline_results_lost", "Results dropped."),
        *(_pipelines(lambda one: one["lost"]), _PIPELINE),
    ),
    _Family(
        *("counter", "pipeline_dropped", "Captures that went no further."),
        *(_dropped, ("pipeline", "reason")),
    ),
    _Family(
        *("gauge", "pipeline_inferences_per_second", "Since the health payload before."),
        *(_pipelines(lambda one: one["fps"]), _PIPELINE),
    ),
    _Family(
        *("gauge", "pipeline_source_running", "1: the source gives something."),
        *(_pipelines(lambda one: float(one["source"] == "running")), _PIPELINE),
    ),
    _Family(
        *("gauge", "pipeline_waiting", "Captures that wait or are being inferred."),
        *(_pipelines(lambda one: one["waiting"]), _PIPELINE),
    ),
    _Family(
        *("gauge", "pipeline_age_seconds", "Capture to publication, of the last 1000 results."),
        *(_age, ("pipeline", "quantile")),
    ),
    _Family(
        *("gauge", "pipeline_drift", "Population stability index of inputs and score."),
        *(_drift, ("pipeline", "of")),
    ),
    _Family(
        *("counter", "model_inferences", "By this version on this engine."),
        *(_model_inferences, ("model", "engine")),
    ),
    _Family(
        *("gauge", "model_inference_seconds", "Of the last inferences."),
        *(_model_seconds, ("model", "engine", "quantile")),
    ),
)


def families(health: Health) -> Iterator[Metric]:
    """Build the metric families of a health payload; what it lacks is left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    for kind, name, text, read, labels in _FAMILIES:
        samples = list(read(health))
        if samples:
            family = kinds[kind](f"{PREFIX}_{name}", text, labels=labels)
            for values, value in samples:
                family.add_metric(values, value)
            yield family
