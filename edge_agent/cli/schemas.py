"""JSON Schemas of the settings and of every payload, and one AsyncAPI document of all topics.

Schemas of payloads that a device publishes are in a file beside `mqtt.payloads`; all others are
generated from the records that parse the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .. import __version__
from ..config.rule_kinds import RULE_KINDS
from ..config.schedule import PATTERN
from ..config.settable import SETTABLE
from ..config.settings import Settings
from ..core.names import NAME
from ..core.parameters import json_schema as parameter_schema
from ..core.schema import json_schema
from ..daemon.commands import Ping, Restart
from ..daemon.configure import Configure
from ..daemon.event_commands import Fetch, ListEvidence, Picture, Reset
from ..delivery.rollout.commands import Activate, Delete, Rollback
from ..mqtt import declared
from ..runtime.pipelines.commands import Set, Snapshot
from ..runtime.pipelines.device_mode import DEVICE

DIALECT = "https://json-schema.org/draft/2020-12/schema"
COMMANDS: Mapping[str, type] = {
    each.__name__.lower(): each
    for each in (
        *(Activate, Configure, Delete, Fetch, Picture, Ping),
        *(Reset, Restart, Rollback, Set, Snapshot),
    )
} | {"evidence": ListEvidence}
_RETAINED = {
    *("status", "info", "health", "count", "pipeline", "config", "source", "model", "rollout"),
}
_QOS_0 = {"health"}
_BELOW = {
    **dict.fromkeys(("result", "event", "answer", "count", "pipeline", "source"), "pipeline"),
    "model": "model",
    "push": "transfer",
    "reply": "request",
}
"""By kind of payload: the topic level below it."""
_OTHERS = (
    ("send", "snapshot/{pipeline}", "image/jpeg", "A frame with what was found in it."),
    ("send", "picture/{pipeline}/{event}", "image/jpeg", "The picture of an event."),
    ("send", "clip/{pipeline}/{event}/{n}", "video/mp4", "A block of the clip of an event."),
    ("receive", "in/model", "application/x-tar", "A whole packed model."),
    ("receive", "in/push/{transfer}/offer", "application/json", "The header of a package."),
    ("receive", "in/push/{transfer}/list/{part}", "application/octet-stream", "Of its blocks."),
    ("receive", "in/push/{transfer}/block/{number}", "application/octet-stream", "A block."),
    ("receive", "in/push/{transfer}/abort", "application/octet-stream", "It ends; empty."),
    ("receive", "in/infer/{model}/{request}", "application/octet-stream", "JPEG, PNG or JSON."),
)
"""Topics without a schema: the device's action, topic, content type, description."""


def _points(least: int) -> dict[str, Any]:
    point = {"items": {"type": "number", "minimum": 0, "maximum": 1}}
    return {"items": {**point, "minItems": 2, "maxItems": 2}, "minItems": least}


def _needs(when: str, keys: Iterable[str]) -> dict[str, Any]:
    """Say what a kind of rule must have; "above" stands for either bound."""
    either = [{"required": ["above"]}, {"required": ["below"]}]
    wanted = [{"anyOf": either} if key == "above" else {"required": [key]} for key in keys]
    return {"if": {"properties": {"when": {"const": when}}}, "then": {"allOf": wanted}}


_NAMED = {"pattern": f"^{NAME}$"}
_HELD: Mapping[str, Mapping[str, Any]] = {
    "during": {"pattern": PATTERN},
    "modes": {"items": {"type": "string", **_NAMED}},
}
_CHECKED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "CombinedRule": {"name": _NAMED, "all": {"minItems": 2}, **_HELD},
    "Rule": {
        **_HELD,
        "name": _NAMED,
        "when": {"enum": list(RULE_KINDS)},
        "frames": {"pattern": "^[1-9][0-9]?/[1-9][0-9]?$"},
    },
    "Pipeline": {
        "name": _NAMED,
        "roi": {"minItems": 4, "maxItems": 4},
        "min_box": {"minItems": 2, "maxItems": 2},
        "masks": {"items": _points(3)},
    },
    "Zone": {"name": _NAMED, "polygon": _points(3)},
    "Line": {"name": _NAMED, "points": _points(2)},
}
"""What the settings' own checks require beyond types, as far as a schema can express it."""


