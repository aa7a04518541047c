"""A bundle, as `scripts/bundle` makes it: one file that installs edge-agent without a network.

A shell script of `HEAD` bytes, which says length and SHA-256 of what follows: a zip archive that
Python runs (`__main__.py`), with wheels, their digests as pip takes them, and what they were made
for. Needs the standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ...core.errors import UsageError

EXTRAS = "[completion,http,metrics,text]"
"""That every installation has, for whatever settings it will get; imported only where they ask."""
HEAD = 4096
"""Bytes of the script, filled up with newlines."""
FACTS = "bundle.json"
REQUIREMENTS = "requirements.txt"
WHEELS = "wheels/"
_SAYS = re.compile(rb"^size=([0-9]{1,12}) sha256=([0-9a-f]{64})$", re.MULTILINE)
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that is whole."""

    path: Path

    def is_running(self) -> bool:
        """Whether this very program came out of it."""
        return Path(sys.argv[0]).resolve() == self.path.resolve()

    def hand_over(self, words: Sequence[str]) -> NoReturn:
        """Become the installer in the bundle: only that knows what its version needs."""
        command = [sys.executable, "-I", str(self.path), *words]
        sys.stdout.flush()
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted

    def check_fits(self) -> None:
        """Check that its wheels are for this system."""
        with zipfile.ZipFile(self.path) as archive:
            facts = json.loads(archive.read(FACTS))
        for what, found in this_system().items():
            wanted = facts[what]
            if what == "glibc" and _numbers(found) >= _numbers(wanted):
                continue
            if found != wanted:
                least = " or newer" if what == "glibc" else ""
                raise UsageError(
                    f"{self.path}: is for {what} {wanted}{least}, found {found}; "
                    "make one on a system like this; nothing was changed"
                )

    def unpack(self, folder: Path) -> tuple[Path, Path]:
        """Unpack the wheels; return pip's and the file of requirements."""
        with zipfile.ZipFile(self.path) as archive:
            for name in archive.namelist():
                if name == REQUIREMENTS or name.startswith(WHEELS):
                    archive.extract(name, folder)
        (pip,) = (folder / WHEELS).glob("pip-*.whl")
        return pip, folder / REQUIREMENTS


def open_bundle(path: Path) -> Bundle:
    """Read a bundle through."""
    changed = "nothing was changed"
    try:
        with path.open("rb") as file:
            said = _SAYS.search(file.read(HEAD))
            if said is None:
                raise UsageError(f"{path}: not a bundle that scripts/bundle has made; {changed}")
            size, digest = 0, hashlib.sha256()
            while piece := file.read(_PIECE):
                size += len(piece)
                digest.update(piece)
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror}; {changed}") from None
    wanted = int(said[1])
    if size != wanted:
        raise UsageError(
            f"{path}: expected {HEAD + wanted} bytes, found {HEAD + size}; copy it again; {changed}"
        )
    if digest.hexdigest() != said[2].decode():
        raise UsageError(f"{path}: its content was altered; copy it again; {changed}")
    return Bundle(path)


def this_system() -> dict[str, str]:
    """Return the system that wheels depend on: machine, Python's version, the C library's."""
    return {
        "machine": sysconfig.get_platform().partition("-")[2],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "glibc": (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0").split()[1],
    }


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
