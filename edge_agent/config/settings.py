"""Records of the settings: section 2 of the public interface.

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
from ..core.names import READINGS, default_device_id, is_name, is_version, version_key
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
"""Samples a second; the least is one a day."""
RESTART: Any = {"restart": True}
"""Metadata of a key that takes effect at the next start only."""
LIVE: Any = {"live": True}
"""Metadata of a key of a pipeline that takes effect while the pipeline runs."""
Pixels = Annotated[int, Plain(), Ge(0), Le(1_000_000)]


@storable
@record(kw_only=True)
class Broker:
    """The MQTT broker: results go there, models come from there."""

    __pydantic_config__ = _STRICT
    url: str | tuple[str, ...] = field(default="mqtt://localhost:1883", repr=False)
    """Several are addresses of one cluster; as text, in the environment say, a JSON list."""
    topic_root: str = field(default="edge", metadata=RESTART)
    """How every topic begins."""
    username: str | None = None
    """Wins over the URL's."""
    password: str | None = field(default=None, repr=False)
    """Better given as the systemd credential `broker.password`."""
    ca_file: str | None = None
    """Certificates that sign the broker's; default: the system's."""
    cert_file: str | None = None
    key_file: str | None = None
    """With `cert_file`, for mutual TLS."""
    protocol: Annotated[int, Plain(), Ge(4), Le(5)] = 5
    """4 is MQTT 3.1.1; a broker that refuses 5 is tried with 4."""
    spool_s: Annotated[float, Plain(), Ge(0.25), Le(60)] = field(default=0.25, metadata=RESTART)
    """Between two writes of results that wait for the broker: what a kill may cost of them."""

    @property
    def nodes(self) -> list[Broker]:
        """The settings with one address each, in the order in which they are tried."""
        urls = self.url
        if isinstance(urls, str) and urls.startswith("["):
            try:
                urls = tuple(map(str, json.loads(urls)))
            except ValueError:
                urls = ()
        return [self] if isinstance(urls, str) else [replace(self, url=url) for url in urls]

    @property
    def address(self) -> Address:
        """The first address; raises UsageError where one is wrong."""
        nodes = self.nodes
        if not nodes:
            raise UsageError('expected a URL, or a list of them: ["mqtt://a", "mqtt://b"]')
        found = [parse_url(str(node.url)) for node in nodes]
        if len({each.tls for each in found}) > 1:
            raise UsageError("some begin with mqtts:// and some do not; they are one cluster's")
        return found[0]


@storable
@record(kw_only=True)
class Health:
    """Health messages and metrics."""

    __pydantic_config__ = _STRICT
    interval_s: Annotated[float, Plain(), Ge(0.1), Le(86400)] = 10.0
    """Between two health messages."""
    metrics_port: Annotated[int, Plain(), Ge(0), Le(65535)] = 0
    """Of loopback, for Prometheus; 0: none."""


@storable
@record(kw_only=True)
class Trust:
    """Keys whose signatures on models are accepted over MQTT."""

    __pydantic_config__ = _STRICT
    keys: tuple[str, ...] = ()
    """*.pub files, or folders of them."""
    allow_unsigned: Flag = False
    """A signature that is present must verify all the same."""


@storable
@record(kw_only=True)
class Trial:
    """Checks of a pushed model before it serves."""

    __pydantic_config__ = _STRICT
    golden: Flag = True
    """Whether `golden.npz` of a model has to hold."""
    shadow_frames: Annotated[int, Plain(), Ge(0), Le(1_000_000)] = 30
    """Beside the version before; 0: none."""
    min_agreement: Share = 0.0
    """Of these frames; 0: only reported."""
    max_infer_ms: Milliseconds = 0.0
    """0: no bound."""
    probation_s: Seconds = 30.0
    """How long a new version is watched once it is live."""
    timeout_s: Annotated[Seconds, Gt(0)] = 60.0


@storable
@record(kw_only=True)
class Batching:
    """Batches of frames from several pipelines through one model."""

    __pydantic_config__ = _STRICT
    max_batch: Annotated[int, Plain(), Ge(0), Le(256)] = 0
    """0: as the tune of this device says, else one by one; 1: one by one; more: up to so many."""
    max_delay_ms: Annotated[float, Plain(), Ge(0), Le(1000)] = 2.0
    """How long the first of them waits for others."""


