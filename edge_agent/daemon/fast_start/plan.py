"""The plan for a fast start: settings and models as resolved by the last good start.

It is in the state folder as `start.json`, with the fingerprint of its inputs and a stamp of every
file that it depends on, and only used while these are the same. Settings, profile, and models are
checked fully after the first result, and a difference leads to a normal start. It is not a
`core.state_file`, because it has a checksum and is only readable by its owner.
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
from ...core.plain_file import read_plain_bytes, read_secret
from ...core.text import redact
from ...serving.planned_model import PlannedModel
from .fingerprint import stamp

log = logging.getLogger(__name__)

FILE = "start.json"
SCHEMA = 3
_HEAD = 33
"""Length of the first line: the checksum of the rest, 128-bit XXH3 in hexadecimal."""
_SECRETS = ("url", "username", "password")
"""The broker's settings that are never written."""
_STATE = re.compile(rb'^\s*state_dir\s*=\s*(?:"([^"\n]*)"|\'([^\'\n]*)\')', re.MULTILINE)


_NO_PLAN = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors from a plan that is absent, damaged, or of another version."""


class Plan(NamedTuple):
    """What a fast start needs."""

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

    They are read at every start, and never written to the plan. They are read as `config` does:
    variable names in any case, after their prefix, and the longer name wins.
    """
    found: dict[str, str] = {}
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    for key in _SECRETS if folder else ():
        try:
            found[key] = read_secret(Path(str(folder), f"broker.{key}"))
        except (OSError, UnicodeDecodeError):
            continue  # the settings ignore or refuse it, too
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
    """Read the plan for a start with this settings file; returns None if none is valid."""
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
    data = read_plain_bytes(os.path.join(state, FILE))  # noqa: PTH118 - see origins
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
        if read_plain_bytes(path) == content:
            return
    except OSError:
        pass
    # As private as possible, because it contains the same as the settings file.
    replace_file(path, content, 0o600)


def _hidden(settings: Any) -> bool:
    """Whether the environment has a camera's credentials, which are never written either."""
    if not any(name.upper().startswith("EDGE_AGENT_PIPELINES") for name in os.environ):
        return False
    # Credentials in an address; options of a file have none.
    sources = [str(pipeline["source"]) for pipeline in settings["pipelines"]["of"]]
    return any("://" in source and redact(source) != source for source in sources)


def _seal(body: bytes) -> bytes:
    return xxh3_128_hexdigest(body).encode() + b"\n"


def forget(state: Path) -> None:
    """Remove the plan, which is no longer valid; a disk that is read-only keeps it."""
    try:
        (state / FILE).unlink(missing_ok=True)
    except OSError as problem:
        log.warning(
            "%s: cannot be removed: %s; the next start may begin as the last one did",
            *(state / FILE, problem.strerror),
        )


def _state_folder(config: str | None) -> str:
    """Guess the state folder without parsing the settings; a wrong guess finds no valid plan."""
    given = os.environ.get("EDGE_AGENT_STATE_DIR")
    base = os.path.dirname(config) if config else os.getcwd()  # noqa: PTH109, PTH120 - see origins
    if given is None and config is not None:
        try:
            found = _STATE.search(read_plain_bytes(config))
        except OSError:
            found = None  # the normal start reports it
        if found:
            given = (found[1] or found[2] or b"").decode("utf-8", "replace")
    given = given or default_state(config, os.environ)
    return os.path.join(base, os.path.expanduser(given))  # noqa: PTH111, PTH118