def schemas() -> dict[str, Any]:
    """Return the schema of each kind, and all schemas that they refer to, by name."""
    found = dict(declared.schemas())
    settings = json_schema(Settings, "#/$defs/{model}")
    found |= settings.pop("$defs") | {"settings": settings}
    for name, keys in _CHECKED.items():
        for key, narrower in keys.items():
            found[name]["properties"][key] |= narrower
    kinds_needing = ((when, kind.needs) for when, kind in RULE_KINDS.items() if kind.needs)
    found["Rule"]["allOf"] = [_needs(when, keys) for when, keys in kinds_needing]
    common = {"id": {"type": "string", "pattern": f"^{NAME}$"}, "time": {"type": "string"}}
    for verb, kind in COMMANDS.items():
        made = parameter_schema(kind)
        found[f"command.{verb}"] = made | {"properties": common | made["properties"]}
    return found


def kinds(found: Mapping[str, Any]) -> list[str]:
    """List the kinds of payloads among schemas, and the settings."""
    return [name for name in found if not name[:1].isupper()]


def document(kind: str | None) -> dict[str, Any]:
    """Return one schema with all schemas that it refers to, or all of them."""
    found = schemas()
    if kind is None:
        return {"$schema": DIALECT, "title": "edge-agent", "$defs": found}
    wanted, needed = [kind], dict[str, Any]()
    while wanted:
        name = wanted.pop()
        if name not in needed:
            needed[name] = found[name]
            wanted += _references(found[name])
    top = needed.pop(kind)
    return {"$schema": DIALECT, "title": kind, **top} | ({"$defs": needed} if needed else {})


def _references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        here = schema.get("$ref")
        found = [here.rpartition("/")[2]] if isinstance(here, str) else []
        return found + [name for each in schema.values() for name in _references(each)]
    return (
        [name for each in schema for name in _references(each)] if isinstance(schema, list) else []
    )


def asyncapi(root: str = "edge") -> dict[str, Any]:
    """Return the AsyncAPI 3 document of a device's topics, from the device's point of view."""
    found = schemas()
    del found["settings"]
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}

    def add(name: str, topic: str, action: str, message: Mapping[str, Any], **mqtt: Any) -> None:
        parameters = [part[1:-1] for part in topic.split("/") if part.startswith("{")]
        channels[name] = {
            "address": f"{root}/{topic}",
            "parameters": {each: {"description": "a name"} for each in parameters},
            "messages": {name: message},
        }
        operations[f"{action}.{name}"] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{name}"},
            "bindings": {"mqtt": mqtt},
        }

    for kind in kinds(found):
        message = {"payload": {"$ref": f"#/components/schemas/{kind}"}}
        if kind.startswith("command."):
            topic = f"{{device}}/in/command/{kind.removeprefix('command.')}"
            add(kind, topic, "receive", message, qos=1)
            continue
        below = f"/{{{_BELOW[kind]}}}" if kind in _BELOW else ""
        qos, retain = int(kind not in _QOS_0), kind in _RETAINED
        add(kind, f"{{device}}/{kind}{below}", "send", message, qos=qos, retain=retain)
    for action, topic, content, summary in _OTHERS:
        name = ".".join(part for part in topic.split("/") if "{" not in part)
        told = {"contentType": content, "summary": summary}
        add(name, f"{{device}}/{topic}", action, told, qos=int(content != "image/jpeg"))
    for key in SETTABLE:
        bare = {"contentType": "text/plain", "payload": {"type": "string"}}
        add(f"set.{key}", f"{{device}}/in/set/{{pipeline}}/{key}", "receive", bare, qos=1)
    mode = {"contentType": "text/plain", "payload": {"type": "string"}}
    add("set.mode", f"{{device}}/in/set/{DEVICE}/mode", "receive", mode, qos=1)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "edge-agent", "version": __version__},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"schemas": _moved(found)},
    }


def _moved(schema: Any) -> Any:
    """Return a schema whose references fit the places of schemas in an AsyncAPI document."""
    if isinstance(schema, dict):
        return {
            key: each.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(each, str)
            else _moved(each)
            for key, each in schema.items()
        }
    return [_moved(each) for each in schema] if isinstance(schema, list) else schema
