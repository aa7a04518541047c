"""`edge-agent check`: checks whether everything can run, line by line, with fixes."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import BrokerError, ModelError, SampleError, UsageError
from ...core.privileges import acting_as
from ...core.state_file import only_looking
from ...core.text import counted
from ...inference.engines.registry import engine_words
from ...models.decoders import Thresholds, threshold_troubles
from ...models.manifest import MANIFEST
from ..check_report import Report
from ..options import Options, add_config, load_settings
from ..sensor_check import misfit, misread, paces

if TYPE_CHECKING:
    from ...config.asks import Server
    from ...config.overrides import Overrides
    from ...config.settings import Arm, Pipeline, Settings, Trust
    from ...core.privileges import User
    from ...core.types import Kind, Reading
    from ...models.manifest import ModelFolder
    from ...models.store.catalog import Catalog
    from ...serving.choice import DeviceEngines
    from ...sources.source import Source, SourceContext
    from ..stream_size import Stream

READINGS = 100
"""Readings from a source, of which at least one must be usable."""
SERVER_SECONDS = 10.0
LISTEN_SECONDS = 3.0
"""Time for a live sensor, which may be fine but send nothing for hours."""


@dataclass(frozen=True, slots=True)
class _Device:
    """What the checks of all pipelines share."""

    settings: Settings
    config: str | None
    """The settings file as given on the command line."""
    catalog: Catalog
    engines: DeviceEngines
    overrides: Overrides
    user: User | None
    """The user to act as in the state folder; None: the user of this process."""
    streams: list[Stream] = field(default_factory=list)
    """The streams of cameras and clips so far."""


EXAMPLES = (
    "edge-agent check  the settings that `run` would find",
    "edge-agent check --config my/edge-agent.toml",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_config(parser)
    parser.add_argument("--settings-only", action="store_true", help="the settings, and no more")


def main(options: Options) -> int:
    """Check everything; 0 if all can run, 1 if something cannot, 2 if the settings are wrong."""
    from ...config.load import find_file
    from ..service_settings import as_the_service

    with as_the_service(find_file(options.config)) as unread, only_looking() as damaged:
        settings = load_settings(options, needed=True)
        if options.settings_only:
            _read_as_reload(settings)
            return 0
        return _check(options, settings, unread, damaged)


def _read_as_reload(settings: Settings) -> None:
    """Raise what makes a running agent keep the settings that it has."""
    from ...mqtt.tls import Certificates
    from ...sources.spec import parse_source

    for pipeline in settings.pipelines:
        parse_source(pipeline.source, settings.base)
    Certificates(settings.broker)


def _check(
    options: Options, settings: Settings, unread: Sequence[str], damaged: Sequence[str]
) -> int:
    from ...config.lint import lint_settings
    from ...config.load import find_file
    from ...config.overrides import FILE, Overrides
    from ...serving.choice import DeviceEngines, match_profile
    from ...serving.loader import open_library, open_store
    from ...serving.tuning_results import TuningResults
    from ...serving.verdicts import Verdicts
    from ..service_user import state_user
    from .profile import tuned
    from .service_check import check_service, check_state

    report, user = Report(), state_user(settings.state)
    with acting_as(user, reading=True):
        overrides = Overrides(settings.state / FILE)
        Verdicts(settings.state)  # for what may be damaged
        settings = overrides.lay_over(settings)
    file = find_file(options.config)
    if file is not None and not file.read_bytes().strip():
        report.line("note", "settings", f"{file} is empty; is it whole?")
    else:
        report.line("ok", "settings", str(file))
    _notes(report, [*(f"settings: {line}" for line in unread), *damaged])
    match, facts = match_profile(settings)
    report.line("ok", "profile", f"{match.name} ({match.reason}) on {facts}")
    tuning = TuningResults(settings.state, match.profile, facts)
    cache = settings.text.kv_cache_mb
    engines = DeviceEngines(match.profile, facts, settings.engine, tuning=tuning, kv_cache_mb=cache)
    _engines(report, engines)
    store = open_store(settings, make=False)
    check_state(report, settings, file)
    choices = engines.lineup.choices
    with acting_as(user, reading=True):
        for line in tuned(tuning, choices):
            report.line("note" if tuning.problem else "ok", "tune", line)
    _notes(report, _device(settings))
    if settings.health.metrics_port:
        _metrics_port(report, settings.health.metrics_port)
    report.tried("broker", lambda: _broker(settings))
    catalog = open_library(settings, store)
    for name in settings.models_dirs:
        _models_dir(report, Path(name))
    for server in settings.servers:
        report.tried(f"server {server.name}", partial(_server, server))
    _notes(report, [*overrides.removed(), *overrides.ignored, *lint_settings(settings)])
    device = _Device(settings, options.config, catalog, engines, overrides, user)
    for pipeline in settings.pipelines:
        _PipelineCheck(report, pipeline, device).run()
    _sizes(report, device.streams)
    _answers(report, device)
    if not settings.pipelines and not settings.infer.models:
        text = f"{file} names none; the agent runs, but has nothing to do"
        report.line("note", "pipelines", text)
    _trust(report, settings.trust)
    if os.geteuid() == 0:
        check_service(report, settings, file)
    return 1 if report.failed else 0


class _PipelineCheck:
    """Checks the source of one pipeline and each of its models."""

    def __init__(self, report: Report, pipeline: Pipeline, device: _Device) -> None:
        from ...sources.spec import parse_source

        self._report = report
        self._pipeline = pipeline
        self._device = device
        self._spec = parse_source(pipeline.source, device.settings.base)
        self._subject = f"pipeline {pipeline.name}"
        self._names: tuple[str, ...] = ()
        """The names of its source's values, if known."""
        self._size: tuple[int, int] | None = None
        """Width and height of the pictures from a camera or clip."""
        self._cost_ms = 0.0
        self._reading: Reading | None = None
        """The first usable reading of a sensor."""

    def run(self) -> None:
        """Print a line for each check."""
        from ...config.lint import lint_pipeline, surroundings
        from ...config.settings import parse_route

        pipeline, report = self._pipeline, self._report
        report.tried(f"{self._subject} source", self._source)
        given = pipeline.threshold, pipeline.thresholds
        wanted = [(arm, self._spec.kind, given) for arm in pipeline.arms]
        wanted += [
            (parse_route(stage.model)[0], "picture", (stage.threshold, {}))
            for stage in pipeline.stages
        ]
        folders: dict[str, ModelFolder] = {}
        for arm, kind, thresholds in wanted:
            look = partial(self._model, arm, kind, thresholds, folders)
            report.tried(f"{self._subject} model {arm.reference}", look)
        found = [folders.get(arm.reference) for arm, _, _ in wanted]
        count = len(pipeline.arms)
        if pipeline.has_no_model:
            from ...inference.readings import folder_of

            found, count = [folder_of(pipeline.sensor_spec, self._names), *found], 1
        if self._size is not None:
            from ..stream_size import Stream, needed_of

            needed, text = needed_of(pipeline, self._size, found[:count]), pipeline.source
            stream = Stream(text, self._spec.redacted, self._size, needed, self._cost_ms)
            self._device.streams.append(stream)
        _notes(report, [f"{self._subject} source: {it}" for it in paces(self._spec, found[:count])])
        around = surroundings(self._device.settings, self._size)
        lines = lint_pipeline(pipeline, found[:count], found[count:], around)
        for line in [*self._device.overrides.shadows(pipeline), *lines]:
            report.line("note", self._subject, line)

    def _model(
        self, arm: Arm, kind: Kind, thresholds: Thresholds, folders: dict[str, ModelFolder]
    ) -> str:
        """Check one model, and whether it takes what the source gives."""
        words = _model(self._device, arm, kind, thresholds, folders)
        if kind == "signal" and self._reading is not None:
            folder = folders[arm.reference]
            if (why := misfit(folder.manifest.input, self._reading)) is not None:
                why = f"{folder.manifest.id} does not fit this source: {why}"
                if not self._spec.live or self._reading.rate_hz:
                    raise ModelError(why)
                self._report.line("note", self._subject, f"{why}, in the first reading")
        return words

    def _source(self) -> str:
        """Open the source, and describe the first usable reading."""
        from ...inference.preprocess.placement import outside
        from ...sources.source import SourceContext, open_source

        spec, where = self._spec, f"{self._subject} source"
        if spec.topic is not None:
            from ...mqtt.one_shot import TopicReader

            with TopicReader(self._device.settings.broker) as topics:
                open_source(spec, SourceContext(topics=topics)).close()
            return f"{spec.redacted}, subscribed; whether anything is published is not waited for"
        context = SourceContext(decode=self._pipeline.decoding(self._device.settings.decode))
        opened = open_source(spec, context)
        self._note_clips(opened)
        for line in misread(self._pipeline, opened):
            self._report.line("note", where, line)
        useless, reading = self._first_reading(context, opened)
        if reading is None:
            if useless:
                raise useless[0]
            if spec.live and spec.kind == "signal":
                return f"{spec.redacted}, open; it gave nothing for {LISTEN_SECONDS:.0f} s"
            return f"{spec.redacted} is empty"
        if useless:
            self._report.line("note", where, f"{len(useless)} passed over: {useless[0]}")
        if spec.kind == "picture":
            x1, y1, x2, y2 = self._pipeline.roi
            if any(self._pipeline.roi) and (why := outside(reading.data, (x1, y1, x2, y2))):
                raise UsageError(why)
            height, width = reading.data.shape[:2]
            if reading.file is None:
                self._size = width, height
            if spec.scheme.name == "v4l2":
                from ...sources.v4l2 import modes, shown

                self._report.line("note", where, f"offers {shown(modes(spec.local))}")
            return f"{spec.redacted}, {width}x{height}"
        self._reading = reading
        if self._pipeline.has_no_model:
            from ...inference.readings import names_in

            taken = self._pipeline.sensor_spec
            self._names = names_in(taken, reading)
            if reading.rate_hz and taken.window is None and self._pipeline.rate is None:
                words = f"gives {reading.rate_hz:g} results a second; set rate, or input.window"
                self._report.line("note", self._subject, f"{words} and input.stats")
        size = " by ".join(map(str, reading.data.shape[1:])) or "1"
        return f"{spec.redacted}, readings of {size} value{'' if size == '1' else 's'}"

    def _note_clips(self, opened: Source) -> None:
        """Say that clips are asked of a camera whose pictures make none."""
        if self._spec.scheme.name not in {"http", "https"}:
            return
        from ...rules.clips import NO_PACKETS
        from ...sources.http_camera import HttpCamera

        rules = [rule.name for rule in self._pipeline.rules if rule.clip]
        if rules and isinstance(opened, HttpCamera):
            text = f"rules[{', '.join(rules)}].clip keeps nothing: {NO_PACKETS}"
            self._report.line("note", self._subject, text)

    def _first_reading(
        self, context: SourceContext, opened: Source
    ) -> tuple[list[SampleError], Reading | None]:
        """Return errors for unusable readings, and the first usable one; close the source."""
        from ...sources.source import readings

        timer = threading.Timer(LISTEN_SECONDS, context.closing.set)
        if self._spec.live and self._spec.kind == "signal":
            timer.start()
        useless: list[SampleError] = []
        try:
            for reading in islice(readings(opened), READINGS):
                if not isinstance(reading, SampleError):
                    if self._spec.kind == "picture" and reading.file is None:
                        from ..stream_size import reading_cost

                        self._cost_ms = reading_cost(opened, context.closing)
                    return useless, reading
                useless.append(reading)
        finally:
            timer.cancel()
            opened.close()
        return useless, None


