"""The rights of the installed service's user: `check` is often run by root, who may do anything.

Reads the unit from its files, so that it also works if systemd does not run.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from ..core.privileges import User, acting_as, owner_of

UNIT = Path("/etc/systemd/system/edge-agent.service")
_RUNTIME = Path("/run/systemd/system")
"""Where `systemctl edit --runtime` adds to units."""
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_STATES = Path("/var/lib")
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - hidden by the unit
HIDDEN = (*_HOMES, *_TEMPORARY)
"""Folders that the unit hides from the service, unless the operator has changed it."""
_YES = frozenset({"1", "yes", "true", "on"})
_LISTS = frozenset(
    {
        *("BindPaths", "BindReadOnlyPaths", "DeviceAllow", "ReadWritePaths"),
        *("StateDirectory", "SupplementaryGroups"),
        *("Environment", "EnvironmentFile", "LoadCredential"),
    }
)
_MOST = 1000
"""Most files of a folder that are checked."""


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The user of the service, and the restrictions of its unit."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    command: str
    hidden: dict[Path, str]
    """Folders that look empty to it, with the key in the unit that causes this."""
    bound: tuple[Path, ...]
    """Places that it can see nevertheless."""
    made: tuple[Path, ...]
    """Folders that systemd gives to it at startup, whoever owned them before."""
    writable: tuple[Path, ...]
    """Where the unit allows writing, if the user has the rights."""
    devices: tuple[str, ...] | None
    """Devices in the unit's DeviceAllow=; None: every device."""

    def runs(self, settings: Path) -> bool:
        """Whether these are the service's own settings."""
        return f"--config {settings.absolute()}" in self.command

    def trouble(self, path: Path) -> str | None:
        """Return why the user cannot read a file, device, or folder with its content.

        None: the user can, or the path does not exist.
        """
        if not path.exists():
            return None
        if (hiding := self._hiding(path)) is not None:
            return hiding
        inside = (each for each in _inside(path) if each.exists()) if path.is_dir() else ()
        if not self._is_allowed(path):
            return (
                f"{path}: the service's unit denies this kind of device; "
                f"systemctl edit edge-agent, [Service] DeviceAllow={path} rw"
            )
        wanted = [path, *islice(inside, _MOST)]
        with self._acting():
            for each in wanted:
                if (why := _refused(each)) is not None:
                    return f"{each}: the service's user {self.name} {why}"
        return None

    def trouble_writing(self, folder: Path) -> str | None:
        """Return why the user cannot write to a folder or files in it, or None.

        The folder must exist.
        """
        if (hiding := self._hiding(folder)) is not None:
            return hiding
        place = folder.resolve()
        if not any(place.is_relative_to(each) for each in self.writable):
            return (
                f"{folder}: the service may only read it (ProtectSystem= of its unit); leave "
                f"state_dir out, or: systemctl edit edge-agent, [Service] ReadWritePaths={folder}"
            )
        for each in self.made:
            if place.is_relative_to(each) and each.stat().st_uid != self.uid:
                return None  # systemd will give it, with its content, to the user
        inside = [each for each in islice(_inside(folder), _MOST) if not each.is_symlink()]
        with self._acting():
            if not _may(folder.parent, os.X_OK):
                return f"{folder}: the service's user {self.name} {_refused(folder)}"
            for each in (folder, *inside):
                if not _may(each, os.W_OK):
                    return (
                        f"{each}: the service's user {self.name} may not write it; "
                        f"chown -R {self.name}: {folder}"
                    )
        return None

    def _is_allowed(self, path: Path) -> bool:
        """Whether the unit allows a device; True for a path that is not a device."""
        known = path.stat()
        if self.devices is None or not stat.S_ISCHR(known.st_mode):
            return True
        major = os.major(known.st_rdev)
        kinds = {"char-*", f"char-{major}", *(f"char-{name}" for name in _drivers(major))}
        for each in self.devices:
            if any(fnmatchcase(kind, each) for kind in kinds):
                return True
            named = Path(each)
            if named.is_absolute() and named.exists() and named.stat().st_rdev == known.st_rdev:
                return True
        return False

    def _hiding(self, path: Path) -> str | None:
        place = path.resolve()
        hiding = [each for each in self.hidden if place.is_relative_to(each)]
        if hiding and not any(place.is_relative_to(each) for each in self.bound):
            return (
                f"{path}: the service does not see {hiding[0]} ({self.hidden[hiding[0]]}); move it"
            )
        return None

    def _acting(self) -> AbstractContextManager[None]:
        """Act with the user's rights."""
        return acting_as(User(self.uid, self.gid, self.groups))


