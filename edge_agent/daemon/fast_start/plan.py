"""The plan of a fast start: settings and models as the last good start resolved them.

Kept in the state folder as `start.json`, with the fingerprint of its inputs and a stamp of every
file that it depends on. It is used only while all of these are the same; settings, profile and
models are checked in full after the first result, and a difference leads to a normal start. No
`core.state_file`: it is sealed by a checksum and readable by its owner alone.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

from ...config.locations import default_state
from ...core.text import redact
from ...serving.planned_model import PlannedModel
from .fingerprint import stamp

log = logging.getLogger(__name__)

FILE = "start.json"
SCHEMA = 3
_HEAD = 33
"""Length of the first line: the checksum of all that follows, XXH3 of 128 bits in hexadecimal."""
_SECRETS = ("url", "username", "password")
"""Of the broker."""
_STATE = re.compile(rb'^\s*state_dir\s*=\s*(?:"([^"\n]*)"|\'([^\'\n]*)\')', re.MULTILINE)


_NO_PLAN = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors of a plan that is absent, damaged or of another version."""


class Plan(NamedTuple):
    """A start."""

    state: str
    origins: str
    lanes: int
    lazy: bool
    """Whether models of second stages are loaded when they are needed."""
    settings: Any
    """Packed `Settings`."""
    models: list[PlannedModel]


def broker_secrets() -> dict[str, str]:
    """Return the broker's address and credentials from the environment, by key of `[broker]`.

    They are read at every start, and never written to the plan. Read as `config` reads it: the
    names of variables in any case, behind their prefix, and the longer name wins.
    """
    found: dict[str, str] = {}
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    for key in _SECRETS if folder else ():
        try:
            text = Path(str(folder), f"broker.{key}").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # the settings ignore or refuse it, too
        found[key] = text.rstrip("\r\n")
    variables = {
        name.removeprefix("EDGE_AGENT_").lower(): name
        for name in sorted(os.environ)
        if name.startswith("EDGE_AGENT_")
    }
    if "broker" in variables:
        table = json.loads(os.environ[variables["broker"]])
        given = {key: table[key] for key in _SECRETS if isinstance(table.get(key), str | list)}
        found |= {k: v if isinstance(v, str) else json.dumps(v) for k, v in given.items()}
    for key in _SECRETS:
        if f"broker__{key}" in variables:
            found[key] = os.environ[variables[f"broker__{key}"]]
    return found


def find(config: str | None, origins: str) -> Plan | None:
    """Read the plan of a start from this settings file; returns None if none is valid."""
    state = _state_folder(config)
    try:
        read = _read(state)
        if read["origins"] != origins:
            return None
        if any(stamp(path) != known for path, known in read["stamps"].items()):
            return None
        read["settings"]["broker"].update(broker_secrets())
        return Plan(
            state,
            origins,
            int(read["lanes"]),
            bool(read["lazy"]),
            read["settings"],
            [PlannedModel(*entry) for entry in read["models"]],
        )
    except _NO_PLAN:
        return None  # there is none, or another version has written it


def _read(state: str) -> Any:
    with open(os.path.join(state, FILE), "rb") as file:  # noqa: PTH118, PTH123 - see origins
        data = file.read()
    body = data[_HEAD:]
    if data[:_HEAD] != _seal(body):
        raise ValueError  # damaged: a normal start needs none, and writes a new one
    read = json.loads(body)
    if read["schema"] != SCHEMA:
        raise ValueError
    return read


def write(plan: Plan, looked_at: list[Path]) -> None:
    """Write a plan, with a stamp of every file and folder that it depends on."""
    from ...core.files import replace_file

    if _hidden(plan.settings):
        forget(Path(plan.state))
        log.info("no plan for fast starts: the environment holds a camera's password or token")
        return
    plan.settings["broker"].update(dict.fromkeys(broker_secrets()))
    body = json.dumps(
        {
            "schema": SCHEMA,
            "origins": plan.origins,
            "lanes": plan.lanes,
            "lazy": plan.lazy,
            "settings": plan.settings,
            "models": [list(entry) for entry in plan.models],
            "stamps": {str(path): stamp(str(path)) for path in looked_at},
        }
    ).encode()
    content = _seal(body) + body
    path = Path(plan.state) / FILE
    try:
        if path.read_bytes() == content:
            return
    except OSError:
        pass
    # As private as a file can be: it holds what the settings file holds.
    replace_file(path, content, 0o600)


def _hidden(settings: Any) -> bool:
    """Whether the environment holds a camera's credentials: they are never written down either."""
    if not any(name.upper().startswith("EDGE_AGENT_PIPELINES") for name in os.environ):
        return False
    # Of an address; the options of a file are none.
    sources = [str(pipeline["source"]) for pipeline in settings["pipelines"]["of"]]
    return any("://" in source and redact(source) != source for source in sources)


def _seal(body: bytes) -> bytes:
    return xxh3_128_hexdigest(body).encode() + b"\n"


def forget(state: Path) -> None:
    """Remove the plan: it is no longer valid."""
    (state / FILE).unlink(missing_ok=True)


def _state_folder(config: str | None) -> str:
    """Guess the state folder without parsing the settings; a wrong guess finds no valid plan."""
    given = os.environ.get("EDGE_AGENT_STATE_DIR")
    base = os.path.dirname(config) if config else os.getcwd()  # noqa: PTH109, PTH120 - see origins
    if given is None and config is not None:
        try:
            with open(config, "rb") as file:  # noqa: PTH123
                found = _STATE.search(file.read())
        except OSError:
            found = None  # the normal start reports it
        if found:
            given = (found[1] or found[2] or b"").decode("utf-8", "replace")
    given = given or default_state(config, os.environ)
    return os.path.join(base, os.path.expanduser(given))  # noqa: PTH111, PTH118
