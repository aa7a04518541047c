"""Atomic and durable file operations: a power cut leaves the old content or the new.

Not about models: files, folders, owners, locks, and the error for a full disk. The fault points are
the steps at which tests kill the process.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import signal
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from .errors import AgentError, ModelError, UsageError
from .owners import foreign
from .plain_file import NO_PLAIN_FILE, NoPlainFileError, open_plain

log = logging.getLogger(__name__)

FAULT_VARIABLE = "EDGE_AGENT_FAULT"
LOCK_SECONDS = 5.0
"""After so long, waiting for a lock is logged."""
LOCK_PAUSE = 0.01
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk, or a quota, that has no room."""
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}")
"""Name of a file that is to replace another, by `replace_file`."""
_ASIDE = ".damaged"
_LOST = "lost+found"
"""A folder of any mounted disk, which only root may enter."""
_hits = 0


def fault(point: str) -> None:
    """Kill this process as a power cut would if a test asks for it: `EDGE_AGENT_FAULT=point[:nth]`.

    All points are listed in `tests/helpers/fault_points.py`.
    """
    wanted = os.environ.get(FAULT_VARIABLE)
    if wanted is None:
        return
    name, _, nth = wanted.partition(":")
    if name != point:
        return
    global _hits  # noqa: PLW0603 - a counter of the process, like the process's death
    _hits += 1
    if _hits == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Convert disk errors to a one-line ModelError that begins with *doing*.

    Raises:
        ModelError: the disk is full, or another OSError.
    """
    try:
        yield
    except OSError as problem:
        if problem.errno in {*FULL, errno.EFBIG}:
            raise ModelError(
                f"{doing}: the disk is full; delete models that are not used, or lower quota_mb"
            ) from problem
        raise ModelError(f"{doing}: {problem.strerror or problem}") from problem


def make_state_folder(folder: Path) -> None:
    """Create the state folder if it does not exist.

    A folder on a disk that has become read-only is accepted: its models run, and health reports it.

    Raises:
        UsageError: it cannot be created, or this user may not write to it.
    """
    try:
        # As systemd makes it for the unit: what cameras saw and who may lock it is nobody else's.
        folder.mkdir(0o750, parents=True, exist_ok=True)
    except OSError as problem:
        check_state_folder(folder)  # for plainer words, as of /proc
        raise UsageError(f"state_dir: {folder}: {problem.strerror}") from None
    _check_writable(folder, folder)


def check_state_folder(folder: Path) -> Path:
    """Check that `make_state_folder` would succeed, without creating anything.

    Returns:
        The folder itself, or the one in which it would be made.

    Raises:
        UsageError: as there.
    """
    for there in (folder, *folder.absolute().parents):
        try:
            mode = there.stat().st_mode
        except FileNotFoundError:
            continue
        except OSError as problem:
            raise UsageError(f"state_dir: {folder}: {problem.strerror}") from None
        if not stat.S_ISDIR(mode):
            raise UsageError(f"state_dir: {folder}: {there} is no folder")
        if there != folder and _is_of_kernel(there):
            break
        _check_writable(there, folder)
        return there
    raise UsageError(f"state_dir: {folder}: no folder can be made there")


def _is_of_kernel(folder: Path) -> bool:
    """Whether a folder is one of the kernel's own, in which not even root can make another."""
    device = folder.stat().st_dev
    mounts = [top for top in (Path("/proc"), Path("/sys")) if top.is_mount()]
    return device in [top.stat().st_dev for top in mounts]


def _check_writable(there: Path, folder: Path) -> None:
    writable = os.access(there, os.W_OK | os.X_OK, effective_ids=True)
    if writable or os.statvfs(there).f_flag & os.ST_RDONLY:
        return
    words = f"state_dir: {folder}: this user may not write to it; name another folder"
    whose = foreign(folder) if there == folder else ""
    raise UsageError(f"{words}, or if it was restored: {whose}" if whose else words)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that files created, renamed or removed in it are durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync all files and folders under *folder*."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(Path(parent, name), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(parent))


