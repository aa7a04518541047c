"""Changes that `configure` makes to pipelines: merge patches, checked like the settings file.

Changes are stored by pipeline and key, each key as a whole: the settings file may change as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..core.errors import RequestError, UsageError
from ..core.frozen import record
from ..core.names import NAME_RULE, is_name
from ..core.parameters import shown
from ..core.text import HIDDEN, redact, redact_urls
from .settings import Pipeline, Settings

Table = dict[str, Any]
"""The keys of a pipeline except its name, as JSON, without those that are None."""
Changes = Mapping[str, Mapping[str, Any] | None]
"""Changed keys by pipeline; a value of None: the default; None for all keys: it is removed."""
KEYS = tuple(item.name for item in fields(Pipeline) if item.name != "name")
PIPELINES = "pipelines"
"""In `[remote] may`: pipelines may be added and removed."""
_URLS = frozenset({"source", "http"})


def plain(value: Any) -> Any:
    """Return a record or value as JSON."""
    if is_dataclass(value):
        found = ((item.name, getattr(value, item.name)) for item in fields(value))
        return {name: plain(each) for name, each in found if each is not None}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


def table(pipeline: Pipeline) -> Table:
    """Return all keys of a pipeline except its name."""
    made: Table = plain(pipeline)
    del made["name"]
    return made


def described(pipelines: Collection[Pipeline]) -> dict[str, Table]:
    """Return the pipelines as published, without possible secrets."""
    return {each.name: _hidden(table(each)) for each in pipelines}


def digest(pipelines: Mapping[str, Table]) -> str:
    """Return the hash of pipelines as published."""
    return hashlib.sha256(json.dumps(pipelines, sort_keys=True).encode()).hexdigest()[:32]


def patched(settings: Settings, changes: Changes) -> Settings:
    """Return settings with changes applied, checked like the settings file."""
    from ..core.schema import build
    from .load import Origins, check

    pipelines = {each.name: each for each in settings.pipelines}
    for name, change in changes.items():
        if change is None:
            pipelines.pop(name, None)
            continue
        before = table(pipelines[name]) if name in pipelines else {}
        made = {key: value for key, value in {**before, **change}.items() if value is not None}
        where = f"pipelines[{name}]"
        if "source" not in made:
            raise UsageError(f"{where}: there is no such pipeline any more, only changes of it")
        pipelines[name] = build(Pipeline, {"name": name, **made}, where, UsageError)
    after = replace(settings, pipelines=tuple(pipelines.values()))
    if after.pipelines != settings.pipelines:
        check(after, Origins(None, []))
    return after


def overlaid(lower: Changes, upper: Changes) -> dict[str, Mapping[str, Any] | None]:
    """Merge two layers of changes; if both change a key, the upper one counts."""
    made = dict(lower)
    for name, change in upper.items():
        below = made.get(name)
        made[name] = change if change is None or below is None else {**below, **change}
    return made


def without_effect(changes: Changes, given: Settings) -> dict[str, Mapping[str, Any] | None]:
    """Drop changes that do not alter the settings."""
    before = {each.name: table(each) for each in given.pipelines}
    try:
        after = {each.name: table(each) for each in patched(given, changes).pipelines}
    except UsageError:
        return dict(changes)  # some of them are not in effect
    made: dict[str, Mapping[str, Any] | None] = {}
    for name, change in changes.items():
        if change is None or name not in before:
            if name in before or name in after:
                made[name] = change
            continue
        keys = {k: v for k, v in change.items() if before[name].get(k) != after[name].get(k)}
        if keys:
            made[name] = keys
    return made


def without(changes: Changes, others: Changes) -> dict[str, Mapping[str, Any] | None]:
    """Drop changes that *others* also make."""
    made: dict[str, Mapping[str, Any] | None] = {}
    for name, change in changes.items():
        other = others.get(name, {})
        if change is None or other is None:
            if name not in others:
                made[name] = change
        elif left := {key: value for key, value in change.items() if key not in other}:
            made[name] = left
    return made


def unedited(changes: Changes, before: Settings, after: Settings) -> Changes:
    """Drop changes to keys that have since been edited in the settings."""
    old = {each.name: table(each) for each in before.pipelines}
    new = {each.name: table(each) for each in after.pipelines}
    edited = {
        name: {key: None for key in KEYS if old[name].get(key) != new[name].get(key)}
        for name in old.keys() & new.keys()
    }
    return without(changes, {name: keys for name, keys in edited.items() if keys})


@record
class Patch:
    """A merge patch by pipeline name, checked against the current pipelines."""

    changes: Changes
    touched: Mapping[str, frozenset[str]]
    """The keys that it changes, by pipeline."""


def read_patch(
    patch: Mapping[str, Any], held: Mapping[str, Pipeline], may: tuple[str, ...]
) -> Patch:
    """Return the changes that a patch makes."""
    changes: dict[str, Mapping[str, Any] | None] = {}
    touched: dict[str, frozenset[str]] = {}
    for name, given in patch.items():
        present = table(held[name]) if name in held else None
        if given is None and present is None:
            continue
        if not is_name(name):
            raise RequestError(f"pipelines: {shown(name)} is not a name ({NAME_RULE})")
        complete = isinstance(given, dict) and given.keys() >= {"source", "model"}
        if present is None and not complete:
            from ..core.schema import nearest

            close = nearest(name, held)
            raise RequestError(
                f"pipelines[{name}]: there is none{close}; a new one needs `source` and `model`"
            )
        if (given is None or present is None) and PIPELINES not in may:
            what = "removed" if given is None else "new"
            raise RequestError(f"pipelines[{name}]: is {what}; {_may_not(PIPELINES, may)}")
        if given is None:
            changes[name] = None
            continue
        if not isinstance(given, dict):
            raise RequestError(f"pipelines[{name}]: expected an object, found {shown(given)}")
        try:
            changes[name] = _read_keys(name, given, present, may)
        except RecursionError:
            raise RequestError(f"pipelines[{name}]: is nested too deeply") from None
        touched[name] = frozenset(given)
    return Patch(changes, touched)


def _read_keys(
    name: str, given: Mapping[str, Any], present: Table | None, may: tuple[str, ...]
) -> Table:
    """Merge the keys of one pipeline; in a new one, keys not given get their defaults."""
    secrets: dict[_Place, str] = {}
    for place, text in _secrets(present or {}):
        secrets[place] = text if secrets.get(place, text) == text else ""
    made: Table = {} if present is not None else dict.fromkeys(KEYS)
    for key, value in given.items():
        where = f"pipelines[{name}].{key}"
        if key not in KEYS:
            from ..core.schema import nearest

            if key == "name":
                raise RequestError(
                    f"{where}: a pipeline keeps its name; remove this one (null) and send another"
                )
            raise RequestError(f"{where}: unknown key{nearest(key, KEYS)}")
        if key not in may:
            raise RequestError(f"{where}: {_may_not(key, may)}")
        merged = _merged((present or {}).get(key), value)
        made[key] = _restored(merged, secrets, where, (key,))
    return made


def _may_not(key: str, may: tuple[str, ...]) -> str:
    listed = ", ".join(may) or "nothing"
    return f"may not be changed from afar: [remote] may does not name {key!r}; it names {listed}"


def _merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _merged(made.get(key), value)
    return made


# Secrets: published settings hide them, so a patch made from those must not store the hidden form.
# A secret comes back only below the keys where it was: in another text it could be published.

_Place = tuple[tuple[str, ...], str]
"""The keys above a text, and its published form."""


def _hidden(value: Any, *, is_url: bool = False) -> Any:
    if isinstance(value, str):
        return redact(value) if is_url else redact_urls(value)
    if isinstance(value, dict):
        return {key: _hidden(each, is_url=key in _URLS) for key, each in value.items()}
    return [_hidden(each) for each in value] if isinstance(value, list) else value


def _is_url(keys: tuple[str, ...]) -> bool:
    return bool(keys) and keys[-1] in _URLS


def _secrets(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[_Place, str]]:
    """Yield the place of each text that contains a secret, and the text itself."""
    if isinstance(value, str) and (told := _hidden(value, is_url=_is_url(keys))) != value:
        yield (keys, told), value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _secrets(each, (*keys, key))
    elif isinstance(value, list):
        for each in value:
            yield from _secrets(each, keys)


def _restored(value: Any, secrets: Mapping[_Place, str], where: str, keys: tuple[str, ...]) -> Any:
    """Replace the published form of a pipeline's secrets by the secrets."""
    if isinstance(value, str):
        unknown = "" if _is_url(keys) and HIDDEN in value else value
        text = secrets.get((keys, value), unknown)
        if value and not text:
            raise RequestError(f"{where}: {HIDDEN} hides an unknown secret; write the whole text")
        return text
    if isinstance(value, dict):
        return {
            key: _restored(each, secrets, f"{where}.{key}", (*keys, key))
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_restored(each, secrets, where, keys) for each in value]
    return value
