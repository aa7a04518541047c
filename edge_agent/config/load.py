"""Loader of the settings: environment over systemd credentials over file over defaults.

The records are in `settings`. Every error is one line with the file or variable that the value came
from, the key, and the fix.

The layers are read and merged here; pydantic-settings checks the result, but only if it may be
wrong: importing it takes longer than loading a small model. Its own sources (tried with 2.16) pass
numbers and flags as text, which strict types refuse, ignore misspelled variables silently, fail on
a credential of the unit that is not text, such as a TLS key, and do not know which variable a wrong
value came from.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..core.errors import UsageError
from ..core.files import FAULT_VARIABLE
from ..core.frozen import record
from ..core.json_text import HalfLetterError, read_json
from ..core.names import NAME_RULE, READINGS, RESERVED_GROUPS, is_name, name_problems
from ..core.plain_file import open_plain_file, read_secret
from ..core.plain_record import DoubtError, is_key, read_plain
from ..core.schema import explain, merged, nearest, read_toml
from ..sources.spec import parse_source
from .answer_checks import answer_problems
from .asks import ask_problems, server_problems
from .locations import PLACES, default_state
from .sensor_input import sensor_problems
from .settings import Pipeline, SecondStage, Settings, parse_route
from .shapes import MOST_SHAPES, polygon_trouble
from .templates import topic_trouble

PREFIX = "EDGE_AGENT_"
PAGE_VARIABLE = "EDGE_AGENT_UI_PASSWORD"
"""Variable of the operator's page, read by its command; not a setting."""
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def find_file(given: str | None) -> Path | None:
    """Find the settings file: the given one, or the first that exists in the default places."""
    for path in map(Path, PLACES) if given is None else (Path(given),):
        try:
            if path.is_file():
                return path
        except OSError as problem:
            raise UsageError(f"{path}: cannot be read: {problem.strerror}") from None
    if given is not None:
        raise UsageError(f"{given}: {_why_no_file(Path(given))}")
    return None


def _why_no_file(path: Path) -> str:
    try:
        path.stat()
    except FileNotFoundError:
        return "no such settings file"
    except OSError as problem:  # such as links that lead in a circle
        return f"cannot be read: {problem.strerror}"
    return "is not a file"


def load(
    file: Path | None,
    environ: Mapping[str, str] | None = None,
    change: Callable[[Settings], Settings] = lambda settings: settings,
) -> Settings:
    """Read the settings; without *file*, only from environment and credentials.

    *change* is what the command line changes of them, before they are checked.
    """
    env = os.environ if environ is None else environ
    written, origins = _read(file, env)
    settings = change(_absolute(written, origins, env))
    check(settings, origins)
    return settings


def as_written(file: Path) -> Settings:
    """Read the settings with all paths as they are written; only types are checked."""
    return replace(_read(file, os.environ)[0], base=Path())


def _read(file: Path | None, env: Mapping[str, str]) -> tuple[Settings, Origins]:
    layers = [_environment(env), _credentials(env)]
    if file is not None:
        layers.append(_Layer(read_toml(file, UsageError)))
    origins = Origins(file, layers)
    given = merged(*(layer.values for layer in layers))
    _add_keys(given, env, own="servers" in layers[0].values)
    return _validated(given, origins), origins


@record
class _Layer:
    """Settings of one source, and the variable or credential of each key; empty for the file."""

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[tuple[str, ...], str] = field(default_factory=dict)

    def put(self, path: tuple[str, ...], value: Any, name: str) -> None:
        place = self.values
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place[path[-1]] = value
        self.names[path] = name


@record
class Origins:
    """The sources of settings, for errors."""

    file: Path | None
    layers: list[_Layer]

    def source_of(self, *path: int | str) -> str:
        """Return the variable, credential or file that a key came from."""
        for layer in self.layers:
            for length in range(len(path), 0, -1):
                name = layer.names.get(tuple(str(step) for step in path[:length]))
                if name is not None:
                    return name
        return str(self.file) if self.file is not None else "settings"

    def error(self, text: str, *path: int | str, key: str = "") -> UsageError:
        """Return an error about a key; *key* is shown instead of the path."""
        return UsageError(f"{self.source_of(*path)}: {key or '.'.join(map(str, path))}: {text}")