def _model(
    device: _Device,
    arm: Arm,
    kind: Kind | None,
    thresholds: Thresholds,
    folders: dict[str, ModelFolder],
) -> str:
    """Run one model in a child process; its folder is added to `folders` by reference."""
    from ...config.device_profile import unlisted
    from ...inference.fit import kind_of
    from ...models.describing import inspect_network
    from ..model_check import check_model

    with acting_as(device.user, reading=True):
        folder = folders[arm.reference] = device.catalog.find(arm.name, arm.version)
        if arm.version is None and (instead := device.catalog.stands_in(folder)) is not None:
            raise ModelError(instead)
        if kind is not None and folder.manifest.task == "generate":
            raise ModelError(
                f"{folder.manifest.id}: is of task generate, which pipelines cannot run; name it "
                "in infer.models or in a pipeline's ask"
            )
        device.engines.budget.take(folder, live=arm.version is None)
        kind = kind or kind_of(folder, inspect_network(folder.network))
    checked = check_model(device.settings, device.config, folder, kind, device.user)
    for key, trouble in threshold_troubles(folder.manifest.task, *thresholds):
        raise ModelError(f"{key}: {trouble}")
    golden = "" if checked.golden is None else f", golden: {checked.golden}"
    other = unlisted(device.engines.profile, checked.choice, device.settings.engine)
    passed = checked.passed_over + ([] if other is None else [other])
    over = f" (passed over {'; '.join(passed)})" if passed else ""
    engine = engine_words(checked.engine)
    if checked.begins is not None:
        engine += f" once it is seen to be faster than {checked.begins}, which starts sooner"
    return f"{folder.manifest.id} runs on {engine}{golden}{over}"


