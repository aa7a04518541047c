"""A bundle from `scripts/bundle`: one file that installs edge-agent without a network.

It is a shell script of `HEAD` bytes, with the length and SHA-256 of the rest: a zip archive that
Python runs (`__main__.py`), with wheels, their digests in pip's format, and the system they are
for. Only needs the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ...core.errors import UsageError

EXTRAS = "[completion,http,metrics,text]"
"""Extras of every installation, so that any settings work; only imported when used."""
HEAD = 4096
"""Bytes of the script, padded with newlines."""
FACTS = "bundle.json"
REQUIREMENTS = "requirements.txt"
WHEELS = "wheels/"
_SAYS = re.compile(rb"^size=([0-9]{1,12}) sha256=([0-9a-f]{64})$", re.MULTILINE)
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A complete bundle."""

    path: Path

    def is_running(self) -> bool:
        """Whether this program itself runs from the bundle."""
        return Path(sys.argv[0]).resolve() == self.path.resolve()

    def hand_over(self, words: Sequence[str]) -> NoReturn:
        """Replace this process with the bundle's installer, which knows what its version needs."""
        command = [sys.executable, "-I", str(self.path), *words]
        sys.stdout.flush()
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted

    def check_fits(self) -> None:
        """Check that its wheels are for this system."""
        with self._opened() as archive:
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
        with self._opened() as archive:
            for name in archive.namelist():
                if name == REQUIREMENTS or name.startswith(WHEELS):
                    archive.extract(name, folder)
        (pip,) = (folder / WHEELS).glob("pip-*.whl")
        return pip, folder / REQUIREMENTS

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        """Open the archive, whose members have digests of their own."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except (KeyError, ValueError, zipfile.BadZipFile) as problem:
            raise UsageError(
                f"{self.path}: is damaged inside ({problem}); make it again; nothing was changed"
            ) from None


def open_bundle(path: Path) -> Bundle:
    """Read and check a bundle."""
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
    """Return what wheels depend on: machine, and versions of Python and the C library."""
    return {
        "machine": sysconfig.get_platform().partition("-")[2],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "glibc": (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0").split()[1],
    }


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
