"""The installations of the service: environments under /opt/edge-agent, of which `current` runs.

Each is a folder, or an image file beside an empty folder on which a unit mounts it. Programs in an
environment refer to the folder that it was made in; mounted there, these references stay valid.
Also the programs of the system that this takes, and the running version as pip can install it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from ... import __version__
from ...core.errors import AgentError, UsageError
from ...core.files import drop_lock, take_lock

HOME = Path("/opt/edge-agent")
UNITS = Path("/etc/systemd/system")
COMMAND = Path("/usr/local/bin/edge-agent")
_SHARED = Path("/usr/local/share")
COMPLETION = {
    "bash": _SHARED / "bash-completion/completions/edge-agent",
    "zsh": _SHARED / "zsh/site-functions/_edge-agent",
    "fish": Path("/etc/fish/completions/edge-agent.fish"),
    "man": _SHARED / "man/man1/edge-agent.1",
}
"""Where shells look for what they complete, and `man` for the page: links to `completion`."""
LOCK = Path("/run/edge-agent-install.lock")
"""Locked by whoever changes installations; not in HOME, which `uninstall` removes."""
_SUFFIX = ".squashfs"
_MARK = ".unfinished"
_SKIPPED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files of an installed distribution that are not in its wheel."""
# 64 KiB per block: with larger ones a start unpacks more than it needs, smaller ones compress
# worse. A level above 6 takes ten times as long to save a fourteenth of the size.
_PACKING = (
    *("-comp", "zstd", "-Xcompression-level", "6", "-b", "65536", "-no-xattrs", "-all-root"),
    *("-noappend", "-quiet", "-no-progress"),
)
# A service, because a mount unit cannot configure the loop device. By default that reads up to
# 2.5 MB ahead at every block, and caches the compressed image, too (measured, for the imports of a
# start: 58 MB read, 23 when configured).
_MOUNT = """\
[Unit]
Description=edge-agent {name}, a compressed read-only image
RequiresMountsFor={image}
Before=edge-agent.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=mount -t squashfs -o loop,ro,nodev,nosuid {image} {place}
# It goes without, too: not every file system has direct reads. 64 sectors are 32 KiB.
ExecStart=-/bin/sh -c 'loop=$$(findmnt -n -o SOURCE {place}); \
    blockdev --setra 64 "$$loop"; losetup --direct-io=on "$$loop"'
# A command that still runs from a version which is removed ends in peace.
ExecStop=umount --lazy {place}

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment, in a folder or an image."""

    place: Path
    """Where its files are."""

    @property
    def version(self) -> str:
        return self.place.name.rpartition("-")[0]

    @property
    def image(self) -> Path:
        """The file that it is mounted from, if it is packed."""
        return self.place.with_name(f"{self.place.name}{_SUFFIX}")

    @property
    def python(self) -> Path:
        return self.place / "bin" / "python"

    @property
    def completion(self) -> Path:
        """The folder with what shells complete, and the man page."""
        return self.place / "share" / "edge-agent"

    @property
    def units(self) -> Path:
        """The folder with the units of this version."""
        if (found := self._find_units()) is not None:
            return found
        raise AgentError(f"{self.place}: has no units; it is damaged, or not mounted")

    @property
    def is_complete(self) -> bool:
        """Whether it was made to the end and its service stayed up.

        Those without a mark may be of earlier versions.
        """
        whole = self.image.is_file() or self._find_units() is not None
        return whole and not self.mark.exists()

    @property
    def mark(self) -> Path:
        """The file that is there until its service has stayed up, locked by whoever makes it."""
        return self.place.with_name(f".{self.place.name}{_MARK}")

    @contextmanager
    def being_made(self) -> Iterator[None]:
        """Mark it as incomplete until the context ends without an error."""
        self.mark.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(self.mark, like=self.mark.parent)
        try:
            yield
            self.mark.unlink()
        finally:
            drop_lock(lock)

    def pack(self) -> None:
        """Pack the environment into an image, and mount the image in its place."""
        partial = self.image.with_name(f".{self.image.name}")
        run("mksquashfs", str(self.place), str(partial), *_PACKING)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(self.image)
        shutil.rmtree(self.place)
        self.place.mkdir(mode=0o755)
        unit = self._unit
        unit.write_text(self.mount_unit())
        run("systemctl", "daemon-reload")
        run("systemctl", "enable", "--quiet", "--now", unit.name)

    def mount_unit(self) -> str:
        """Return the text of the unit that mounts its image."""
        return _MOUNT.format(name=self.version, image=self.image, place=self.place)

    def remove(self) -> None:
        """Remove its files, image, and mount unit, unless it is in use."""
        if self == current():
            return
        with suppress(OSError):  # the next install or uninstall removes what a kill leaves of it
            self.mark.touch()
        unit = self._unit
        if unit.exists():
            output("systemctl", "disable", "--now", unit.name)
            unit.unlink()
            run("systemctl", "daemon-reload")
        for file in (self.image, self.image.with_name(f".{self.image.name}")):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.place, ignore_errors=True)
        self.mark.unlink(missing_ok=True)

    def _find_units(self) -> Path | None:
        found = self.place.glob("lib/python*/site-packages/edge_agent/_bundled/systemd")
        return next(found, None)

    @property
    def _unit(self) -> Path:
        """The file of its mount unit."""
        return UNITS / f"edge-agent-image-{self.place.name}.service"


def new() -> Installation:
    """Return a new installation of this version, which is not created yet."""
    return Installation(HOME / f"{__version__}-{time.strftime('%Y%m%d%H%M%S')}")


