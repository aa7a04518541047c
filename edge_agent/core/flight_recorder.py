"""Flight recorder: the calls into native code, written to a file that outlives a crash.

A crash in a driver, or a hang that ends with the watchdog's SIGKILL, leaves no exception to catch.
So each call into an engine is recorded in a page of the state folder that is mapped into memory:
an entry costs some microseconds, waits for no disk, and is still there after the process has died.
The next run reads the calls in flight (`previous_crash`), and its crash ledger counts them.

There is one per process: `recorder` writes nothing until it is opened, so commands and trials,
whose crashes do not end the agent, need no page. It imports little: the start waits for it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from .frozen import record
from .plain_file import open_plain_file

FILE = "flight"
STARTING = "starting"
PAGE = 4096
"""Size of the page, bytes; the report of Python's faulthandler follows it in the file."""
PLACES = 20
"""Calls that can be recorded at a time; further ones are not."""
LOAD_SECONDS = 300.0
"""Longest load on a CPU; after that the engine counts as hung."""
DEVICE_SECONDS = 900.0
"""Longest load on a GPU or NPU, which may take minutes (openvino#1586)."""
SLOW_SECONDS = 10.0
"""An inference that takes longer is reported in health."""

_INFERS = "is inside one inference"
_RUNNING, _CLEAN = b"run.", b"end."
_HUNG, _MEMORY, _FIRST, _WIDTH = 8, 192, 256, 192
"""Offsets in the page: the call that hangs; `_memory_kills` at last; first entry; its size."""
# As faulthandler writes them; not compiled before they are needed.
_CURRENT = rb"Current thread 0x([0-9a-f]+) "
_FATAL = rb"Fatal Python error: ([^\n]{1,80})"


@record
class EngineCall:
    """A call into an engine."""

    kind: str
    """load, infer, or ask: an inference on what a client has sent"""
    target: str
    """Model, engine and device, as `call_target` returns them."""
    thread: int = 0


@record
class PreviousCrash:
    """A run that did not end normally."""

    why: str
    """How it ended, for the log: "crashed (Aborted)"."""
    calls: tuple[EngineCall, ...]
    """Calls in flight when it ended, which may be the cause; empty: none is known."""
    self_inflicted: bool = True
    """Whether a call may be the cause; False: it was killed, or the power failed."""

    @property
    def asked(self) -> bool:
        """Whether what a client has sent may be the cause."""
        return any(call.kind == "ask" for call in self.calls)

    def for_use(self, models: Collection[str]) -> PreviousCrash:
        """Return the same for a device whose pipelines use these models.

        A model that is only asked serves nobody else: a question counts as any inference.
        """
        calls = [
            replace(call, kind="infer")
            if call.kind == "ask" and call.target.partition("@")[0] not in models
            else call
            for call in self.calls
        ]
        return replace(self, calls=tuple(calls))


def call_target(model: str, engine: str, device: str, network: str | None) -> str:
    """Return the name of a model on an engine; it changes when the network file changes.

    *network* is the path of the network file; None: a prepared form.
    """
    if network is None:
        return f"{model} {engine}:{device} form"
    try:
        known = os.stat(network)  # noqa: PTH116 - before the first result
        stamp = f"{known.st_size:x}-{known.st_mtime_ns:x}"
    except OSError:
        stamp = "?"
    return f"{model} {engine}:{device} {stamp}"


class Page:
    """The first page of a file, mapped into memory, written so that no error ends the process.

    A store by ourselves raises SIGBUS where the file system needs a new block for it and has none
    (btrfs and f2fs on a full disk), or has been shut down. So the kernel stores: for it the same is
    an error of a system call.
    """

    def __init__(self, file: int) -> None:
        """Map a file of at least a page.

        Raises:
            OSError: it cannot be mapped.
        """
        self._page = mmap.mmap(file, PAGE)
        self._view = memoryview(self._page)
        try:
            self._draft = os.memfd_create("flight")
        except (AttributeError, OSError):  # some builds of Python lack it (astral-sh/uv#15081)
            self._draft = -1
        self._lock = threading.Lock()

    def write(self, at: int, data: bytes) -> None:
        """Write bytes at an offset; what cannot be written is left out."""
        # ValueError: it is closed, and the run ends normally.
        with (
            self._lock,
            contextlib.suppress(OSError, ValueError),
            self._view[at : at + len(data)] as place,
        ):
            if self._draft < 0:
                place[:] = data
            else:
                os.pwrite(self._draft, data, at)
                os.preadv(self._draft, [place], at)

    def write_text(self, at: int, text: str, width: int) -> None:
        """Write a text of at most *width* bytes with the zero byte that ends it."""
        self.write(at, text.encode("utf-8", "replace")[: width - 1] + b"\0")

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._view.release()
            self._page.close()
            if self._draft >= 0:
                os.close(self._draft)


