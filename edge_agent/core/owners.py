"""Whose the files of the state folder are: whatever root copies or restores is root's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def foreign(folder: Path) -> str:
    """Return what in a state folder is another user's and closed to this one, with the correction.

    "": nothing. Whatever root copies or restores is root's.
    """
    return _foreign(folder, _all_below(folder), os.R_OK | os.W_OK)


def foreign_state(folder: Path) -> str:
    """Return the same of what an agent on the folder must read before it starts."""
    return _foreign(folder, _kept(folder), os.R_OK)


def _foreign(folder: Path, paths: Iterable[Path], need: int) -> str:
    me = os.geteuid()
    for path in paths:
        with suppress(OSError):  # it may just have been removed
            owner = path.lstat().st_uid
            if owner != me and not os.access(path, need, effective_ids=True):
                whose = f"{path} belongs to {_user(owner)}"
                return f"{whose}; sudo chown -R {_user(me)}: {folder}"
    return ""


def _all_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "lost+found"]  # of any mounted disk
        yield from (Path(parent, name) for name in ("", *folders, *names))


def _kept(folder: Path) -> Iterator[Path]:
    """List the files without which an agent would start as another one, and their folders."""
    with suppress(OSError):  # without `models` at all, the agent's lock says so
        for path in (folder / "models").iterdir():
            yield path
            yield path / "pointers.json"
    with suppress(OSError):
        yield from (p for p in folder.iterdir() if p.suffix in {".json", ".jsonl", ".log"})


def _user(uid: int) -> str:
    """Return a user's name, or the number of one without a name."""
    import pwd  # rarely needed

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
