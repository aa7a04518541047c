"""What this process is doing inside native code, written where it outlives the process.

A crash in a driver, or a hang that ends with the watchdog's SIGKILL, leaves no exception to catch.
So each call into an engine is noted in a page of the state folder that is mapped into memory: a
note costs 3 µs (measured) and no system call, and it is still there when the process is not.
What the last run was doing when it died is read by the next one (`last_words`), which then knows
what to leave alone (`crashes`).

One for the process, as its death is: `recorder` notes nothing until it is opened, so that commands
and trials, which end alone, need none. Light: it stands on the way to the first result.
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
from collections.abc import Iterator
from contextlib import contextmanager

from .frozen import record

FILE = "flight"
STARTING = "starting"
PAGE = 4096
"""What follows it in the file is what Python says of a fatal signal."""
PLACES = 20
"""Calls that are noted at a time; one more goes unnoted."""
LOAD_SECONDS = 300.0
"""An engine that has been building a network for a processor for longer hangs."""
DEVICE_SECONDS = 900.0
"""On a GPU or NPU, where it takes minutes (openvino#1586)."""
SLOW_SECONDS = 10.0
"""A call that takes longer than this is spoken of."""

_RUNNING, _CLEAN = b"run.", b"end."
_HUNG, _MEMORY, _FIRST, _WIDTH = 8, 192, 256, 192
"""Where in the page: what hung; kills for want of memory before; the first place, and its size."""
# What faulthandler writes; not compiled before it is needed.
_CURRENT = rb"Current thread 0x([0-9a-f]+) "
_FATAL = rb"Fatal Python error: ([^\n]{1,80})"


@record
class Doing:
    """A call into an engine."""

    kind: str
    """load or infer"""
    what: str
    """Model, engine and device, as `place` has them."""
    thread: int = 0


@record
class LastWords:
    """How a run that did not end by itself came to its end."""

    why: str
    """In words, for the log: what became of it."""
    doing: tuple[Doing, ...]
    """What it was doing that may be to blame; empty: nothing is known to be."""
    by_itself: bool = True
    """It brought its end about; else somebody, or a power cut, did."""


def place(model: str, engine: str, device: str, network: str) -> str:
    """Name a model on an engine; once its file is another one, it is another name."""
    try:
        known = os.stat(network)  # noqa: PTH116 - before the first result
        stamp = f"{known.st_size:x}-{known.st_mtime_ns:x}"
    except OSError:
        stamp = "?"
    return f"{model} {engine}:{device} {stamp}"


class Recorder:
    """Notes what goes on, in memory and in the page."""

    def __init__(self) -> None:
        self._page: mmap.mmap | None = None
        self._file = -1
        self._free = deque(range(PLACES))
        self._now: dict[int, tuple[float, str, str]] = {}
        """By place: since when, the kind of call, and what on."""

    def open(self, state: str) -> None:
        """Begin to write to the page; what the last run wrote there is gone.

        Where the folder cannot be written, a crash leaves no trace: what runs, runs.
        """
        path = os.path.join(state, FILE)  # noqa: PTH118 - as above
        try:
            # Not the old file cut short: who has it mapped still would die of that.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
            # Written, not only made longer: on a full disk a mapped page without a place on the
            # disk is death at the first note.
            os.write(self._file, _RUNNING.ljust(PAGE, b"\0"))
            self._page = mmap.mmap(self._file, PAGE)
        except (OSError, ValueError):
            self.close()
            return
        faulthandler.enable(self._file)

    def close(self) -> None:
        """Note that the end that comes now is an orderly one, unless something hangs."""
        page, self._page = self._page, None
        if page is not None:
            faulthandler.disable()
            if not page[_HUNG]:
                page[: len(_CLEAN)] = _CLEAN
            page.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remember_kills(self) -> None:
        """Note how often the kernel has killed for want of memory; in time for the next run."""
        if self._page is not None:
            self._page[_MEMORY : _MEMORY + 16] = f"{_memory_kills()}".encode().ljust(16, b"\0")

    # What goes on

    def enter(self, kind: str, what: str) -> int:
        """Note that a call begins; gives its place."""
        try:
            number = self._free.pop()
        except IndexError:
            return -1
        self._now[number] = (time.monotonic(), kind, what)
        page = self._page
        if page is not None:
            with contextlib.suppress(ValueError):  # closed meanwhile: the end is an orderly one
                words = f"{kind} {threading.get_ident():x} {what}"
                _write(page, _FIRST + number * _WIDTH, words)
        return number

    def leave(self, number: int) -> None:
        """Note that it is over."""
        if number < 0:
            return
        self._now.pop(number, None)
        page = self._page
        if page is not None:
            with contextlib.suppress(ValueError, IndexError):  # as above
                page[_FIRST + number * _WIDTH] = 0
        self._free.append(number)

    @contextmanager
    def doing(self, kind: str, what: str) -> Iterator[None]:
        """Note a call while it lasts."""
        number = self.enter(kind, what)
        try:
            yield
        finally:
            self.leave(number)

    def stuck(self, seconds: float) -> Doing | None:
        """Give an inference that has lasted longer than this, or a load beyond all patience."""
        now = time.monotonic()
        for since, kind, what in self._calls():
            if now - since > (seconds if kind == "infer" else _load_seconds(what)):
                return Doing(kind, what)
        return None

    def why(self) -> list[str]:
        """Say which calls last too long."""
        doing = {"load": "is being loaded", "infer": "is inside one inference"}
        now = time.monotonic()
        return [
            f"model {short(what)}: {doing[kind]} for {now - since:.0f} s; the engine may hang"
            for since, kind, what in self._calls()
            if now - since > (SLOW_SECONDS if kind == "infer" else _load_seconds(what) / 5)
        ]

    def _calls(self) -> list[tuple[float, str, str]]:
        while True:
            try:
                return list(self._now.values())
            except RuntimeError:
                continue  # another thread has begun a call meanwhile

    def hung(self, call: Doing | None) -> None:
        """Note what hangs, for the next run to know when this one ends for it; None: nothing."""
        if self._page is not None:
            words = f"{call.kind} {call.thread:x} {call.what}" if call is not None else ""
            _write(self._page, _HUNG, words, _MEMORY - _HUNG)


recorder = Recorder()


def take_off(state: str) -> bool:
    """Note that native work begins before this process is known to be the folder's only agent.

    Returns:
        False where the run before got no further than that: the quick way may be why.

    """
    try:
        os.close(os.open(os.path.join(state, STARTING), os.O_CREAT | os.O_EXCL, 0o600))  # noqa: PTH118
    except FileExistsError:
        return False
    except OSError:
        return True  # a disk that takes nothing is no reason to be slow
    return True


def aloft(state: str) -> None:
    """Note that it has come further: from here on the recorder knows."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(state, STARTING))  # noqa: PTH108, PTH118


def last_words(state: str) -> LastWords | None:
    """Read how the last run ended; None where it ended in order, or there was none."""
    try:
        with open(os.path.join(state, FILE), "rb") as file:  # noqa: PTH118, PTH123 - as above
            data = file.read(16 * PAGE)
    except OSError:
        return None
    if len(data) < PAGE or not data.startswith(_RUNNING):
        return None
    doing = [
        each
        for number in range(PLACES)
        if (each := _read(data, _FIRST + number * _WIDTH, _WIDTH)) is not None
    ]
    hung = _read(data, _HUNG, _MEMORY - _HUNG)
    fatal = re.search(_FATAL, data[PAGE:])
    if fatal is not None:
        crashed = f"crashed ({fatal[1].decode('ascii', 'replace')})"
        # An engine's own threads are none of Python's: then all that went on is under suspicion.
        thread = re.search(_CURRENT, data[PAGE:])
        guilty = [each for each in doing if thread and each.thread == int(thread[1], 16)]
        return LastWords(crashed, tuple(guilty[-1:] or doing))
    if hung is not None:
        return LastWords("hung inside an engine", (hung,))
    before = data[_MEMORY : _MEMORY + 16].rstrip(b"\0")
    loads = tuple(each for each in doing if each.kind == "load")
    if loads and before.isdigit() and _memory_kills() > int(before):
        return LastWords("was killed for want of memory", loads)
    return LastWords("was killed, or the power failed", (), by_itself=False)


def _write(page: mmap.mmap, at: int, text: str, width: int = _WIDTH) -> None:
    words = text.encode("utf-8", "replace")[: width - 1]
    page[at : at + len(words) + 1] = words + b"\0"


def _read(data: bytes, at: int, width: int) -> Doing | None:
    """Read a note; None where there is none, or what is there is none of ours."""
    words = data[at : at + width].partition(b"\0")[0].decode("utf-8", "replace")
    match = re.fullmatch(r"(load|infer) ([0-9a-f]+) (.+)", words)
    return Doing(match[1], match[3], int(match[2], 16)) if match else None


def _load_seconds(what: str) -> float:
    return LOAD_SECONDS if ":CPU " in what else DEVICE_SECONDS


def short(what: str) -> str:
    """Name a place without its file's stamp."""
    return what.rpartition(" ")[0]


def _memory_kills() -> int:
    """Count the processes that the kernel has killed for want of memory since it booted."""
    try:
        with open("/proc/vmstat", "rb") as file:  # noqa: PTH123 - as above
            found = re.search(rb"^oom_kill (\d+)$", file.read(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
