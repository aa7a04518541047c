"""What the installed service's unit adds to its settings file, for commands outside of the unit."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.scratch import scratch_folder
from .service_user import UNIT, unit_keys

_STORES = tuple(Path(f"/{top}/credstore") for top in ("etc", "run", "usr/local/lib", "usr/lib"))
"""Where systemd looks for credentials that are given without a folder."""
_OTHERS = ("LoadCredentialEncrypted", "SetCredential", "SetCredentialEncrypted", "PassEnvironment")
"""Keys for settings that only systemd can read."""
_PREFIX = "EDGE_AGENT_"


def service_config(default: Path) -> Path:
    """Return the settings file that the service's unit names."""
    words = _split(unit_keys(UNIT).get("ExecStart", ""), [], "ExecStart")
    return Path(words[words.index("--config") + 1]) if "--config" in words[:-1] else default


@contextmanager
def service_environment() -> Iterator[tuple[dict[str, str], list[str]]]:
    """Give the variables that the service has for its settings, and what of them cannot be read.

    Root alone may read all of it. The folder of credentials goes when the context ends.
    """
    keys, unread = unit_keys(UNIT), list[str]()
    environ = {}
    for word in _split(keys.get("Environment", ""), unread, "Environment"):
        name, _, value = word.partition("=")
        environ[name] = value
    for name in keys.get("EnvironmentFile", "").split():
        environ |= _read_file(name, unread)
    environ = {name: value for name, value in environ.items() if name.startswith(_PREFIX)}
    unread += [f"{key}= of {UNIT.name}: only systemd can read it" for key in _OTHERS if key in keys]
    with scratch_folder("credentials") as folder:
        for word in _split(keys.get("LoadCredential", ""), unread, "LoadCredential"):
            name, _, given = word.partition(":")
            places = [store / (given or name) for store in _STORES]  # an absolute path stays
            found = next((place for place in places if place.exists()), None)
            if found is None:
                continue  # as systemd does
            for path in found.iterdir() if found.is_dir() else (found,):
                link = folder / (f"{name}_{path.name}" if found.is_dir() else name)
                link.symlink_to(path)
        yield {**environ, "CREDENTIALS_DIRECTORY": str(folder)}, unread


@contextmanager
def as_the_service(file: Path | None) -> Iterator[list[str]]:
    """Set the variables of the service where root reads the service's own settings file.

    Yields what of them cannot be read.
    """
    if os.geteuid() != 0 or file is None or not UNIT.is_file():
        yield []
        return
    if service_config(file).absolute() != file.absolute():
        yield []
        return
    before = dict(os.environ)
    with service_environment() as (environ, unread):
        os.environ.update(environ)
        try:
            yield unread
        finally:
            os.environ.clear()
            os.environ.update(before)


def _split(text: str, unread: list[str], key: str) -> list[str]:
    """Split a value into words as systemd does; what cannot be expanded is added to *unread*."""
    words = []
    try:
        split = shlex.split(text)
    except ValueError:
        unread.append(f"{key}= of {UNIT.name}: {text}: its quotes do not match")
        return []
    for word in split:
        known = {"%H": socket.gethostname(), "%n": UNIT.name, "%p": UNIT.stem}
        pieces = word.split("%%")
        for short, long in known.items():
            pieces = [piece.replace(short, long) for piece in pieces]
        if any("%" in piece for piece in pieces):
            unread.append(f"{key}= of {UNIT.name}: {word}: only systemd can expand it")
            continue
        words.append("%".join(pieces))
    return words


def _read_file(name: str, unread: list[str]) -> dict[str, str]:
    """Read the variables of an EnvironmentFile=; "-" before its name: it may be absent."""
    found = {}
    paths = sorted(Path("/").glob(name.lstrip("-/")))
    if not paths and not name.startswith("-"):
        unread.append(f"EnvironmentFile= of {UNIT.name}: {name}: no such file")
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            unread.append(f"EnvironmentFile= of {UNIT.name}: {path}: cannot be read")
            continue
        for line in text.replace("\\\n", "").splitlines():
            key, equals, value = line.strip().partition("=")
            if not equals or key.startswith(("#", ";")):
                continue
            value = value.strip()
            quoted = len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]
            found[key.strip()] = value[1:-1] if quoted else value
    return found
