"""The health payload as Prometheus text, on a port of loopback: opt-in, `[health] metrics_port`.

Says what was last said on the health topic, so that a scrape costs nothing and both agree. Needs
the extra `metrics`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core.errors import UsageError
from ..core.logs import ANSWER

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""Never another: whoever wants it elsewhere has a proxy that knows who may see it."""
PREFIX = "edge_agent"

Health = Mapping[str, Any]
"""A health payload, as section 3 of the interface has it."""


class Metrics:
    """The port, from `start` to `close`."""

    def __init__(
        self, port: int, device: str, version: str, latest: Callable[[], Health | None]
    ) -> None:
        """Prepare.

        Args:
            port: of loopback; 0: any free one, for tests.
            device: this device's id.
            version: of the agent.
            latest: gives the health payload that was last said; None: none yet.

        """
        self.port = port
        self._device = device
        self._version = version
        self._latest = latest
        self._server: Any = None

    def start(self) -> None:
        """Begin to answer, in a thread of its own.

        Raises:
            UsageError: the extra is not installed, or the port is taken.

        """
        where = f"health.metrics_port: {self.port}"
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError:
            raise UsageError(
                f"{where}: needs prometheus-client; install it with: pip install "
                "'edge-agent[metrics]'"
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


class Exposed:
    """The port as the settings have it at the moment, or why not."""

    def __init__(self, device: str, version: str, latest: Callable[[], Health | None]) -> None:
        """Prepare; nothing is open yet. The arguments are those of `Metrics`."""
        self._about = device, version, latest
        self._metrics: Metrics | None = None
        self._problem: str | None = None

    def answer_on(self, port: int) -> None:
        """Answer on another port, or on none; where that cannot be, as before.

        Args:
            port: of loopback; 0: none.

        """
        self._problem = None
        if port == (self._metrics.port if self._metrics is not None else 0):
            return
        made = Metrics(port, *self._about) if port else None
        if made is not None:
            try:
                made.start()
            except UsageError as problem:
                # What serves, serves.
                self._problem = str(problem)
                log.error("%s", problem, extra=ANSWER)  # noqa: TRY400 - one line, no traceback
                return
        self.close()
        self._metrics = made
        if made is None:
            log.info("metrics: the port is closed", extra=ANSWER)

    def why(self) -> list[str]:
        """Say in words what is not as it should be."""
        return [] if self._problem is None else [self._problem]

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


class _Collector:
    """Asked at every scrape."""

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


# Of the whole device: the payload's key, the metric's name, a factor to base units, what it is.
_GAUGES = (
    ("uptime_s", "uptime_seconds", 1, "Since the agent started."),
    ("rss_mb", "resident_memory_bytes", 2**20, "Memory of the agent's process."),
    ("cpu_percent", "cpu_cores", 0.01, "Cores in use by the agent and its children."),
    ("temperature_c", "temperature_celsius", 1, "Of the hottest sensor."),
    ("disk_free_mb", "disk_free_bytes", 2**20, "Where state_dir is."),
)
_COUNTERS = (
    ("reconnects", "reconnects", "Connections to the broker after the first."),
    ("malformed", "malformed_messages", "Messages that could not be understood."),
)
_PIPELINE_COUNTERS = (
    ("captured", "captures", "Frames or windows that the source gave."),
    ("inferred", "inferences", "Those that went through the model."),
    ("published", "results", "Results handed to the broker's connection."),
    ("lost", "results_lost", "Results given up."),
)
_QUANTILES = (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99"))


def families(health: Health) -> Iterator[Metric]:
    """Make metric families of a health payload; what it lacks is left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    degraded = GaugeMetricFamily(f"{PREFIX}_degraded", "1: not as it should be; `why` says more.")
    degraded.add_metric([], float(health.get("state") != "ok"))
    yield degraded
    for key, name, factor, text in _GAUGES:
        if key in health:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=health[key] * factor)
    for key, name, text in _COUNTERS:
        if key in health:
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=health[key])
    watchdog = health.get("watchdog", {})
    if "fed" in watchdog:
        text = "Times that systemd's watchdog was fed."
        yield CounterMetricFamily(f"{PREFIX}_watchdog_fed", text, value=watchdog["fed"])
    for key, value in health.get("spool", {}).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = f"What waits for the broker, or did not make it: {key}."
            yield GaugeMetricFamily(f"{PREFIX}_spool_{key}", text, value=value)
    yield from _of_pipelines(health.get("pipelines", {}))
    yield from _of_models(health.get("models", {}))


def _of_pipelines(pipelines: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = f"{PREFIX}_pipeline"
    counters = [
        (key, CounterMetricFamily(f"{name}_{metric}", text, labels=["pipeline"]))
        for key, metric, text in _PIPELINE_COUNTERS
    ]
    dropped = CounterMetricFamily(
        f"{name}_dropped", "Captures that went no further.", labels=["pipeline", "reason"]
    )
    rate = GaugeMetricFamily(
        f"{name}_inferences_per_second", "Since health was said before.", labels=["pipeline"]
    )
    running = GaugeMetricFamily(
        f"{name}_source_running", "1: the source gives something.", labels=["pipeline"]
    )
    waiting = GaugeMetricFamily(
        f"{name}_waiting", "Captures that wait or are being inferred.", labels=["pipeline"]
    )
    age = GaugeMetricFamily(
        f"{name}_age_seconds",
        "From capture to publication, of the last 1000 results.",
        labels=["pipeline", "quantile"],
    )
    for pipeline, says in pipelines.items():
        for key, family in counters:
            family.add_metric([pipeline], says[key])
        for reason, count in says["dropped"].items():
            dropped.add_metric([pipeline, reason], count)
        rate.add_metric([pipeline], says["fps"])
        running.add_metric([pipeline], float(says["source"] == "running"))
        waiting.add_metric([pipeline], says["waiting"])
        _add_quantiles(age, [pipeline], says["latency_ms"])
    yield from (family for _, family in counters)
    yield from (dropped, rate, running, waiting, age)


def _of_models(models: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = f"{PREFIX}_model"
    count = CounterMetricFamily(
        f"{name}_inferences", "By this version on this engine.", labels=["model", "engine"]
    )
    took = GaugeMetricFamily(
        f"{name}_inference_seconds",
        "Of the last inferences.",
        labels=["model", "engine", "quantile"],
    )
    for model, says in models.items():
        count.add_metric([model, says["engine"]], says["inferred"])
        _add_quantiles(took, [model, says["engine"]], says["infer_ms"])
    yield from (count, took)


def _add_quantiles(family: Any, labels: list[str], percentiles: Mapping[str, Any] | None) -> None:
    for key, quantile in _QUANTILES:
        value = (percentiles or {}).get(key)
        if value is not None:
            family.add_metric([*labels, quantile], value / 1e3)