def _environment(env: Mapping[str, str]) -> _Layer:
    """Read the environment variables: text for single values, JSON for lists and tables."""
    layer = _Layer()
    # Shorter names first, so that EDGE_AGENT_BROKER__URL wins over its key in EDGE_AGENT_BROKER.
    for variable in sorted(env, key=lambda name: (name.count("__"), name)):
        if not variable.startswith(PREFIX) or variable in {FAULT_VARIABLE, PAGE_VARIABLE}:
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        hint = _hint(path)
        if hint is None:
            known = [PREFIX + "__".join(path).upper() for path in _paths(Settings)]
            raise UsageError(
                f"environment {variable}: there is no such setting{nearest(variable, known)}"
            )
        value: Any = env[variable]
        if not _is_single(hint):
            try:
                value = read_json(value)
            except HalfLetterError as problem:
                raise UsageError(f"environment {variable}: {problem}") from None
            except (ValueError, RecursionError):
                raise UsageError(
                    f"environment {variable}: not valid JSON; a list is written "
                    '["a", "b"], a table {"key": "value"}'
                ) from None
            if is_dataclass(hint) and not isinstance(value, dict):
                raise UsageError(f"environment {variable}: expected a table as JSON object")
        layer.put(path, _read_single(hint, value), f"environment {variable}")
    return layer


def _credentials(env: Mapping[str, str]) -> _Layer:
    """Read the files that systemd's LoadCredential= provides, named by dotted keys."""
    layer = _Layer()
    for path in _paths(Settings):
        name = ".".join(path)
        hint = _hint(path)
        # Other credentials of the unit, such as a TLS key, are not settings.
        if _is_single(hint) and (text := _credential(env, name)) is not None:
            layer.put(path, _read_single(hint, text), f"credential {name}")
    return layer


