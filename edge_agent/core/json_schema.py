"""What records declare, as JSON Schema 2020-12: those of settings, and parameters of commands."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from . import parameters
from .names import NAME
from .schema import keys_of

_REF = "#/$defs/{}"
_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    types.NoneType: "null",
}


def of_record(kind: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a record, with its comments as descriptions, and those it refers to."""
    found: dict[str, Any] = {}
    _of_type(kind, found)
    return found.pop(kind.__name__), found


def _of_type(hint: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; those of records are added to *found*."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        name = str(getattr(hint, "__name__", ""))
        if name not in found:
            found[name] = {}  # it may hold itself
            found[name] = _with_keys(hint, found)
        return {"$ref": _REF.format(name)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Annotated:
        bounds = {bound.key: bound.limit for bound in arguments[1:]}
        return _of_type(arguments[0], found) | bounds
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_of_type(each, found) for each in arguments]}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of_type(arguments[1], found)}
    if origin is tuple:
        return {"type": "array", "items": _of_type(arguments[0], found)}
    return {"type": _TYPES[hint]} if hint in _TYPES else {}


def _with_keys(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    told, hints = _comments(kind), keys_of(kind)
    items = [item for item in fields(kind) if item.name in hints]
    properties = {}
    for item in items:
        made = _of_type(hints[item.name], found)
        made |= {"description": told[item.name]} if item.name in told else {}
        made |= {} if item.default is MISSING else {"default": item.default}
        properties[item.name] = made
    required = [item.name for item in items if item.default is item.default_factory is MISSING]
    return {
        "type": "object",
        "description": kind.__doc__,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _comments(kind: type) -> dict[str, str]:
    """Return the text below each field of a record, as its module has it."""
    module = ast.parse(Path(str(sys.modules[kind.__module__].__file__)).read_text("utf-8"))
    (made,) = [
        each
        for each in module.body
        if isinstance(each, ast.ClassDef) and each.name == kind.__name__
    ]
    return {
        item.target.id: " ".join(str(ast.literal_eval(text.value)).split())
        for item, text in pairwise(made.body)
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and isinstance(text, ast.Expr)
    }


def of_parameters(kind: type) -> dict[str, Any]:
    """Return the schema of the parameters that a record declares."""
    declared = parameters.parameters(kind)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "required": [each.name for each in declared if each.required],
        "properties": {each.name: _of_kind(each.kind) for each in declared},
    }


def _of_kind(kind: parameters.Kind) -> dict[str, Any]:
    match kind:
        case parameters.Clearable():
            return {"anyOf": [_of_kind(kind.kind), {"type": "null"}]}
        case parameters.FlagKind():
            return {"type": "boolean"}
        case parameters.Number():
            whole = "integer" if isinstance(kind, parameters.Whole) else "number"
            return {"type": whole, "minimum": kind.least, "maximum": kind.most}
        case parameters.Items():
            each = _of_kind(kind.kind)
            return {"type": "array", "items": each, "minItems": kind.least, "maxItems": kind.most}
        case parameters.Table():
            return {"type": "object", "additionalProperties": _of_kind(kind.kind)}
        case parameters.NameKind():
            return {"type": "string", "pattern": f"^{NAME}$"}
        case parameters.TextKind():
            return {"type": "string", "minLength": 1}
        case _:
            return {"type": "object"}
