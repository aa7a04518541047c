"""Names and versions as users write them.

Devices, groups, pipelines, models, transfers and requests share one alphabet, so that each fits
a topic level, a file name and a shell word alike.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
NAME_RULE = "letters, digits, '.', '_' and '-', at most 64, beginning with a letter or digit"
READINGS = "readings"
"""In place of a pipeline's model: publish its sensor's readings; no model has this name."""
ALONE = ""
"""Stands for the name of a sensor's single value that has none."""
RESERVED_GROUPS = frozenset({"package", "rollout"})
"""Names that no group may have: topics for all devices use them."""
_NAME = re.compile(NAME)
_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})(\.(0|[1-9][0-9]{0,8})){0,7}")

# Default hostnames of distributions: two such boxes would use the same MQTT client id.
COMMON_HOSTNAMES = frozenset({"localhost", "raspberrypi", "debian", "ubuntu"})

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine that other machines cannot reach."""


def is_local(host: str) -> bool:
    """Whether a `Host` header names this machine: "localhost:8000", "[::1]", "127.0.0.2"."""
    name = re.sub(r":\d+$", "", host).strip("[]")
    return name.lower() in LOOPBACK or re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None


def is_name(text: str) -> bool:
    """Whether *text* may name a device, group, pipeline, model, transfer or request."""
    return _NAME.fullmatch(text) is not None


def name_problems(key: str, names: Sequence[str], twice: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the error of each list entry with a bad name or another entry's name."""
    for index, name in enumerate(names):
        if not is_name(name):
            yield f"{key}[{index}].name", f"{name!r} is not a name ({NAME_RULE})"
        if name in names[:index]:
            yield f"{key}[{name}].name", f"{twice} this name; each needs its own"


def names_of(columns: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return what the values of a sensor's reading are counted by: names, numbers or `ALONE`."""
    return columns or ((ALONE,) if count == 1 else tuple(map(str, range(count))))


def safe_name(text: str, default: str = "model") -> str:
    """Return a name made from a file's stem; *default* if no valid character is left."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64]
    return cleaned if is_name(cleaned) else default


def is_version(text: str) -> bool:
    """Whether *text* is a version: dot-separated integers."""
    return _VERSION.fullmatch(text) is not None


def version_key(version: str) -> tuple[int, ...]:
    """Return a key that orders versions as numbers; "1.10" is above "1.9", "2" equals "2.0"."""
    parts = [int(part) for part in version.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def default_device_id(hostname: str | None = None, machine_id: str | None = None) -> str:
    """Return the host's name, with a part of the machine id if many hosts share that name."""
    host = hostname if hostname is not None else socket.gethostname()
    name = safe_name(host.split(".")[0] or "edge")
    if name.lower() not in COMMON_HOSTNAMES:
        return name
    if machine_id is None:
        try:
            machine_id = Path("/etc/machine-id").read_text(encoding="ascii").strip()
        except OSError:
            machine_id = ""
    # Hashed: the machine id is confidential according to machine-id(5).
    import hashlib

    return f"{name}-{hashlib.sha256(machine_id.encode()).hexdigest()[:6]}"