def _credential(env: Mapping[str, str], name: str) -> str | None:
    """Return the content of a credential, or None if there is none."""
    folder = env.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    try:
        return read_secret(Path(folder) / name)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise UsageError(f"credential {name}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"credential {name}: is not UTF-8 text") from None


def _add_keys(given: dict[str, Any], env: Mapping[str, str], *, own: bool) -> None:
    """Add the keys of servers from credentials; *own*: keys from the environment have priority."""
    servers = given.get("servers")
    if not isinstance(servers, list) or not env.get("CREDENTIALS_DIRECTORY"):
        return
    given["servers"] = [*servers]
    for index, server in enumerate(servers):
        name = server.get("name") if isinstance(server, dict) else None
        if not (isinstance(name, str) and is_name(name)) or (own and "key" in server):
            continue
        key = _credential(env, f"servers.{name}.key")
        if key is not None:
            given["servers"][index] = {**server, "key": key}


def _paths(record: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key that is not inside a list."""
    hints = get_type_hints(record, include_extras=True)
    for item in fields(record):
        if not is_key(item):
            continue
        yield (*above, item.name)
        if is_dataclass(hints[item.name]):
            yield from _paths(hints[item.name], *above, item.name)


def _hint(path: tuple[str, ...]) -> Any:
    """Return the type of a key, or None if there is no such key."""
    hint: Any = Settings
    for step in path:
        known = {item.name for item in fields(hint) if is_key(item)} if is_dataclass(hint) else ()
        if step not in known:
            return None
        hint = get_type_hints(hint, include_extras=True)[step]
    return hint


def _is_single(hint: Any) -> bool:
    """Whether values of this type are written as plain text, not as JSON."""
    if get_origin(hint) is Annotated:
        return _is_single(get_args(hint)[0])
    if get_origin(hint) in {Union, types.UnionType}:
        return str in get_args(hint) or all(_is_single(part) for part in get_args(hint))
    return hint in {str, int, float, bool, types.NoneType} or get_origin(hint) is Literal


def _read_single(hint: Any, value: Any) -> Any:
    """Read a boolean or number from the text of a variable; leave other values unchanged."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if not isinstance(value, str):
        return value
    if hint is bool:
        return _FLAGS.get(value.strip().lower(), value)
    try:
        return hint(value) if hint in {int, float} else value
    except ValueError:
        return value  # refused by the check, with what was expected


def _validated(given: dict[str, Any], origins: Origins) -> Settings:
    """Check the merged layers; errors come from pydantic-settings."""
    try:
        return read_plain(Settings, given)
    except DoubtError:
        pass
    from pydantic import ValidationError, create_model
    from pydantic_settings import (
        BaseSettings,
        InitSettingsSource,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
    )

    class Reader(BaseSettings):
        model_config = SettingsConfigDict(extra="forbid", validate_default=False)

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: object, **__: object
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (InitSettingsSource(settings_cls, init_kwargs=given),)

    hints = get_type_hints(Settings, include_extras=True)
    keys: dict[str, Any] = {
        item.name: (hints[item.name], None) for item in fields(Settings) if is_key(item)
    }
    model = create_model("EdgeAgentSettings", __base__=Reader, **keys)
    try:
        read = model()
    except ValidationError as problem:
        where = origins.source_of(*problem.errors(include_url=False)[0]["loc"])
        raise UsageError(f"{where}: {explain(problem, Settings, given)}") from None
    return Settings(**{name: getattr(read, name) for name in read.model_fields_set})


def check(settings: Settings, origins: Origins) -> None:  # noqa: C901, PLR0912 - one check after the other
    """Check conditions that depend on several keys or on the machine."""
    error = origins.error
    for key, names in (("device_id", (settings.device_id,)), ("groups", settings.groups)):
        for name in names:
            if not is_name(name):
                raise error(f"{name!r} is not a name ({NAME_RULE})", key)
    for group in RESERVED_GROUPS.intersection(settings.groups):
        raise error(f"{group!r} is no name for a group: topics of roll-outs have it", "groups")
    broker, prefix = settings.broker, settings.homeassistant.prefix
    begins = (("homeassistant", "prefix", prefix), ("broker", "topic_root", broker.topic_root))
    for table, key, text in begins:
        if re.fullmatch(r"[^+#\0$/]([^+#\0]*[^+#\0/])?", text, re.DOTALL) is None:
            mend = "write it without '+', '#', '$' and '/' at its ends"
            raise error(f"{text!r} cannot be the beginning of a topic; {mend}", table, key)
    below = topic_trouble(prefix, broker.topic_root)
    if below is not None:
        raise error(f'{below}; it is usually "homeassistant"', "homeassistant", "prefix")
    try:
        address = broker.address
    except UsageError as problem:
        raise error(str(problem), "broker", "url") from None
    if (broker.cert_file is None) != (broker.key_file is None):
        given, other = ("cert_file", "key_file")[:: 1 if broker.cert_file is not None else -1]
        raise error(f"mutual TLS needs {other} too", "broker", given)
    for key in ("ca_file", "cert_file", "key_file"):
        path = getattr(broker, key)
        if path is not None and not address.tls:
            raise error("needs TLS: begin broker.url with mqtts://", "broker", key)
        if path is not None and (trouble := _unreadable(Path(path))):
            raise error(f"{path}: {trouble}", "broker", key)
    if settings.profile != "auto":
        from .device_profile import default_dirs

        stems = {path.stem for folder in default_dirs() for path in folder.glob("*.toml")}
        known = {stem for stem in stems if is_name(stem)}
        if settings.profile not in known:
            hint = nearest(settings.profile, [*known, "auto"])
            raise error(f"there is no profile {settings.profile!r}{hint}", "profile")
    if not _may_be_folder(settings.state):
        raise error(f"{settings.state}: is a file, expected a folder", "state_dir")
    for key, text in server_problems(settings.servers):
        raise error(text, "servers", key=key)
    for table, key, text in answer_problems(settings.infer, settings.http):
        raise error(text, table, key)
    _check_pipelines(settings, origins)


def _check_pipelines(settings: Settings, origins: Origins) -> None:
    error = origins.error
    changeable = [*(item.name for item in fields(Pipeline) if item.name != "name"), "pipelines"]
    for key in settings.remote.may:
        if key not in changeable:
            raise error(f"there is no {key!r}{nearest(key, changeable)}", "remote", "may")
    names = [pipeline.name for pipeline in settings.pipelines]
    for key, text in name_problems("pipelines", names, "two pipelines have"):
        raise error(text, "pipelines", key=key)
    for pipeline in settings.pipelines:
        for key, text in _problems(pipeline, settings):
            raise error(text, "pipelines", key=f"pipelines[{pipeline.name}].{key}")
    if settings.rules:
        from .rule_checks import combined_problems

        for key, text in combined_problems(settings):
            raise error(text, "rules", key=key)


def _unreadable(path: Path) -> str | None:
    """Return why a file cannot be read, or None if it can."""
    try:
        open_plain_file(path).close()
    except OSError as problem:
        return problem.strerror
    return None


def _may_be_folder(path: Path) -> bool:
    """Whether *path* is a folder or absent; unknown counts as yes: the store checks again."""
    try:
        return path.is_dir() or not path.exists()
    except OSError:
        return True


def _problems(pipeline: Pipeline, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the problems of a pipeline: key and error text."""
    given = None
    try:
        source = parse_source(pipeline.source, settings.base)
    except UsageError as problem:
        yield "source", str(problem).removeprefix("source ")
    else:
        given = source.topic
        trouble = None if given is None else _own_topic(given, settings)
        if pipeline.has_no_model and source.kind == "picture":
            found = f"{source.redacted} gives pictures, which need a model"
            yield "model", f'"{READINGS}" is for sensors; {found}'
        if trouble is not None:
            yield "source", f"{source.redacted!r}: {trouble}"
    yield from sensor_problems(pipeline.input, has_no_model=pipeline.has_no_model)
    try:
        if not pipeline.has_no_model:
            parse_route(pipeline.model)
    except UsageError as problem:
        yield "model", str(problem)
    x1, y1, x2, y2 = pipeline.roi if len(pipeline.roi) == 4 else (1, 1, 0, 0)
    if any((x1, y1, x2, y2)) and (x2 <= x1 or y2 <= y1):
        wanted = "expected [x1, y1, x2, y2] with x1 < x2 and y1 < y2"
        yield "roi", f"{wanted}, found {list(pipeline.roi)}"
    yield from _filter_problems(pipeline)
    if pipeline.needs_rule_engine:
        from .rule_checks import rule_problems

        yield from rule_problems(pipeline, settings.broker.topic_root, settings.device_id, given)
    yield from ask_problems(pipeline.ask, [rule.name for rule in pipeline.rules], settings.servers)
    yield from _stage_problems(pipeline.then)


def _stage_problems(stages: Sequence[SecondStage], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the problems of second stages that receive the same detections."""
    names = [stage.name for stage in stages]
    yield from name_problems(f"{above}then", names, "two second stages have")
    for stage in stages:
        key = f"{above}then[{stage.name}]"
        try:
            if len(parse_route(stage.model)) != 1:
                yield f"{key}.model", f"expected one model, found {stage.model!r}"
        except UsageError as problem:
            yield f"{key}.model", str(problem)
        yield from _stage_problems(stage.then, f"{key}.")


def _own_topic(topic: str, settings: Settings) -> str | None:
    """Return why a topic cannot be a source: it is this device's own; None: it can.

    The device's results would come back as readings, and requests to it would be read as readings
    before the inbox gets them. Topics of other devices are allowed.
    """
    root, device = settings.broker.topic_root, settings.device_id
    inboxes = [f"{root}/@{group}/in" for group in settings.groups]
    found = f"{settings.homeassistant.prefix}/device/edge-agent_{device}"
    for own in (f"{root}/{device}", found, *inboxes):
        if topic == own or topic.startswith(f"{own}/"):
            return (
                f"is this device's own, below '{own}/'; "
                "name the topic of a sensor or of another device"
            )
    return None


def _filter_problems(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield the problems of a pipeline's filters: key and error text."""
    if len(pipeline.min_box) != 2:
        yield "min_box", f"expected [width, height], found {list(pipeline.min_box)}"
    if len(pipeline.masks) > MOST_SHAPES:
        yield "masks", f"expected at most {MOST_SHAPES} polygons, found {len(pipeline.masks)}"
    for number, polygon in enumerate(pipeline.masks, 1):
        trouble = polygon_trouble(polygon)
        if trouble is not None:
            yield "masks", f"polygon {number}: {trouble}"


def _absolute(settings: Settings, origins: Origins, env: Mapping[str, str]) -> Settings:
    """Resolve relative paths against the folder of the settings file."""
    base = (origins.file.parent if origins.file is not None else Path.cwd()).absolute()

    def absolute(path: str, *key: str) -> str:
        if not path or "\0" in path:
            raise origins.error(f"expected a path, found {path!r}", *key)
        try:
            return str(base / Path(path).expanduser())
        except RuntimeError:
            raise origins.error(f"there is no such user's home: {path!r}", *key) from None

    tls: dict[str, Any] = {
        key: absolute(path, "broker", key)
        for key in ("ca_file", "cert_file", "key_file")
        if (path := getattr(settings.broker, key)) is not None
    }
    file = None if origins.file is None else str(origins.file)
    state = settings.state_dir or default_state(file, env)
    return replace(
        settings,
        base=base,
        state_dir=absolute(state, "state_dir"),
        models_dirs=tuple(absolute(path, "models_dirs") for path in settings.models_dirs),
        trust=replace(
            settings.trust,
            keys=tuple(absolute(path, "trust", "keys") for path in settings.trust.keys),
        ),
        servers=tuple(
            replace(server, ca_file=server.ca_file and absolute(server.ca_file, "servers"))
            for server in settings.servers
        ),
        broker=replace(settings.broker, **tls),
    )