def _notes(report: Report, lines: Iterable[str]) -> None:
    for line in lines:
        subject, _, text = line.partition(": ")
        report.line("note", subject, text)


def _sizes(report: Report, streams: Sequence[Stream]) -> None:
    if streams:
        from ..stream_size import oversized

        for name, text in oversized(streams):
            report.line("note", f"source {name}", text)


def _answers(report: Report, device: _Device) -> None:
    """Check the models that others may ask, and where."""
    from ...answers.http_listener import missing
    from ...config.answers import parse_listen
    from ...config.settings import parse_route

    if listen := device.settings.http.listen:
        endpoint = parse_listen(listen)
        if lacking := missing():
            report.line("FAIL", "http.listen", lacking)
        elif endpoint.port is not None and (taken := _taken(endpoint.port, endpoint.host)):
            report.line("note", "http.listen", taken)
        elif endpoint.port is None and not Path(endpoint.host).parent.is_dir():
            report.line("FAIL", "http.listen", f"{listen}: its folder is not there; make it")
        elif endpoint.port is None and Path(endpoint.host).is_file():
            report.line("FAIL", "http.listen", f"{listen}: is a file; name another path")
        else:
            report.line("ok", "http.listen", listen)
        if not device.settings.infer.models:
            text = "only health and metrics are answered; name models in infer.models"
            report.line("note", "http.listen", text)
    for route in device.settings.infer.models:
        for arm in parse_route(route):
            look = partial(_model, device, arm, None, (None, {}), {})
            report.tried(f"infer model {arm.reference}", look)


