"""Root works in another user's folders as that user, so that it follows no malicious link."""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_CAPABILITY_VERSION = 0x20080522
_READ_SEARCH = 1 << 2
_PR_SET_KEEPCAPS = 8
"""prctl(2)."""


class User(NamedTuple):
    """The owner of a folder."""

    uid: int
    gid: int
    groups: Sequence[int] = ()


def owner_of(folder: Path) -> User | None:
    """Return the user to act as in a folder; None: the user of this process."""
    if os.geteuid() != 0 or not folder.exists():
        return None
    known = folder.stat()
    if known.st_uid == 0:
        return None
    try:
        name = pwd.getpwuid(known.st_uid).pw_name
    except KeyError:
        return User(known.st_uid, known.st_gid)
    return User(known.st_uid, known.st_gid, os.getgrouplist(name, known.st_gid))


@contextmanager
def acting_as(user: User | None, *, reading: bool = False) -> Iterator[None]:
    """Act with the rights of a user for the duration of the context.

    Args:
        user: the user to act as; None: nothing changes.
        reading: whether the calling thread keeps root's right to read: Python may load modules
            meanwhile that only root can read.
    """
    if user is None:
        yield
        return
    groups = os.getgroups()
    os.setgroups(list(user.groups))
    os.setegid(user.gid)
    os.seteuid(user.uid)
    if reading:
        _keep_reading()
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def become(user: User, *, reading: bool | None = None) -> None:
    """Become a user for good, as before running what that user may have planted.

    Args:
        user: the user to become.
        reading: as for `acting_as`; None: if only root may read this program. No other right of
            root's is kept.
    """
    if reading is None:
        reading = _must_keep_reading(user)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_KEEPCAPS, int(reading))
    os.setgroups(list(user.groups))
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    if reading:
        _keep_reading(alone=True)


def _must_keep_reading(user: User) -> bool:
    """Whether a user may not read this program, so that modules could not be loaded any more."""
    with acting_as(user):
        program = (sys.prefix, os.__file__, __file__)
        return not all(os.access(path, os.R_OK, effective_ids=True) for path in program)


def _keep_reading(*, alone: bool = False) -> None:
    """Make CAP_DAC_READ_SEARCH effective again if it is permitted; see capabilities(7).

    With *alone* nothing else stays permitted.
    """
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; again for 32 and up
    if libc.capget(header, sets) == 0:
        sets[0] |= sets[1] & _READ_SEARCH
        if alone:
            sets[1], sets[4] = sets[0], 0
        libc.capset(header, sets)


def hand_over(folder: Path, user: User) -> None:
    """Make a user the owner of a folder that only root can enter, contents first."""
    for parent, folders, names in os.walk(folder, topdown=False):
        for name in (*folders, *names):
            os.chown(Path(parent, name), user.uid, user.gid, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)
