"""What the operator decides: section 2 of the public interface.

The records are plain frozen dataclasses; pydantic-settings reads them from environment, systemd
credentials and TOML in `load`, and is imported only there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import unquote, urlsplit

from annotated_types import Ge, Gt, Le

from .errors import UsageError
from .names import NAME_RULE, default_device_id, is_name, is_version
from .validation import explain, nearest, read_toml

PREFIX = "EDGE_AGENT_"
PLACES = (Path("/etc/edge-agent/config.toml"), Path("edge-agent.toml"))

_STRICT: Any = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where results go and models come from."""

    __pydantic_config__ = _STRICT
    url: str = "mqtt://localhost:1883"
    topic_root: str = "edge"
    username: str | None = None
    """Wins over the URL's."""
    password: str | None = field(default=None, repr=False)
    """Better given as the systemd credential `broker.password`."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    protocol: Annotated[int, Ge(4), Le(5)] = 5
    """4 is MQTT 3.1.1; a broker that refuses 5 is tried with 4."""

    @property
    def address(self) -> Address:
        return parse_url(self.url)


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's URL taken apart."""

    host: str
    port: int
    tls: bool
    username: str | None
    password: str | None = field(repr=False)

    def __str__(self) -> str:
        """Write it without what must not be read."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How often the device says how it is."""

    __pydantic_config__ = _STRICT
    interval_s: Annotated[float, Ge(0.1), Le(86400)] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose models are accepted over MQTT."""

    __pydantic_config__ = _STRICT
    keys: tuple[str, ...] = ()
    allow_unsigned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a model goes through between arriving and serving."""

    __pydantic_config__ = _STRICT
    golden: bool = True
    shadow_frames: Annotated[int, Ge(0)] = 30
    min_agreement: Annotated[float, Ge(0), Le(1)] = 0.0
    max_infer_ms: Annotated[float, Ge(0)] = 0.0
    probation_s: Annotated[float, Ge(0)] = 30.0
    timeout_s: Annotated[float, Gt(0)] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondStage:
    """A second model on what the first one found."""

    __pydantic_config__ = _STRICT
    name: str
    model: str
    labels: tuple[str, ...] = ()
    """Only detections of these; empty: of all."""
    margin: Annotated[float, Ge(0), Le(10)] = 0.0
    """Share of the box's size added on each side."""
    limit: Annotated[int, Ge(1), Le(1000)] = 8
    threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One source through one model."""

    __pydantic_config__ = _STRICT
    name: str
    source: str
    model: str
    rate: Annotated[float, Gt(0), Le(100_000)] | None = None
    threshold: float | None = None
    qos: Annotated[int, Ge(0), Le(1)] = 0
    priority: int = 0
    deadline_ms: Annotated[float, Ge(0)] = 0.0
    motion: bool = False
    roi: tuple[Annotated[int, Ge(0)], ...] = (0, 0, 0, 0)
    snapshot: bool = False
    then: tuple[SecondStage, ...] = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return parse_route(self.model)


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the models that a pipeline's frames are split between."""

    name: str
    version: str | None
    """None: whatever is live."""
    weight: int

    @property
    def reference(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole of `config.toml`."""

    device_id: str = field(default_factory=default_device_id)
    groups: tuple[str, ...] = ()
    profile: str = "auto"
    engine: Literal["auto", "openvino", "onnxruntime"] = "auto"
    state_dir: str = ""
    models_dirs: tuple[str, ...] = ()
    quota_mb: Annotated[int, Gt(0)] = 2048
    broker: Broker = field(default_factory=Broker)
    health: Health = field(default_factory=Health)
    trust: Trust = field(default_factory=Trust)
    trial: Trial = field(default_factory=Trial)
    pipelines: tuple[Pipeline, ...] = ()
    base: Path = field(default_factory=Path.cwd)
    """Not a key: the folder that relative paths count from."""

    @property
    def state(self) -> Path:
        return Path(self.state_dir)


def find_file(given: str | None) -> Path | None:
    """Find the settings file: the one given, else the first of the usual places that is there."""
    if given is not None:
        path = Path(given)
        if not path.is_file():
            raise UsageError(f"{path}: no such settings file")
        return path
    return next((place for place in PLACES if place.is_file()), None)


def load(file: Path | None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: environment over credentials over *file* over defaults.

    Raises:
        UsageError: one line with file (or variable), key and mend.

    """
    env = os.environ if environ is None else environ
    data = read_toml(file, UsageError) if file is not None else {}
    raw = _merge(data, file, env)
    return _finish(Settings(**raw), file, env)


def _merge(data: dict[str, Any], file: Path | None, env: Mapping[str, str]) -> dict[str, Any]:
    """Let pydantic-settings lay the sources over each other and check the result."""
    from pydantic import ValidationError, create_model
    from pydantic_settings import (
        BaseSettings,
        EnvSettingsSource,
        InitSettingsSource,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
        SettingsError,
    )

    class Reader(BaseSettings):
        model_config = SettingsConfigDict(extra="forbid")

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: object, **__: object
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (
                EnvSettingsSource(settings_cls, env_prefix=PREFIX, env_nested_delimiter="__"),
                InitSettingsSource(settings_cls, init_kwargs=_credentials(env)),
                InitSettingsSource(settings_cls, init_kwargs=data),
            )

    hints = get_type_hints(Settings, include_extras=True)
    keys: dict[str, Any] = {
        item.name: (hints[item.name], _default(item))
        for item in fields(Settings)
        if item.name != "base"
    }
    for variable in env:
        if variable.startswith(PREFIX):
            key = variable.removeprefix(PREFIX).split("__")[0].lower()
            if key not in keys:
                raise UsageError(f"environment: {variable}: unknown key{nearest(key, keys)}")
    model = create_model("EdgeAgentSettings", __base__=Reader, **keys)
    try:
        read = model()
    except SettingsError as problem:
        raise UsageError(f"environment: {problem}: lists and tables are given as JSON") from None
    except ValidationError as problem:
        where = _origin(problem.errors(include_url=False)[0]["loc"], file, env)
        raise UsageError(f"{where}: {explain(problem, Settings)}") from None
    return {name: getattr(read, name) for name in keys}


def _default(item: Field[Any]) -> Any:
    from pydantic import Field as PydanticField

    if item.default is not MISSING:
        return item.default
    return PydanticField(default_factory=item.default_factory)  # type: ignore[arg-type]


def _credentials(env: Mapping[str, str]) -> dict[str, Any]:
    """Read what systemd's LoadCredential= laid out: files named by dotted keys."""
    folder = env.get("CREDENTIALS_DIRECTORY")
    found: dict[str, Any] = {}
    if not folder or not Path(folder).is_dir():
        return found
    for path in sorted(Path(folder).iterdir()):
        # Other credentials of the unit (a TLS key, say) are none of the settings' business.
        if path.name not in set(_text_keys(Settings)):
            continue
        *sections, key = path.name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = path.read_text(encoding="utf-8").rstrip("\r\n")
    return found


def _text_keys(record: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(record).items():
        if is_dataclass(hint):
            yield from _text_keys(hint, f"{prefix}{name}.")
        elif hint is str or hint == str | None:
            yield f"{prefix}{name}"


def _origin(path: tuple[int | str, ...], file: Path | None, env: Mapping[str, str]) -> str:
    """Name where a value came from: a variable, a credential, or the file."""
    words = [str(part) for part in path]
    for length in range(len(words), 0, -1):
        variable = PREFIX + "__".join(words[:length]).upper()
        match = next((name for name in env if name.upper() == variable), None)
        if match:
            return f"environment {match}"
    credential = Path(env.get("CREDENTIALS_DIRECTORY", "")) / ".".join(words)
    if env.get("CREDENTIALS_DIRECTORY") and credential.is_file():
        return f"credential {credential.name}"
    return str(file) if file is not None else "settings"


def _finish(settings: Settings, file: Path | None, env: Mapping[str, str]) -> Settings:
    """Check what single keys cannot show, and make relative paths absolute."""
    where = str(file) if file is not None else "settings"
    base = (file.parent if file is not None else Path.cwd()).absolute()

    def wrong(key: str, text: str) -> UsageError:
        return UsageError(
            f"{_origin(tuple(key.split('.')), file, env) if '[' not in key else where}: {key}: {text}"
        )

    for key, names in (("device_id", (settings.device_id,)), ("groups", settings.groups)):
        for name in names:
            if not is_name(name):
                raise wrong(key, f"{name!r} is not a name ({NAME_RULE})")
    root = settings.broker.topic_root
    if (
        not root
        or any(mark in root for mark in "+#\0")
        or root.startswith(("$", "/"))
        or root.endswith("/")
    ):
        raise wrong(
            "broker.topic_root",
            f"{root!r} cannot begin a topic; without '+', '#', '$' and outer '/'",
        )
    try:
        address = settings.broker.address
    except UsageError as problem:
        raise wrong("broker.url", str(problem)) from None
    broker = settings.broker
    if (broker.cert_file is None) != (broker.key_file is None):
        raise wrong(
            "broker.cert_file", "mutual TLS needs cert_file and key_file, found only one of them"
        )
    if not address.tls and (broker.ca_file or broker.cert_file):
        raise wrong("broker.url", "ca_file and cert_file need TLS: begin the url with mqtts://")
    seen: set[str] = set()
    for pipeline in settings.pipelines:
        key = f"pipelines[{pipeline.name}]"
        _check_pipeline(pipeline, key, wrong)
        if pipeline.name in seen:
            raise wrong(f"{key}.name", "two pipelines have this name; each needs its own")
        seen.add(pipeline.name)

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(base / Path(path).expanduser())

    state = settings.state_dir or env.get("STATE_DIRECTORY", "").split(":")[0]
    return replace(
        settings,
        base=base,
        state_dir=absolute(state or "~/.local/state/edge-agent") or "",
        models_dirs=tuple(absolute(folder) or "" for folder in settings.models_dirs),
        trust=replace(
            settings.trust, keys=tuple(absolute(key) or "" for key in settings.trust.keys)
        ),
        broker=replace(
            broker,
            ca_file=absolute(broker.ca_file),
            cert_file=absolute(broker.cert_file),
            key_file=absolute(broker.key_file),
        ),
    )


def _check_pipeline(pipeline: Pipeline, key: str, wrong: Any) -> None:
    if not is_name(pipeline.name):
        raise wrong(f"{key}.name", f"{pipeline.name!r} is not a name ({NAME_RULE})")
    try:
        parse_route(pipeline.model)
        for stage in pipeline.then:
            if not is_name(stage.name):
                raise UsageError(f"then.name {stage.name!r} is not a name ({NAME_RULE})")
            if len(parse_route(stage.model)) != 1:
                raise UsageError(f"then[{stage.name}].model: one model, found {stage.model!r}")
    except UsageError as problem:
        raise wrong(f"{key}.model", str(problem)) from None
    if len({stage.name for stage in pipeline.then}) != len(pipeline.then):
        raise wrong(f"{key}.then", "two second stages have the same name")
    x1, y1, x2, y2 = pipeline.roi if len(pipeline.roi) == 4 else (1, 1, 0, 0)
    if (any(pipeline.roi) and (x2 <= x1 or y2 <= y1)) or len(pipeline.roi) != 4:
        raise wrong(
            f"{key}.roi",
            f"expected [x1, y1, x2, y2] with x1 < x2 and y1 < y2, found {list(pipeline.roi)}",
        )


def parse_route(text: str) -> tuple[Arm, ...]:
    """Read what a pipeline's `model` names: "face", "face@3" or "face@3:90,face@4:10".

    Raises:
        UsageError: it names nothing that can be split frames between.

    """
    arms: list[Arm] = []
    parts = text.split(",")
    for part in parts:
        reference, colon, share = part.strip().partition(":")
        name, at, version = reference.partition("@")
        if not is_name(name) or (at and not is_version(version)):
            raise UsageError(
                f'{part.strip()!r} is not a model; write "name", "name@3" or "name@3:90,name@4:10"'
            )
        if bool(colon) != (len(parts) > 1) or (
            colon and not (share.isdecimal() and 0 < int(share) <= 1000)
        ):
            raise UsageError(
                f'{text!r}: each of several models takes a share of the frames, as in "a@3:90,a@4:10"'
            )
        arms.append(Arm(name, version if at else None, int(share) if colon else 1))
    if len({arm.reference for arm in arms}) != len(arms):
        raise UsageError(f"{text!r} names a model twice")
    return tuple(arms)


def parse_url(url: str) -> Address:
    """Take apart mqtt://[user[:password]@]host[:port] or mqtts://…

    Raises:
        UsageError: without repeating a password that may stand in the text.

    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("the port is not a number from 1 to 65535") from None
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or port == 0:
        raise UsageError("expected mqtt://[user[:password]@]host[:port] or mqtts://…")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise UsageError("expected nothing after host and port")
    tls = parts.scheme == "mqtts"
    return Address(
        parts.hostname,
        port or (8883 if tls else 1883),
        tls,
        unquote(parts.username) if parts.username is not None else None,
        unquote(parts.password) if parts.password is not None else None,
    )