def _engines(report: Report, engines: DeviceEngines) -> None:
    from ...config.device_profile import default_dirs, unread_files

    for line in unread_files(default_dirs()):
        report.line("note", "profile", line)
    for choice, why in engines.lineup.absent:
        report.line("note", "engine", f"{choice.engine}:{choice.device} is passed over: {why}")
    for line in engines.lineup.notes:
        report.line("note", "profile", line)
    for choice in engines.lineup.choices:
        report.line("ok", "engine", f"{choice.engine}:{choice.device}")


def _metrics_port(report: Report, port: int) -> None:
    if find_spec("prometheus_client") is None:
        mend = f"needs prometheus-client: {sys.executable} -m pip install prometheus-client"
        report.line("FAIL", "health.metrics_port", mend)
    elif taken := _taken(port):
        report.line("note", "health.metrics_port", taken)


def _models_dir(report: Report, folder: Path) -> None:
    from ...models.store.catalog import library_trouble

    trouble = library_trouble(folder)
    if trouble is not None:
        report.line("FAIL", "models_dirs", trouble)
        return
    count = len(list(folder.glob(f"*/{MANIFEST}")))
    if count:
        report.line("ok", "models_dirs", f"{folder}, {counted(count, 'model')}")
    else:
        text = f"{folder} has no model: each is a folder in it, with a {MANIFEST}"
        report.line("note", "models_dirs", text)


