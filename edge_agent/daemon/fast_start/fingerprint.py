"""Fingerprint of the inputs of a start; a plan is valid while it stays the same.

Environment, credentials, file, program, and machine. Not cryptographic: an attacker who may write
to the state folder or the settings needs no collision.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import xxhash

from ... import __version__
from ...config.locations import working_folder
from ...core.plain_file import read_plain_bytes
from ...device.resources import instructions, usable_cpus, usable_memory

_VARIABLES = ("EDGE_AGENT_", "STATE_DIRECTORY", "CREDENTIALS_DIRECTORY", "HOME=", "XDG_")


def digest(config: str | None) -> str:
    """Return a digest of everything that affects the settings and their use on this machine."""
    parts = xxhash.xxh3_128()

    def add(*words: str | bytes) -> None:
        for word in words:
            data = word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word
            parts.update(b"%d:" % len(data))
            parts.update(data)

    add(__version__, sys.version, sys.executable, __file__, working_folder())
    add(config or "", _bytes(config))
    for place in sys.path:
        # Where engines are installed: what is known about one may not hold for another version.
        if place.endswith("-packages"):
            add(place, str(stamp(place)))
    for name, value in sorted(os.environ.items()):
        if f"{name}=".startswith(_VARIABLES):
            add(name, value)
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    if credentials:
        for path in sorted(Path(credentials).glob("*")):
            add(path.name, _bytes(str(path)))
    add(os.uname().nodename, _bytes("/etc/machine-id"), os.uname().machine)
    # In steps of 16 MiB: the kernel's own share differs from boot to boot.
    add(instructions(), str(usable_cpus()), str(usable_memory() >> 24))
    return parts.hexdigest()


def stamp(path: str) -> list[int] | None:
    """Return a value that changes when a file or folder does, or None if it does not exist."""
    try:
        known = os.stat(path)  # noqa: PTH116 - pathlib is slower, and there are many
    except OSError:
        return None
    return [known.st_mtime_ns, known.st_size, known.st_ino, known.st_ctime_ns]


def _bytes(path: str | None) -> bytes:
    """Read a plain file; another, or a huge one, is refused when the settings are read."""
    try:
        return read_plain_bytes(path) if path else b""
    except OSError:
        return b""
