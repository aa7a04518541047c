"""Whose the files of the state folder are: whatever root copies or restores is root's."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def foreign(folder: Path) -> str:
    """Return what in a state folder is another user's and closed to this one, with the correction.

    "": nothing. Whatever root copies or restores is root's.
    """
    me, need = os.geteuid(), os.R_OK | os.W_OK
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "lost+found"]  # of any mounted disk
        for path in (Path(parent, name) for name in ("", *folders, *names)):
            with suppress(OSError):  # it may just have been removed
                owner = path.lstat().st_uid
                if owner != me and not os.access(path, need, effective_ids=True):
                    whose = f"{path} belongs to {_user(owner)}"
                    return f"{whose}; sudo chown -R {_user(me)}: {folder}"
    return ""


def _user(uid: int) -> str:
    """Return a user's name, or the number of one without a name."""
    import pwd  # rarely needed

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