class Recorder:
    """Records calls into engines, in memory and in the page."""

    def __init__(self) -> None:
        self._page: Page | None = None
        self._hung = False
        self._file = -1
        self._before: int | None = None
        """See `last_run_before_boot`."""
        self._free = deque(range(PLACES))
        self._now: dict[int, tuple[float, str, str]] = {}
        """Start time, kind of call and target, by number of the entry."""

    def open(self, state: str) -> None:
        """Open the page for writing, clearing the entries of the last run.

        If the folder cannot be written, nothing is recorded, and the agent runs anyway.
        """
        path = os.path.join(state, FILE)  # noqa: PTH118 - as above
        self._before = last_run_before_boot(state)
        try:
            # Not the old file truncated: that would kill a process that still has it mapped.
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.unlink(path)  # noqa: PTH108
                except IsADirectoryError:
                    os.rename(path, f"{path}.damaged")  # noqa: PTH104
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
            # Written, not only extended: a page without a disk block takes no entry on a full disk.
            os.write(self._file, _RUNNING.ljust(PAGE, b"\0"))
            self._page = Page(self._file)
        except (OSError, ValueError):
            self.close()
            return
        self.remember_kills()
        faulthandler.enable(self._file)

    def close(self) -> None:
        """Record that this run ends normally, unless a call hangs."""
        page, self._page = self._page, None
        if page is not None:
            faulthandler.disable()
            if not self._hung:
                page.write(0, _CLEAN)
            page.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remember_kills(self) -> None:
        """Record for the next run how many processes the kernel has killed for lack of memory.

        The later this was called, the fewer kills of other processes are taken for this one's.
        """
        if self._page is not None:
            boot, kills = _memory_kills()
            before = "" if self._before is None else self._before
            self._page.write_text(_MEMORY, f"{boot} {kills} {before}", _FIRST - _MEMORY)

    # Calls in flight

    def enter(self, kind: str, target: str) -> int:
        """Record that a call begins; return the index of its entry, or -1 if all are in use."""
        try:
            number = self._free.pop()
        except IndexError:
            return -1
        self._now[number] = (time.monotonic(), kind, target)
        page = self._page
        if page is not None:
            words = f"{kind} {threading.get_ident():x} {target}"
            page.write_text(_FIRST + number * _WIDTH, words, _WIDTH)
        return number

    def leave(self, number: int) -> None:
        """Record that a call has returned."""
        if number < 0:
            return
        self._now.pop(number, None)
        page = self._page
        if page is not None:
            page.write(_FIRST + number * _WIDTH, b"\0")
        self._free.append(number)

    @contextmanager
    def call(self, kind: str, target: str) -> Iterator[None]:
        """Record a call for the duration of the context."""
        number = self.enter(kind, target)
        try:
            yield
        finally:
            self.leave(number)

    def stuck(self, seconds: float) -> EngineCall | None:
        """Return an inference that has lasted longer than *seconds*, or a load that is too slow."""
        now = time.monotonic()
        for since, kind, target in self._calls():
            if now - since > (_load_seconds(target) if kind == "load" else seconds):
                return EngineCall(kind, target)
        return None

    def is_within(self, model: str, before: float) -> bool:
        """Whether a call into a model began before a time, monotonic, and has not returned."""
        return any(
            since < before and target.startswith(f"{model} ") for since, _, target in self._calls()
        )

    def problems(self) -> list[str]:
        """List the calls that last too long, as texts for health."""
        verbs = {"load": "is being loaded", "infer": _INFERS, "ask": f"{_INFERS}, for a client,"}
        now = time.monotonic()
        return [
            f"model {short_name(target)}: {verbs[kind]} for {now - since:.0f} s; "
            "the engine may hang"
            for since, kind, target in self._calls()
            if now - since > (_load_seconds(target) / 5 if kind == "load" else SLOW_SECONDS)
        ]

    def _calls(self) -> list[tuple[float, str, str]]:
        while True:
            try:
                return list(self._now.values())
            except RuntimeError:
                continue  # another thread has entered a call meanwhile

    def mark_hung(self, call: EngineCall | None) -> None:
        """Record the call that hangs, in case this run ends because of it; None: no call hangs."""
        self._hung = call is not None
        if self._page is not None:
            words = f"{call.kind} {call.thread:x} {call.target}" if call is not None else ""
            self._page.write_text(_HUNG, words, _MEMORY - _HUNG)


recorder = Recorder()