def _broker(settings: Settings) -> str:
    from ...mqtt.connecting import connect
    from ...mqtt.connection import Hooks
    from ...mqtt.probe import refused_topics, retained_trouble
    from ...mqtt.topics import Topics

    topics = Topics(settings.broker.topic_root, settings.device_id)
    name = f"edge-agent-check-{settings.device_id}"
    try:
        connection = connect(settings.broker, name, hooks=Hooks())
    except BrokerError as problem:
        if not isinstance(problem.__cause__, ConnectionRefusedError):
            raise
        mend = "start a broker there, or name another one as broker.url"
        raise BrokerError(f"{problem}; {mend}") from None
    version = "5" if connection.protocol == 5 else "3.1.1"
    limit = f", packets up to {connection.max_packet} bytes" if connection.max_packet else ""
    connection.close()
    broker = replace(settings.broker, protocol=connection.protocol)  # found out, and said, once
    limits = connection.abilities.limits()
    limits += refused_topics(broker, name, topics, settings.groups)
    if connection.abilities.retain and (trouble := retained_trouble(broker, topics.reply(name))):
        limits.append(trouble)
    lacks = "".join(f"; it {words}" for words in limits)
    return f"{settings.broker.address}, MQTT {version}{limit}{lacks}"


def _server(server: Server) -> str:
    from ...rules.servers import reach

    return f"{reach(server, SERVER_SECONDS)}, {server.kind}"


def _taken(port: int, host: str = "127.0.0.1") -> str | None:
    """Return the message that a port is in use, or None if it is free."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like the server itself
        try:
            probe.bind((host, port))
        except OSError as problem:
            why = (problem.strerror or str(problem)).lower()
            return f"{port}: {why}; well, if by the agent that runs, else name another one"
    return None


def _device(settings: Settings) -> list[str]:
    """List the problems of the machine and of its certificates, worded as in health."""
    from ...core.files import check_state_folder
    from ...device.pressure import disk_problems, memory_problems
    from ...device.thermal import Thermometer
    from ...mqtt.tls import CHECK_DAYS, expiring, validities

    due = expiring(validities(settings.broker), CHECK_DAYS)
    disk = disk_problems(check_state_folder(settings.state))
    return [*Thermometer().read().problems(), *memory_problems(), *disk, *due]


def _trust(report: Report, trust: Trust) -> None:
    """Report whose models are accepted."""
    from ...models.packages.keys import TrustedKeys

    ring = TrustedKeys([Path(name) for name in trust.keys]).read()
    for problem in ring.problems:
        report.line("FAIL", "trust", f"keys: {problem}")
    if ring.keys:
        report.line("ok", "trust", f"keys: {', '.join(Path(name).name for name in ring.keys)}")
    elif not trust.allow_unsigned:
        mend = "`edge-agent keygen` makes one, [trust] keys names it"
        report.line("note", "trust", f"no key is trusted, so no model can be pushed: {mend}")
    if trust.allow_unsigned:
        report.line("note", "trust", "allow_unsigned: whoever may publish here may push a model")