def current() -> Installation | None:
    """Return the installation in use."""
    link = HOME / "current"
    # Not resolved: HOME may be reached by a link, and others are compared by their paths in it.
    return Installation(HOME / link.readlink()) if link.is_symlink() else None


@contextmanager
def alone() -> Iterator[None]:
    """Allow no other install or uninstall until the context ends.

    A second one is refused. Only one by dpkg waits, since nobody repeats it.
    """
    try:
        lock = take_lock(LOCK, like=LOCK.parent, wait=by_dpkg())
    except BlockingIOError:
        raise AgentError("another install or uninstall is under way; nothing was changed") from None
    try:
        yield
    finally:
        drop_lock(lock)


def installations() -> list[Installation]:
    """List the complete installations, oldest first; other files beside them are ignored."""
    found = [each for each in _all() if each.is_complete]
    return sorted(found, key=lambda each: each.place.name.rpartition("-")[2])


def remove_unfinished() -> None:
    """Remove what killed installs have left, but nothing that is still being made."""
    for each in _all():
        if each.is_complete or each == current():
            continue
        try:
            lock = take_lock(each.mark, like=HOME)
        except BlockingIOError:
            continue
        try:
            progress(f"removing {each.place}, which an install that was cut off has left")
            each.remove()
        finally:
            drop_lock(lock)


def _all() -> list[Installation]:
    """List everything that an install has made or begun."""
    if not HOME.is_dir():
        return []
    found = {Installation(place) for place in HOME.iterdir() if not place.is_symlink()}
    ours = {each for each in found if (each.place / "pyvenv.cfg").is_file() or each.image.is_file()}
    marks = (path.name for path in HOME.glob(f".*{_MARK}"))
    return [*(ours | {Installation(HOME / name[1 : -len(_MARK)]) for name in marks})]


def point_to(installation: Installation) -> None:
    """Atomically point `current` and the command on the PATH to an installation."""
    # After a power cut a name must not lead to files whose content was still to be written.
    os.sync()
    temporary = HOME / ".current"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(installation.place.name)
    temporary.replace(HOME / "current")
    if COMMAND.exists() and not COMMAND.is_symlink():
        progress(f"{COMMAND} is another program's; the command is {HOME}/current/bin/edge-agent")
        return
    current_one = Installation(HOME / "current")
    COMMAND.unlink(missing_ok=True)
    COMMAND.symlink_to(current_one.place / "bin" / "edge-agent")
    for name, path in COMPLETION.items():
        if path.is_symlink() or not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(current_one.completion / name)


def by_dpkg() -> bool:
    """Whether this is run by a script of the Debian package."""
    return os.environ.get("DPKG_MAINTSCRIPT_PACKAGE") == "edge-agent"


def packaged() -> str | None:
    """Return the version of the installed Debian package, or None."""
    if shutil.which("dpkg-query") is None:
        return None
    said = output("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "edge-agent")
    status, _, version = said.partition(" ")
    return version if status in {"installed", "half-configured", "unpacked"} else None


def check_images() -> None:
    """Check that images can be made and mounted here, using one of a single byte."""
    if shutil.which("mksquashfs") is None:
        raise UsageError("--image needs mksquashfs; install it: apt install squashfs-tools")
    with tempfile.TemporaryDirectory(prefix="edge-agent-image-") as name:
        folder = Path(name)
        content, image, place = folder / "content", folder / f"image{_SUFFIX}", folder / "place"
        for each in (content, place):
            each.mkdir()
        (content / "byte").write_bytes(b"1")
        try:
            run("mksquashfs", str(content), str(image), *_PACKING)
            run("mount", "-t", "squashfs", "-o", "loop,ro", str(image), str(place))
            run("umount", str(place))
        except AgentError as problem:
            raise UsageError(
                f"--image: this system cannot mount compressed images ({problem}); "
                "install without --image"
            ) from None


UNREACHED = ("connection broken by", "NewConnectionError", "Could not fetch URL")
"""Texts that pip prints if it reaches no index; its last line is then about a conflict."""
_CONFLICT = "ResolutionImpossible"
"""What pip prints also if a package is missing where it looks, as the tested versions are given."""


def own_source(folder: Path) -> Path:
    """Return the path for pip to install from."""
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        return checkout
    try:
        return wheel_of(distribution("edge-agent"), folder)
    except PackageNotFoundError:
        raise AgentError(
            "this is neither a checkout nor an installed package; install it with pip"
        ) from None


def wheel_of(own: Distribution, folder: Path) -> Path:
    """Repack an installed distribution as a wheel, from its own list of files (PEP 376)."""
    site = Path(sysconfig.get_path("purelib"))
    wheel = folder / f"edge_agent-{own.version}-py3-none-any.whl"
    record: list[str] = []
    info = f"edge_agent-{own.version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in own.files or []:
            name = file.as_posix()
            if (
                name.startswith("..")
                or "__pycache__" in name
                or (info in name and file.name in _SKIPPED)
            ):
                continue
            data = (site / file).read_bytes() if (site / file).is_file() else file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return wheel


def run(*command: str, unreached: str = "") -> None:
    """Run a command; *unreached* is the error if it failed without a network."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        if unreached and any(sign in done.stderr for sign in UNREACHED):
            raise AgentError(unreached)
        if _CONFLICT in done.stderr:
            raise AgentError(
                "pip does not find every package in the version that was tested; where it is given "
                "a folder of packages, some are missing there: scripts/bundle makes a file of all"
            )
        words = (done.stderr or done.stdout).strip().splitlines()
        raise AgentError(
            f"{' '.join(command[:3])}: {words[-1] if words else f'status {done.returncode}'}"
        )


def output(*command: str) -> str:
    """Return the output of a command, whether it fails or not."""
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def progress(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)