def write_new(path: Path, data: bytes, mode: int = 0o644, *, sync: bool = True) -> None:
    """Create a file and sync its content; its name is durable once its folder is synced.

    Without *sync* nothing is durable yet: the caller must call `sync_tree`.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(descriptor)


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file as a whole: a reader sees the old content or the new."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        write_new(temporary, data, mode)
        copy_owner(temporary, path.parent)
        fault("pointers.written")
        try:
            temporary.replace(path)
        except IsADirectoryError:
            log.warning("%s: is a folder%s", path, put_aside(path))
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fault("pointers.renamed")
    sync_folder(path.parent)


def put_aside(path: Path) -> str:
    """Rename a damaged file so that it can be examined; return a text for the log, or ""."""
    for aside in (path.with_name(path.name + _ASIDE + end) for end in ("", *"23456789")):
        try:
            path.replace(aside)
        except OSError as problem:
            # A folder does not replace a file or another folder.
            if problem.errno in {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY}:
                continue
            break
        return f"; it is kept as {aside.name}"
    return ""  # it stays, and is replaced by the next write


def append_lines(path: Path, lines: bytes, mode: int = 0o644) -> None:
    """Append whole lines to a file of the state folder with these permissions, durably.

    The remains of an interrupted append stay on a separate line, which the reader skips.

    Raises:
        OSError: they cannot be written, or not all of them.
    """
    is_new = not path.exists()
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "ab") as file:
        status = os.fstat(descriptor)
        size = status.st_size
        if status.st_mode & 0o777 & ~mode:
            os.fchmod(descriptor, mode)
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        file.write(lines)
        file.flush()
        os.fdatasync(descriptor)
    if is_new:
        copy_owner(path, path.parent)
        sync_folder(path.parent)


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Open a user's output file for writing.

    The complete file appears, durably, once the context ends without an error; it keeps the mode
    and owner of a file that it replaces. A link to a file stays a link, as with cp(1). Devices such
    as /dev/stdout and named pipes are written to directly.

    Raises:
        UsageError: the path is not of a kind that can be written.
        OSError: it cannot be written.
    """
    try:
        known = path.stat()
    except FileNotFoundError:
        known = None
        if path.is_symlink():
            raise UsageError(f"{path}: is a link to a missing file: {path.readlink()}") from None
    if known is not None and not stat.S_ISREG(known.st_mode):
        if not (stat.S_ISCHR(known.st_mode) or stat.S_ISFIFO(known.st_mode)):
            raise UsageError(f"{path}: is {_kind(known.st_mode)}, expected the name of a file")
        with path.open("wb") as through:
            yield through
        return
    target = path if known is None else path.resolve()
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            if known is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(known.st_mode))
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), known.st_uid, known.st_gid)
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a disk", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "no file")


def remove_tree(folder: Path) -> None:
    """Remove a folder and everything in it; an absent folder is no error."""
    import shutil  # it imports all archive formats

    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return


def copy_owner(path: Path, like: Path) -> None:
    """Change the owner of *path* and everything under it to that of *like*.

    So `sudo edge-agent add` leaves nothing that the service's own user cannot delete. Without root,
    nothing is changed: the files belong to this user.
    """
    if os.geteuid() != 0:
        return
    owner = like.stat()
    if owner.st_uid == 0 and owner.st_gid == 0:
        return
    # By descriptors: the owner may put a link in the place of any folder meanwhile.
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        return
    try:
        for _, folders, names, here in os.fwalk(dir_fd=top):
            for name in (*folders, *names):
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=here, follow_symlinks=False)
        os.fchown(top, owner.st_uid, owner.st_gid)
    finally:
        os.close(top)