@storable
@record(kw_only=True)
class SecondStage:
    """A second model on the detections of the first one."""

    __pydantic_config__ = _STRICT
    name: str
    model: str
    labels: tuple[str, ...] = ()
    """Only detections of these; empty: of all."""
    margin: Annotated[float, Plain(), Ge(0), Le(10)] = 0.0
    """Share of the box's size added on each side."""
    limit: Annotated[int, Plain(), Ge(1), Le(1000)] = 8
    threshold: Threshold | None = None
    then: tuple[SecondStage, ...] = ()
    """Further models, on what this one finds."""

    @property
    def whole(self) -> tuple[SecondStage, ...]:
        """The stage itself and all stages below it, parents first."""
        return (self, *(each for stage in self.then for each in stage.whole))


@storable
@record(kw_only=True)
class Snapshots:
    """The form of a pipeline's published snapshots."""

    __pydantic_config__ = _STRICT
    width: Annotated[int, Plain(), Ge(0), Le(16384)] = 0
    """Pixels; wider pictures are made smaller; 0: as captured."""
    quality: Annotated[int, Plain(), Ge(1), Le(100)] = 80
    """Of the JPEG."""
    every_s: Seconds = 0.0
    """Least time between two of them; 0: one with every result."""


@storable
@record(kw_only=True)
class Pipeline:
    """One source through one model."""

    __pydantic_config__ = _STRICT
    name: str
    source: str = field(repr=False)
    model: str
    """As "name", "name@3" or "name@3:90,name@4:10"; "readings": none, of a sensor."""
    rate: Annotated[float, Plain(), Ge(RATES[0]), Le(RATES[1])] | None = field(
        default=None, metadata=LIVE
    )
    """Most results a second; None: as fast as it goes."""
    threshold: Threshold | None = field(default=None, metadata=LIVE)
    """None: the manifest's."""
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 0
    """1: results and events survive a broker that is away."""
    priority: Annotated[int, Plain(), Ge(-1000), Le(1000)] = 0
    """Whose frames go first."""
    deadline_ms: Milliseconds = 0.0
    """A frame that is older is dropped; 0: none is."""
    motion: Flag = False
    """Whether frames in which nothing moves are left out."""
    roi: tuple[Pixels, ...] = (0, 0, 0, 0)
    """x1, y1, x2, y2 in source pixels; all 0: the whole frame."""
    snapshot: Flag | Snapshots = field(default=False, metadata=LIVE)
    """JPEGs with boxes on the snapshot topic; or { width = 640, quality = 70, every_s = 1 }."""
    enabled: Flag = field(default=True, metadata=LIVE)
    """False: the source is closed and nothing runs; the pipeline stays listed."""
    share: Flag = True
    """Whether pipelines whose `source` has the same text open and decode it once."""
    decode: Literal["auto", "software", "vaapi", "cuda", "qsv", "drm", "amf"] = "auto"
    """Of its source: on hardware where there is any, never, or on hardware of this name."""
    labels: tuple[str, ...] = field(default=(), metadata=LIVE)
    """Only these are results; empty: all."""
    thresholds: Mapping[str, Threshold] = field(default_factory=dict, metadata=LIVE)
    """By label, instead of `threshold`."""
    min_box: tuple[Pixels, ...] = field(default=(0, 0), metadata=LIVE)
    """Width and height in source pixels; detections that are smaller are left out."""
    masks: tuple[Polygon, ...] = field(default=(), metadata=LIVE)
    """Black before model, motion gate and every picture."""
    camera: Flag = field(default=True, metadata=LIVE)
    """Whether it is said when its picture is dark, blurred, frozen or turned."""
    track: Flag = field(default=False, metadata=LIVE)
    """Detections get a number that stays with an object; zones, lines and rules imply it."""
    zones: tuple[Zone, ...] = field(default=(), metadata=LIVE)
    lines: tuple[Line, ...] = field(default=(), metadata=LIVE)
    rules: tuple[Rule, ...] = field(default=(), metadata=LIVE)
    ask: tuple[Ask, ...] = field(default=(), metadata=LIVE)
    then: tuple[SecondStage, ...] = ()
    input: SensorInput | None = None
    """Of a pipeline without a model."""
    units: Mapping[str, str] = field(default_factory=dict, metadata=LIVE)
    """By name of a value in its results; for Home Assistant."""

    @property
    def has_no_model(self) -> bool:
        """Whether the values of its sensor are its results."""
        return self.model == READINGS

    @property
    def stages(self) -> tuple[SecondStage, ...]:
        """Its second stages and all below them, each before those below it."""
        return tuple([each for stage in self.then for each in stage.whole])

    @property
    def sensor_spec(self) -> InputSpec:
        """The input that is taken from a sensor without a model."""
        return (self.input or SensorInput()).spec

    @property
    def needs_rule_engine(self) -> bool:
        """Whether it has tracks, zones, lines or rules."""
        return bool(self.track or self.zones or self.lines or self.rules)

    def has_rules_of(self, other: Pipeline) -> bool:
        """Whether *other* has the same tracks, zones, lines and rules, and asks about the same."""
        mine = (self.track, self.zones, self.lines, self.rules, self.ask)
        return mine == (other.track, other.zones, other.lines, other.rules, other.ask)

    def differs_live(self, other: Pipeline) -> bool:
        """Whether *other* differs only in keys that take effect while the pipeline runs."""
        live = [item.name for item in fields(self) if item.metadata.get("live", False)]
        return replace(self, **{name: getattr(other, name) for name in live}) == other

    def decoding(self, device: str) -> str:
        """Return the decoder of its source, given the `decode` of the device."""
        return device if device == "software" else self.decode

    @property
    def arms(self) -> tuple[Arm, ...]:
        return () if self.has_no_model else parse_route(self.model)


