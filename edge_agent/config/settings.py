"""Settings records: section 2 of the public interface.

Plain frozen dataclasses; `load` reads them from environment, systemd credentials and TOML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from ..core.codec import storable
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.errors import UsageError
from ..core.frozen import record
from ..core.names import ALONE, READINGS, default_device_id, is_name, is_version, version_key
from ..inference.engines.registry import WantedEngine
from .address import Address, parse_url
from .answers import Http, Infer, Text
from .asks import Ask, Server
from .bounds import Flag, Milliseconds, Polygon, Seconds, Share, Threshold
from .rules import CombinedRule, Line, Rule, Zone
from .sensor_input import SensorInput

if TYPE_CHECKING:
    from ..models.manifest import InputSpec

R = TypeVar("R")

_STRICT: Any = {"extra": "forbid"}
RATES = (1e-5, 100_000.0)
"""Range in samples per second; the lowest is one a day."""
RESTART: Any = {"restart": True}
"""Metadata of a key that takes effect only at the next start."""
LIVE: Any = {"live": True}
"""Metadata of a key of a pipeline that takes effect while the pipeline runs."""
Pixels = Annotated[int, Plain(), Ge(0), Le(1_000_000)]


@storable
@record(kw_only=True)
class Broker:
    """The MQTT broker, which receives the results and delivers models."""

    __pydantic_config__ = _STRICT
    url: str | tuple[str, ...] = field(default="mqtt://localhost:1883", repr=False)
    """Several are addresses of one cluster; in an environment variable, a JSON list."""
    topic_root: str = field(default="edge", metadata=RESTART)
    """The beginning of every topic."""
    username: str | None = None
    """Has priority over the one in the URL."""
    password: str | None = field(default=None, repr=False)
    """Better given as the systemd credential `broker.password`."""
    ca_file: str | None = None
    """CA certificates for the broker's certificate; default: the system's."""
    cert_file: str | None = None
    key_file: str | None = None
    """With `cert_file`, for mutual TLS."""
    protocol: Annotated[int, Plain(), Ge(4), Le(5)] = 5
    """4 is MQTT 3.1.1; if a broker refuses 5, 4 is tried."""
    spool_s: Annotated[float, Plain(), Ge(0.25), Le(60)] = field(default=0.25, metadata=RESTART)
    """Interval between writes of results that wait for the broker: a kill loses at most this."""

    @property
    def nodes(self) -> list[Broker]:
        """The settings for each single address, in the order of the tries."""
        urls = self.url
        if isinstance(urls, str) and urls.startswith("["):
            try:
                urls = tuple(map(str, json.loads(urls)))
            except ValueError:
                urls = ()
        return [self] if isinstance(urls, str) else [replace(self, url=url) for url in urls]

    @property
    def address(self) -> Address:
        """The first address; raises UsageError if any address is invalid."""
        nodes = self.nodes
        if not nodes:
            raise UsageError('expected a URL, or a list of them: ["mqtt://a", "mqtt://b"]')
        found = [parse_url(str(node.url)) for node in nodes]
        if len({each.tls for each in found}) > 1:
            raise UsageError("some begin with mqtts:// and some do not, but they are one cluster")
        return found[0]


@storable
@record(kw_only=True)
class Health:
    """Health messages and metrics."""

    __pydantic_config__ = _STRICT
    interval_s: Annotated[float, Plain(), Ge(0.1), Le(86400)] = 10.0
    """Time between health messages."""
    metrics_port: Annotated[int, Plain(), Ge(0), Le(65535)] = 0
    """Port on the loopback address for Prometheus; 0: none."""


@storable
@record(kw_only=True)
class Trust:
    """Keys whose signatures on models are accepted over MQTT."""

    __pydantic_config__ = _STRICT
    keys: tuple[str, ...] = ()
    """*.pub files, or folders with such files."""
    allow_unsigned: Flag = False
    """If a signature is present, it must still be valid."""


@storable
@record(kw_only=True)
class Trial:
    """Checks of a pushed model before it serves."""

    __pydantic_config__ = _STRICT
    golden: Flag = True
    """Whether a model must reproduce the results in its `golden.npz`."""
    shadow_frames: Annotated[int, Plain(), Ge(0), Le(1_000_000)] = 30
    """Frames to compare with the previous version; 0: none."""
    min_agreement: Share = 0.0
    """Least share of these frames that must agree; 0: only reported."""
    max_infer_ms: Milliseconds = 0.0
    """0: no limit."""
    probation_s: Seconds = 30.0
    """How long a new version is monitored after it goes live."""
    timeout_s: Annotated[Seconds, Gt(0)] = 60.0


@storable
@record(kw_only=True)
class Batching:
    """Batches of frames from several pipelines for one model."""

    __pydantic_config__ = _STRICT
    max_batch: Annotated[int, Plain(), Ge(0), Le(256)] = 0
    """Most frames in a batch; 1: no batches; 0: as tuned on this device, or else no batches."""
    max_delay_ms: Annotated[float, Plain(), Ge(0), Le(1000)] = 2.0
    """How long the first frame of a batch waits for others."""


@storable
@record(kw_only=True)
class SecondStage:
    """A second model for the detections of the first one."""

    __pydantic_config__ = _STRICT
    name: str
    model: str
    labels: tuple[str, ...] = ()
    """Only detections with these labels; empty: all."""
    margin: Annotated[float, Plain(), Ge(0), Le(10)] = 0.0
    """Share of the box's size added on each side."""
    limit: Annotated[int, Plain(), Ge(1), Le(1000)] = 8
    threshold: Threshold | None = None
    then: tuple[SecondStage, ...] = ()
    """Further models, for the detections of this one."""

    @property
    def whole(self) -> tuple[SecondStage, ...]:
        """The stage and all its descendants, parents first."""
        return (self, *(each for stage in self.then for each in stage.whole))