def size_of(folder: Path) -> int:
    """Return the total size of the files under *folder*, bytes; files that vanish count as 0.

    A link counts as what it leads to: weights of a model may be links, as in Hugging Face's cache.
    """
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(parent, name).stat().st_size
            except OSError:  # gone, or a link that leads nowhere
                continue
    return total


def subfolders(folder: Path) -> list[Path]:
    """List the subfolders of a folder, sorted by name; empty if it does not exist.

    One that cannot be looked at is among them: whoever enters it says why it cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if _may_be_folder(entry))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and entry.name != _LOST
    except OSError:
        return not is_gone(Path(entry))


def is_gone(path: Path) -> bool:
    """Whether there is certainly nothing at a path.

    What cannot be looked at, such as in a folder that may not be entered, on a broken disk or a
    server that is away, may still be there. `Path.is_file` and its like raise an error for it.
    """
    try:
        path.stat()
    except ValueError:  # no file can have this name
        return True
    except OSError as problem:
        return problem.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
    return False


def same_files(one: Path, other: Path, aside: str) -> bool:
    """Whether two folders hold the same files, not counting those under *aside*."""

    def files(folder: Path) -> list[Path]:
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return sorted(path for path in found if path.parts[0] != aside)

    import filecmp

    names = files(one)
    return names == files(other) and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in names
    )


def read_plain_file(path: Path, limit: int, error: type[AgentError], what: str) -> bytes:
    """Read a plain file of at most *limit* bytes; a pipe or a device is refused before it is read.

    Args:
        path: the file, or a link to one.
        limit: the largest accepted size, bytes; no more than that is read.
        error: the class raised if the file is too large, or not a plain file.
        what: what the file should be, for the error if it is too large: "labels".

    Raises:
        OSError: it cannot be opened or read; a folder is IsADirectoryError.
    """
    try:
        descriptor = open_plain(path)
    except NoPlainFileError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
        raise error(f"{path}: {NO_PLAIN_FILE}; put the file itself there") from None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        size = f"{limit // 2**10} KiB" if limit < 2**20 else f"{limit // 2**20} MiB"
        raise error(f"{path}: larger than {size}, not {what}")
    return data


def path_inside(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file that a model refers to, checked to be inside the model's folder.

    Raises:
        ModelError: it leads outside, or there is no such file; the text begins with *where*.
    """
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
        raise ModelError(f"{where}: {name!r} must be a path inside the model folder")
    path = folder / pure
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{where}: {name!r} leads outside the model folder")
    if not path.is_file():
        if path.exists():
            raise ModelError(f"{where}: {name!r} is no plain file; put the file itself there")
        raise ModelError(f"{where}: {name!r} is missing from {folder}; put it there")
    return path


def take_lock(path: Path, *, wait: bool = False, like: Path | None = None) -> int:
    """Lock a file or folder for this process, until `drop_lock` or the end of the process.

    Raises:
        BlockingIOError: another process holds it, and *wait* is False.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO does not block
    if like is not None and not path.exists():
        flags |= os.O_CREAT
    descriptor = os.open(path, flags, 0o600)  # whoever may read it could hold it forever
    try:
        if flags & os.O_CREAT and like is not None:
            copy_owner(path, like)
        elif like is not None:  # made by an earlier version
            with suppress(OSError):
                os.fchmod(descriptor, 0o600)
        _lock(descriptor, path, wait=wait)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path, *, wait: bool) -> None:
    late = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            if time.monotonic() > late:
                log.warning("%s: another process has locked it; waiting until it ends", path)
                late = inf
            time.sleep(LOCK_PAUSE)
        else:
            return


def drop_lock(descriptor: int) -> None:
    """Release a lock from `take_lock`.

    Closing it is not enough: a child that another thread is just starting also has it open until
    its program runs, and would keep the lock until then.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    from hashlib import file_digest  # not needed before the first result

    with path.open("rb", buffering=0) as file:
        return file_digest(file, "sha256").hexdigest()