def service_user() -> ServiceUser | None:
    """Return the user of the installed service, or None if it is root or none is installed."""
    keys = unit_keys(UNIT)
    try:
        user = pwd.getpwnam(keys.get("User", ""))
        gid = grp.getgrnam(keys["Group"]).gr_gid if keys.get("Group") else user.pw_gid
        more = [grp.getgrnam(name).gr_gid for name in keys.get("SupplementaryGroups", "").split()]
    except KeyError:
        return None
    if user.pw_uid == 0:
        return None
    hidden: dict[Path, str] = {}
    if keys.get("ProtectHome") in _YES | {"tmpfs"}:
        hidden |= dict.fromkeys(_HOMES, "ProtectHome= of its unit")
    if keys.get("PrivateTmp") in _YES | {"disconnected"}:
        hidden |= dict.fromkeys(_TEMPORARY, "PrivateTmp= of its unit")
    bound = " ".join(keys.get(key, "") for key in ("BindPaths", "BindReadOnlyPaths")).split()
    made = tuple(_STATES / name.split(":")[0] for name in keys.get("StateDirectory", "").split())
    writable: tuple[Path, ...] = (Path("/"),)
    if keys.get("ProtectSystem") == "strict":
        paths = keys.get("ReadWritePaths", "").split() + keys.get("BindPaths", "").split()
        writable = (*made, *(Path(path.lstrip("-+").split(":")[-1]) for path in paths))
    devices = None
    if keys.get("DevicePolicy", "auto") != "auto" or keys.get("DeviceAllow"):
        devices = tuple(keys.get("DeviceAllow", "").split())
    return ServiceUser(
        user.pw_name,
        user.pw_uid,
        gid,
        (*os.getgrouplist(user.pw_name, gid), *more),
        keys.get("ExecStart", ""),
        hidden,
        tuple(Path(each.split(":")[0]) for each in bound),
        made,
        writable,
        devices,
    )


def state_user(state: Path) -> User | None:
    """Return the user to act as in a state folder, with the groups that the service's unit adds.

    None: the user of this process.
    """
    owner, service = owner_of(state), service_user()
    if owner is None or service is None or service.uid != owner.uid:
        return owner
    return User(service.uid, service.gid, service.groups)


def _drivers(major: int) -> list[str]:
    """Return the names of a major number's character devices in /proc/devices."""
    listed = Path("/proc/devices").read_text(encoding="utf-8").partition("Block devices")[0]
    pairs = [line.split() for line in listed.splitlines() if line.strip()[:1].isdigit()]
    return [name for number, name in pairs if number == str(major)]


def _inside(folder: Path) -> Iterator[Path]:
    """Iterate over a folder's content, except for the file system's own folder for fsck."""
    top = folder / "lost+found"
    return (each for each in folder.rglob("*") if each != top and top not in each.parents)


def unit_keys(unit: Path) -> dict[str, str]:
    """Read the keys of a unit and its drop-ins; values of list keys are joined."""
    keys: dict[str, str] = {}
    places = (place / f"{unit.name}.d" for place in (unit.parent, _RUNTIME))
    added = (path for place in places for path in place.glob("*.conf"))
    for path in (unit, *sorted(added, key=lambda path: path.name)):
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
        for line in text.splitlines():
            key, equals, value = (part.strip() for part in line.partition("="))
            if not equals or line.startswith(("#", ";")):
                continue
            before = keys.get(key, "") if key in _LISTS and value else ""
            keys[key] = f"{before} {value}".strip()
    return keys


def _refused(path: Path) -> str | None:
    """Return why the current user may not use a file or folder, with the fix, or None."""
    mode = os.stat(path).st_mode if _may(path.parent, os.X_OK) else 0  # noqa: PTH116
    wanted = os.R_OK
    if stat.S_ISDIR(mode):
        wanted |= os.X_OK
    if stat.S_ISCHR(mode):
        wanted |= os.W_OK
    if _may(path, wanted):
        return None
    for folder in (*reversed(path.parents), *reversed(path.resolve().parents)):
        if not _may(folder, os.X_OK):
            return f"may not enter {folder}; move it, or: chmod o+x {folder}"
    if stat.S_ISCHR(mode):
        return "may not use it; make it a member of the group that owns it"
    return "may not read it; give it the right, e.g. by chgrp and chmod g+r"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)