@storable
@record(kw_only=True)
class Snapshots:
    """The form of a pipeline's published snapshots."""

    __pydantic_config__ = _STRICT
    width: Annotated[int, Plain(), Ge(0), Le(16384)] = 0
    """Pixels; wider pictures are scaled down; 0: as captured."""
    quality: Annotated[int, Plain(), Ge(1), Le(100)] = 80
    """JPEG quality."""
    every_s: Seconds = 0.0
    """Least time between snapshots; 0: one with every result."""


@storable
@record(kw_only=True)
class Pipeline:
    """One source and its model."""

    __pydantic_config__ = _STRICT
    name: str
    source: str = field(repr=False)
    model: str
    """"name", "name@3" or "name@3:90,name@4:10"; "readings": the values of a sensor, no model."""
    rate: Annotated[float, Plain(), Ge(RATES[0]), Le(RATES[1])] | None = field(
        default=None, metadata=LIVE
    )
    """Most results per second; None: no limit."""
    threshold: Threshold | None = field(default=None, metadata=LIVE)
    """None: the manifest's threshold."""
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 0
    """1: results and events are kept while the broker is unreachable."""
    priority: Annotated[int, Plain(), Ge(-1000), Le(1000)] = 0
    """Frames of the pipeline with the highest priority are inferred first."""
    deadline_ms: Milliseconds = 0.0
    """Older frames are dropped; 0: none are."""
    motion: Flag = False
    """Whether frames without motion are skipped."""
    roi: tuple[Pixels, ...] = (0, 0, 0, 0)
    """x1, y1, x2, y2 in source pixels; all 0: the whole frame."""
    snapshot: Flag | Snapshots = field(default=False, metadata=LIVE)
    """JPEGs with boxes on the snapshot topic; or { width = 640, quality = 70, every_s = 1 }."""
    enabled: Flag = field(default=True, metadata=LIVE)
    """False: the source is closed and nothing runs, but the pipeline is still listed."""
    share: Flag = True
    """Whether pipelines with the same `source` text share one opened and decoded source."""
    decode: Literal["auto", "software", "vaapi", "cuda", "qsv", "drm", "amf"] = "auto"
    """Decode the source on hardware if there is any, in software, or on the named hardware."""
    labels: tuple[str, ...] = field(default=(), metadata=LIVE)
    """Only these labels are results; empty: all."""
    thresholds: Mapping[str, Threshold] = field(default_factory=dict, metadata=LIVE)
    """Thresholds by label, instead of `threshold`."""
    min_box: tuple[Pixels, ...] = field(default=(0, 0), metadata=LIVE)
    """Width and height in source pixels; smaller detections are dropped."""
    masks: tuple[Polygon, ...] = field(default=(), metadata=LIVE)
    """Areas painted black before the model, the motion gate and every picture."""
    camera: Flag = field(default=True, metadata=LIVE)
    """Whether a dark, blurred, frozen or turned picture is reported."""
    track: Flag = field(default=False, metadata=LIVE)
    """Whether each object keeps one number; implied by zones, lines and rules."""
    zones: tuple[Zone, ...] = field(default=(), metadata=LIVE)
    lines: tuple[Line, ...] = field(default=(), metadata=LIVE)
    rules: tuple[Rule, ...] = field(default=(), metadata=LIVE)
    ask: tuple[Ask, ...] = field(default=(), metadata=LIVE)
    then: tuple[SecondStage, ...] = ()
    input: SensorInput | None = None
    """For a pipeline without a model."""
    units: Mapping[str, str] = field(default_factory=dict, metadata=LIVE)
    """Units by name of a value in the results; for Home Assistant and in events."""

    @property
    def has_no_model(self) -> bool:
        """Whether its results are the values of its sensor."""
        return self.model == READINGS

    @property
    def named_values(self) -> frozenset[str]:
        """Names of a sensor's values that the settings have, and that of one without a name."""
        channels = () if self.input is None else self.input.channels
        values = (rule.value for rule in self.rules if rule.value is not None)
        return frozenset((ALONE, *map(str, channels), *values))

    @property
    def tells_each_reading(self) -> bool:
        """Whether each reading of its sensor, and not only a window of them, is a result."""
        windows = self.input is not None and self.input.window is not None
        return self.has_no_model and not windows and not self.deadline_ms

    @property
    def stages(self) -> tuple[SecondStage, ...]:
        """Its second stages and all their descendants, parents first."""
        return tuple([each for stage in self.then for each in stage.whole])

    @property
    def sensor_spec(self) -> InputSpec:
        """The input from a sensor without a model."""
        return (self.input or SensorInput()).spec

    @property
    def needs_rule_engine(self) -> bool:
        """Whether it has tracks, zones, lines or rules."""
        return bool(self.track or self.zones or self.lines or self.rules)

    def has_rules_of(self, other: Pipeline) -> bool:
        """Whether *other* has the same tracks, zones, lines, rules, units and questions."""
        mine = (self.track, self.zones, self.lines, self.rules, self.units, self.ask)
        theirs = (other.track, other.zones, other.lines, other.rules, other.units, other.ask)
        return mine == theirs

    def differs_live(self, other: Pipeline) -> bool:
        """Whether *other* differs only in keys that take effect while the pipeline runs."""
        live = [item.name for item in fields(self) if item.metadata.get("live", False)]
        return replace(self, **{name: getattr(other, name) for name in live}) == other

    def decoding(self, device: str) -> str:
        """Return the decoder for its source, given the device's `decode`."""
        return device if device == "software" else self.decode

    @property
    def arms(self) -> tuple[Arm, ...]:
        return () if self.has_no_model else parse_route(self.model)