@record
class Arm:
    """One of the models that a pipeline's frames are split between."""

    name: str
    version: str | None
    """None: whatever is live."""
    weight: int

    @property
    def reference(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@storable
@record(kw_only=True)
class HomeAssistant:
    """Entities of this device in Home Assistant, by its MQTT discovery."""

    __pydantic_config__ = _STRICT
    enabled: Flag = False
    prefix: str = "homeassistant"


@storable
@record(kw_only=True)
class Evidence:
    """Pictures and clips of events, kept in the state folder."""

    __pydantic_config__ = _STRICT
    keep_mb: Annotated[int, Plain(), Ge(0), Le(2**20)] = 0
    """The oldest go first; 0: none is kept."""
    before_s: Annotated[float, Plain(), Ge(0), Le(60)] = 5.0
    """Of a clip, before its event; kept in memory all along."""
    after_s: Annotated[float, Plain(), Ge(0), Le(300)] = 10.0


@storable
@record(kw_only=True)
class Remote:
    """The keys of pipelines that the commands `set` and `configure` may change."""

    __pydantic_config__ = _STRICT
    may: tuple[str, ...] = (
        *("enabled", "rate", "threshold", "thresholds", "labels", "zones", "lines", "rules"),
        *("masks", "roi", "motion", "snapshot", "min_box"),
    )
    """Keys of a pipeline; "pipelines": that there are others."""


@storable
@record(kw_only=True)
class Settings:
    """The content of `config.toml`."""

    device_id: str = field(default_factory=default_device_id, metadata=RESTART)
    """Default: the hostname."""
    groups: tuple[str, ...] = ()
    """Names; `push --device @lab` reaches every member."""
    profile: str = field(default="auto", metadata=RESTART)
    """Or the name of a device profile."""
    engine: WantedEngine = field(default="auto", metadata=RESTART)
    """Overrides the profile's order."""
    decode: Literal["auto", "software"] = field(default="auto", metadata=RESTART)
    """Of cameras and clips: on a hardware decoder where there is one, or never."""
    state_dir: str = field(default="", metadata=RESTART)
    """Default: $STATE_DIRECTORY, else ~/.local/state/edge-agent."""
    models_dirs: tuple[str, ...] = field(default=(), metadata=RESTART)
    """Read-only folders of model folders."""
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
    """Over pipelines."""
    base: Path = field(default_factory=Path.cwd, metadata={"key": False})
    """Not a key: the folder that relative paths count from."""

    @property
    def state(self) -> Path:
        return Path(self.state_dir)

    @property
    def urgency(self) -> dict[str, int]:
        """By reference of a model: the highest priority of the pipelines that use it."""
        found: dict[str, int] = {}
        for pipeline in self.pipelines:
            stages = [parse_route(stage.model)[0] for stage in pipeline.stages]
            for arm in (*pipeline.arms, *stages):
                known = found.get(arm.reference, pipeline.priority)
                found[arm.reference] = max(known, pipeline.priority)
        return found


def keep_until_restart(new: R, present: R, prefix: str = "") -> tuple[R, list[str]]:
    """Replace settings that take effect only at the next start by their present values.

    Returns:
        The settings, or a table of them, to go on with, and the keys in which *new* differs.
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
    # Versions are numbers: 1 and 1.0 are the same one.
    named = {(arm.name, arm.version and version_key(arm.version)) for arm in arms}
    if len(named) != len(arms):
        raise UsageError(f"{text!r} names a model twice")
    return tuple(arms)