def mark_starting(state: str) -> bool:
    """Record that native code will run before this process locks the state folder.

    Returns:
        False if the previous run got no further: the fast start may be the cause.
    """
    try:
        os.close(os.open(os.path.join(state, STARTING), os.O_CREAT | os.O_EXCL, 0o600))  # noqa: PTH118
    except FileExistsError:
        return False
    except OSError:
        return True  # an unwritable disk is no reason for a slow start
    return True


def clear_starting(state: str) -> None:
    """Clear the mark of `mark_starting`: from here on the recorder is open."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(state, STARTING))  # noqa: PTH108, PTH118


def previous_crash(state: str) -> PreviousCrash | None:
    """Return how the last run ended, or None if it ended normally, or there was none."""
    try:
        with open_plain_file(os.path.join(state, FILE)) as file:  # noqa: PTH118 - as above
            data = file.read(16 * PAGE)
    except OSError:
        return None
    if len(data) < PAGE or not data.startswith(_RUNNING):
        return None
    calls = [
        each
        for number in range(PLACES)
        if (each := _read(data, _FIRST + number * _WIDTH, _WIDTH)) is not None
    ]
    hung = _read(data, _HUNG, _MEMORY - _HUNG)
    fatal = re.search(_FATAL, data[PAGE:])
    if fatal is not None:
        crashed = f"crashed ({fatal[1].decode('ascii', 'replace')})"
        # Python does not know an engine's own threads: then every call in flight is suspect.
        thread = re.search(_CURRENT, data[PAGE:])
        guilty = [each for each in calls if thread and each.thread == int(thread[1], 16)]
        return PreviousCrash(crashed, tuple(guilty[-1:] or _most_suspect(calls)))
    if hung is not None:
        return PreviousCrash("hung inside an engine", (hung,))
    if not _killed_for_memory(data):
        return PreviousCrash("was killed, or the power failed", (), self_inflicted=False)
    # A load takes more memory than any inference beside it.
    loads = [each for each in calls if each.kind == "load"]
    suspects = tuple(loads or _most_suspect(calls))
    return PreviousCrash("was killed for lack of memory", suspects, self_inflicted=bool(suspects))


def last_run_before_boot(state: str) -> int | None:
    """Return when the last run before the machine was started ended, seconds since 1970, or None.

    None: there was none, or it is not known.
    """
    try:
        with open_plain_file(os.path.join(state, FILE)) as file:  # noqa: PTH118 - as above
            boot, _, before = _last_kills(file.read(PAGE))
            ended = int(os.fstat(file.fileno()).st_mtime)
    except OSError:
        return None
    if boot == _memory_kills()[0]:
        return int(before) if before.isdecimal() else None
    return ended if boot else None


def _last_kills(data: bytes) -> tuple[str, str, str]:
    """Return what `remember_kills` recorded; empty: not known.

    The boot id, the kills, and when the last run before that boot ended.
    """
    said = data[_MEMORY:_FIRST].partition(b"\0")[0].decode("ascii", "replace")
    boot, kills, before = (*said.split(" "), "", "", "")[:3]
    return boot, kills, before


def _read(data: bytes, at: int, width: int) -> EngineCall | None:
    """Parse an entry; return None if it is missing or damaged."""
    words = data[at : at + width].partition(b"\0")[0].decode("utf-8", "replace")
    match = re.fullmatch(r"(load|infer|ask) ([0-9a-f]+) (.+)", words)
    return EngineCall(match[1], match[3], int(match[2], 16)) if match else None


def _most_suspect(calls: list[EngineCall]) -> list[EngineCall]:
    """Return the questions among the calls, if any: pipelines must not pay for those."""
    return [call for call in calls if call.kind == "ask"] or calls


def _load_seconds(target: str) -> float:
    return LOAD_SECONDS if ":CPU " in target else DEVICE_SECONDS


def short_name(target: str) -> str:
    """Return a call's target without the stamp of the network file."""
    return target.rpartition(" ")[0]


def _killed_for_memory(data: bytes) -> bool:
    """Whether the kernel has killed for lack of memory since the last run looked, a second ago.

    A later boot has other kills, and says nothing about that run.
    """
    boot, kills, _ = _last_kills(data)
    now = _memory_kills()
    return kills.isdecimal() and boot == now[0] and int(kills) < now[1]


def _memory_kills() -> tuple[str, int]:
    """Return this boot's id, and how many processes it has killed for lack of memory.

    The machine's: the counts of a service's or container's control group begin anew with it.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123 - as above
            boot = file.read(36).decode("ascii", "replace")
        with open("/proc/vmstat", "rb") as file:  # noqa: PTH123 - as above
            _, _, after = file.read().partition(b"\noom_kill ")
    except OSError:
        return "", 0
    count = after.partition(b"\n")[0]
    return boot, int(count) if count.isdigit() else 0