@record
class Arm:
    """One of the models that a pipeline's frames are split between."""

    name: str
    version: str | None
    """None: the live version."""
    weight: int

    @property
    def reference(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@storable
@record(kw_only=True)
class HomeAssistant:
    """Entities of this device in Home Assistant through MQTT discovery."""

    __pydantic_config__ = _STRICT
    enabled: Flag = False
    prefix: str = "homeassistant"


@storable
@record(kw_only=True)
class Evidence:
    """Pictures and clips of events in the state folder."""

    __pydantic_config__ = _STRICT
    keep_mb: Annotated[int, Plain(), Ge(0), Le(2**20)] = 0
    """Size limit; the oldest are deleted first; 0: none are kept."""
    before_s: Annotated[float, Plain(), Ge(0), Le(60)] = 5.0
    """Length of a clip before its event; always buffered in memory."""
    after_s: Annotated[float, Plain(), Ge(0), Le(300)] = 10.0


@storable
@record(kw_only=True)
class Remote:
    """The pipeline keys that the commands `set` and `configure` may change."""

    __pydantic_config__ = _STRICT
    may: tuple[str, ...] = (
        *("enabled", "rate", "threshold", "thresholds", "labels", "zones", "lines", "rules"),
        *("masks", "roi", "motion", "snapshot", "min_box"),
    )
    """Keys of a pipeline; "pipelines": pipelines may be added and removed."""


@storable
@record(kw_only=True)
class Settings:
    """The content of `config.toml`."""

    device_id: str = field(default_factory=default_device_id, metadata=RESTART)
    """Default: the hostname."""
    groups: tuple[str, ...] = ()
    """Names of groups; `push --device @lab` reaches every member."""
    profile: str = field(default="auto", metadata=RESTART)
    """"auto", or the name of a device profile."""
    engine: WantedEngine = field(default="auto", metadata=RESTART)
    """Overrides the profile's order."""
    decode: Literal["auto", "software"] = field(default="auto", metadata=RESTART)
    """Decode cameras and clips on a hardware decoder if there is one, or always in software."""
    state_dir: str = field(default="", metadata=RESTART)
    """Default: $STATE_DIRECTORY, else ~/.local/state/edge-agent."""
    models_dirs: tuple[str, ...] = field(default=(), metadata=RESTART)
    """Read-only folders that contain model folders."""
    quota_mb: Annotated[int, Plain(), Gt(0), Le(2**30)] = 2048
    """Size limit of the store of models, MiB."""
    broker: Broker = field(default_factory=Broker)
    health: Health = field(default_factory=Health)
    trust: Trust = field(default_factory=Trust)
    trial: Trial = field(default_factory=Trial)
    batching: Batching = field(default_factory=Batching, metadata=RESTART)
    homeassistant: HomeAssistant = field(default_factory=HomeAssistant)
    evidence: Evidence = field(default_factory=Evidence)
    servers: tuple[Server, ...] = ()
    remote: Remote = field(default_factory=Remote)
    infer: Infer = field(default_factory=Infer)
    http: Http = field(default_factory=Http)
    text: Text = field(default_factory=Text, metadata=RESTART)
    pipelines: tuple[Pipeline, ...] = ()
    rules: tuple[CombinedRule, ...] = ()
    """Rules over several pipelines."""
    base: Path = field(default_factory=Path.cwd, metadata={"key": False})
    """Not a key: the folder that relative paths are relative to."""

    @property
    def state(self) -> Path:
        return Path(self.state_dir)

    @property
    def urgency(self) -> dict[str, int]:
        """The highest priority of the pipelines that use a model, by the model's reference."""
        found: dict[str, int] = {}
        for pipeline in self.pipelines:
            stages = [parse_route(stage.model)[0] for stage in pipeline.stages]
            for arm in (*pipeline.arms, *stages):
                known = found.get(arm.reference, pipeline.priority)
                found[arm.reference] = max(known, pipeline.priority)
        return found

    @property
    def served(self) -> frozenset[str]:
        """The names of the models that pipelines use."""
        return frozenset(reference.partition("@")[0] for reference in self.urgency)


def keep_until_restart(new: R, present: R, prefix: str = "") -> tuple[R, list[str]]:
    """Replace settings that take effect only at the next start by their present values.

    Returns:
        The settings (or a table of them) to use now, and the keys in which *new* differs.
    """
    kept: dict[str, Any] = {}
    waiting: list[str] = []
    for item in fields(new):  # type: ignore[arg-type]  # a record
        value, now = getattr(new, item.name), getattr(present, item.name)
        if item.metadata.get("restart", False):
            kept[item.name] = now
            waiting += [prefix + item.name] if value != now else []
        elif is_dataclass(value):
            kept[item.name], more = keep_until_restart(value, now, f"{prefix}{item.name}.")
            waiting += more
    return replace(new, **kept), waiting  # type: ignore[type-var]  # a record


def parse_route(text: str) -> tuple[Arm, ...]:
    """Parse a pipeline's `model`: "face", "face@3" or "face@3:90,face@4:10"."""
    arms: list[Arm] = []
    parts = text.split(",")
    for part in parts:
        reference, colon, share = part.strip().partition(":")
        name, at, version = reference.partition("@")
        if not is_name(name) or (at and not is_version(version)):
            raise UsageError(
                f'{part.strip()!r} is not a model; write "name", "name@3" or "name@3:90,name@4:10"'
            )
        if name == READINGS:
            raise UsageError(
                f'{text!r}: "{READINGS}" is no model; alone, as model = "{READINGS}", it publishes '
                "the values of a sensor as they are"
            )
        if colon and not (re.fullmatch("[0-9]{1,9}", share) and 1 <= int(share) <= 1000):
            raise UsageError(
                f"{text!r}: a share of the frames is a whole number from 1 to 1000, as in "
                f'"a@3:90,a@4:10"; found {share!r}'
            )
        if colon and len(parts) == 1:
            raise UsageError(
                f"{text!r}: a share is for one of several models; write {reference!r}, or name "
                'another one, as in "a@3:90,a@4:10"'
            )
        if not colon and len(parts) > 1:
            raise UsageError(
                f"{text!r}: each of several models takes a share of the frames, a whole number "
                'from 1 to 1000, as in "a@3:90,a@4:10"'
            )
        arms.append(Arm(name, version if at else None, int(share) if colon else 1))
    # Versions are numbers: 1 and 1.0 are the same.
    named = {(arm.name, arm.version and version_key(arm.version)) for arm in arms}
    if len(named) != len(arms):
        raise UsageError(f"{text!r} names a model twice")
    return tuple(arms)
