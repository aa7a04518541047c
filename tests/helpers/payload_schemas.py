"""Whether messages of agents are as `edge-agent schema` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from edge_agent.cli.schemas import document, kinds, schemas
from tests.helpers.support import Listener

_seen: set[str] = set()
"""Shapes of results that were found right: there are many of each."""


def closed(schema: Any) -> Any:
    """Return a schema that allows no key but those that it names."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(each) for key, each in schema.items()}
    return made | ({"additionalProperties": False} if "properties" in schema else {})


@cache
def checks(kind: str) -> Draft202012Validator | None:
    """Return what checks a kind of payload; None: there is no such kind."""
    known = [each for each in kinds(schemas()) if each != "settings" and "." not in each]
    return Draft202012Validator(closed(document(kind))) if kind in known else None


def wrong_messages(listener: Listener) -> Iterator[str]:
    """Yield what is wrong with what was heard of agents, and was not said by the listener."""
    for heard in listener.heard:
        root, device, kind, *_ = [*heard.topic.split("/"), "", ""]
        check = checks(kind)
        own = (heard.topic, heard.payload) in listener.said
        if root != "edge" or device.startswith("@") or check is None or own or not heard.payload:
            continue
        if not isinstance(body := _json(heard.payload), dict):
            yield f"{heard.topic}: is no JSON object: {heard.payload[:80]!r}"
            continue
        if kind == "reply" and "seq" in body:  # to a question: a result, and whether it is one
            check, body = checks("result"), {k: v for k, v in body.items() if k not in ("id", "ok")}
            assert check is not None
        shape = f"{kind} {_shape(body)}"
        if kind == "result" and shape in _seen:
            continue
        found = [f"{heard.topic}: {e.json_path}: {e.message}" for e in check.iter_errors(body)]
        yield from found
        if not found:
            _seen.add(shape)


def _json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return None


def _shape(value: Any) -> Any:
    """Return the keys and types in a payload."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return sorted({json.dumps(_shape(each)) for each in value})
    return type(value).__name__
