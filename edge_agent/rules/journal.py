"""The journal of events: even after a kill none is lost, and each that has begun is ended.

An event is written here before its result is published, and stays until the broker has it or the
spool has written it to disk. An ongoing event stays until its end. The totals of the lines that it
has crossed are written with it. After a kill, the next start publishes the remaining events again,
as possible copies, and ends those that had begun. The actions that an end will cause are written
with the begin, as the rule may be gone by then, and stay until they have been carried out.

Two files: the state at some time, and the entries since then, appended line by line. Simultaneous
lines from several threads are written together. While one of the two cannot be read, both stay as
they are, and another two beside them take their place; the first start that reads all four joins
them. As each event is of one of the pairs only, none is ended or published for the other's sake.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.files import append_lines, put_aside, sync_folder
from ..core.json_text import read_own
from ..core.names import is_name
from ..core.plain_file import NoPlainFileError, read_plain_bytes
from ..core.state_file import DAMAGED, StateFile
from ..core.threads import Waiting
from ..mqtt import payloads

log = logging.getLogger(__name__)

ALIVE_SECONDS = 10.0
"""Interval at which the journal records that events are still ongoing."""
MOST = 1000
"""Most published events that are kept."""
MOST_BYTES = 1 << 20
"""Most bytes appended before the state is rewritten."""
SLOW_SECONDS = 0.5
"""A disk that takes so long for each of the latest writes is slow, as a worn card is."""
SLOW_WRITES = 5
STUCK_SECONDS = 5.0
"""One that has been at a write for so long may not answer at all."""
RECENT_SECONDS = 60.0

_STATES = frozenset({"once", "begin", "update", "end"})

Payload = dict[str, Any]
Totals = Mapping[str, Mapping[str, Any]]
"""Results of `totals.LineTotals.content` by pipeline."""
Due = Mapping[str, list[dict[str, Any]]]
"""What the ends of ongoing events will cause, by event: actions as in the settings."""
HOLDS = "events that had begun"
MODE = 0o600
"""Permissions of the files: URLs of actions may have a password."""


@dataclass(slots=True, eq=False)
class Entry:
    """An event of QoS 1 that the broker may not have, or an end with actions to carry out."""

    payload: Payload
    published_at: float | None = None
    """Monotonic seconds; None: not yet; infinite: it stays until it is delivered."""
    due: list[dict[str, Any]] = field(default_factory=list)
    """The actions that the end causes, until they have been carried out."""

    @property
    def is_end(self) -> bool:
        """Whether it is the end of an event."""
        return bool(self.payload["state"] == "end")


@dataclass(slots=True)
class _Left:
    """The events left unfinished by a killed agent."""

    fresh: list[Payload]
    open: dict[str, Payload]
    totals: dict[str, Any]
    due: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    number: int = 0
    """Number of the last entry in it."""

    def content(self) -> dict[str, Any]:
        """Return what `_parse` reads."""
        return {
            "number": self.number,
            "fresh": self.fresh,
            "open": list(self.open.values()),
            "totals": dict(self.totals),
            "due": self.due,
        }


class Disk:
    """How long the disk takes for each write, and why the latest failed."""

    def __init__(self, waiting: Waiting) -> None:
        """Set up; *waiting* is also for a thread that waits for another's write."""
        self.waiting = waiting
        self.failure: OSError | None = None
        """Why the latest write failed."""
        self._took = deque[float](maxlen=SLOW_WRITES)
        """Seconds that the latest writes took."""
        self._begun: float | None = None
        """When the present write began, monotonic seconds; None: there is none."""
        self._ended = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure a write; by one thread at a time."""
        begun = self._begun = time.monotonic()
        try:
            yield
        finally:
            self._begun, self._ended = None, time.monotonic()
            self._took.append(self._ended - begun)

    def slow(self) -> float | None:
        """Return the seconds that the disk takes for the latest writes; None: it is not slow."""
        now, begun, took = time.monotonic(), self._begun, list(self._took)
        if begun is not None and now - begun > STUCK_SECONDS:
            return now - begun
        recent = now - self._ended < RECENT_SECONDS
        slow = recent and len(took) == SLOW_WRITES and min(took) > SLOW_SECONDS
        return sum(took) / SLOW_WRITES if slow else None


class Journal:
    """Undelivered and ongoing events, stored in files. Any thread may call it."""

    def __init__(self, path: Path, device: str, waiting: Waiting = nullcontext) -> None:
        """Read the state of the last run; its newest part is in *path* with the suffix ".log".

        *device*: the identifier of this device. *waiting*: see `Disk`.
        """
        self._file, self._left = _open(path)
        self._appended = _log_of(self._file.path)
        _forget_others(self._left, device, path)
        self.totals: dict[str, Any] = self._left.totals
        """The latest totals of each pipeline."""
        self._fresh: list[Entry] = []
        self._open: dict[str, tuple[float, Payload, list[dict[str, Any]]]] = {}
        """Begin and latest message of each ongoing event, and the actions of its end."""
        self._written = 0.0
        self._outdated = bool(self._left.fresh or self._left.open)
        self._known = threading.Lock()
        """Guards all of the above and the lines to append."""
        self._waiting: list[str] = []
        self._latest = self._on_disk = self._left.number
        """Numbers of the latest entry, and of the latest that is on the disk."""
        self._writing = threading.Lock()
        """Held by the thread that writes for itself and for others."""
        self._bytes = 0
        self._disk = Disk(waiting)

    def left(self, credible: Callable[[int], bool]) -> tuple[list[Payload], list[Payload]]:
        """Return the messages left by a killed agent: unpublished ones, and ends of ongoing events.

        Both must be published, in this order. *credible* returns whether a time may be right.
        """
        fresh, lasting, due = self._left.fresh, self._left.open.values(), self._left.due
        ended = {payload["event"] for payload in fresh if payload["state"] == "end"}
        now_ns = time.time_ns()
        end = {"state": "end", "time": payloads.iso(now_ns), "why": "stopped"}
        if not credible(now_ns):
            end["clock"] = payloads.UNSET
        ends = [
            # Whether the clock was set when the event began says nothing about its end.
            {"seconds": 0.0, **{k: v for k, v in payload.items() if k != "clock"}, **end}
            for payload in lasting
            if payload["event"] not in ended
        ]
        self._left = _Left([], {}, {})
        # Kept until they are delivered, however long the broker is unreachable.
        for payload in (*fresh, *ends):
            entry = Entry(payload, math.inf)
            entry.due += due.get(payload["event"], []) if entry.is_end else []
            self._fresh.append(entry)
        return fresh, ends

    def due(self, event: str) -> list[dict[str, Any]]:
        """Return the actions of an end that the last run has left."""
        with self._known:
            return next((e.due for e in self._fresh if e.due and e.payload["event"] == event), [])

    def ongoing(self, pipeline: str, rule: str) -> list[Payload]:
        """Return the latest messages of the ongoing events of a rule."""
        with self._known:
            latest = [payload for _, payload, _ in self._open.values()]
        return [each for each in latest if (each["pipeline"], each["rule"]) == (pipeline, rule)]

    def add(
        self,
        events: Sequence[tuple[Payload, int]],
        totals: Totals | None = None,
        due: Due | None = None,
    ) -> list[Entry | None]:
        """Write simultaneous events, each with its QoS, to disk before returning.

        Return an entry, whose `published_at` the caller sets, for each event that has to be kept.
        *totals* are those of the lines that they have crossed; *due* is for those that begin.
        """
        with self._known:
            entries, durable = self._take(events, due or {})
            if totals:
                self.totals.update(totals)
            if not (durable or totals):
                return entries
            self._latest = number = self._latest + 1
            entry = {
                "number": number,
                "events": events,
                "totals": totals or {},
                "due": due or {},
            }
            self._waiting.append(json.dumps(entry))
        with self._disk.waiting(), self._writing:
            if self._on_disk < number:
                self._append()
        return entries

    def _take(
        self, events: Sequence[tuple[Payload, int]], due: Due
    ) -> tuple[list[Entry | None], bool]:
        now = time.monotonic()
        entries: list[Entry | None] = []
        durable = False
        for payload, qos in events:
            state, name = payload["state"], payload["event"]
            at_end: list[dict[str, Any]] = []
            if state in {"begin", "update"}:
                since, _, actions = self._open.get(name, (now, payload, due.get(name, [])))
                self._open[name] = since, payload, actions
                durable = True
            elif state == "end":
                begun = self._open.pop(name, None)
                at_end = [] if begun is None else begun[2]
                durable = begun is not None or durable
            entries.append(Entry(payload, due=at_end) if qos or at_end else None)
            durable = bool(qos) or durable
        self._fresh += filter(None, entries)
        return entries, durable

    def _append(self) -> None:
        """Append all waiting lines; the caller holds the lock for writing."""
        with self._known:
            lines, self._waiting = self._waiting, []
            number = self._latest
        data = "".join(f"{line}\n" for line in lines).encode()
        disk = self._disk
        try:
            if self._file.unread is None:  # else nothing that is over could be removed from it
                with disk.timed():
                    append_lines(self._appended, data, MODE)
                self._bytes += len(data)
            disk.failure = None
        except OSError as problem:
            # Kept in memory, and written as soon as there is space again.
            self._outdated = True
            begins, disk.failure = disk.failure is None, problem.with_traceback(None)
            if begins:
                log.warning("%s", self._not_written(problem))
        self._on_disk = number

    def unsaved(self) -> list[str]:
        """Return why what was added last may not be on the disk; empty: it is."""
        if self._file.unread is not None:
            return [self._file.unread]
        failure = self._disk.failure
        return [] if failure is None else [self._not_written(failure)]

    def problems(self) -> list[str]:
        """Return why events are not durable, or not at once, as texts for health."""
        found, failure = [], self._disk.failure
        if (slow := self._disk.slow()) is not None:
            why = f"the disk of {self._file.path.parent} takes {slow:.1f} s for a write"
            words = "results with events wait for it; it is worn, busy or failing"
            found.append(f"events: {why}, and {words}")
        if failure is not None and failure.errno != errno.ENOSPC:  # health says that
            found.append(f"events: {self._not_written(failure)}")
        return found

    def _not_written(self, problem: OSError) -> str:
        why = problem.strerror or problem
        lost = "events and totals since then are lost in a crash"
        return f"{self._appended}: cannot be written: {why}; {lost}"

    def settle(self, safe: float, undone: Iterable[tuple[Payload, dict[str, Any]]] = ()) -> None:
        """Forget events published before the time *safe*; called regularly.

        *undone*: actions of published events that have not been carried out yet.
        """
        now = time.monotonic()
        with self._known:
            self._forget(safe, undone)
            still = bool(self._open) and now - self._written > ALIVE_SECONDS
            due = self._outdated and now - self._written > 1.0
        if still or due or self._bytes > MOST_BYTES:
            self._write()

    def close(self, safe: float, undone: Iterable[tuple[Payload, dict[str, Any]]] = ()) -> None:
        """Write the remaining events when the agent ends; see `settle`."""
        with self._known:
            self._forget(safe, undone)
        self._write()

    def _forget(self, safe: float, undone: Iterable[tuple[Payload, dict[str, Any]]]) -> None:
        owed: dict[str, list[dict[str, Any]]] = {}
        for payload, action in undone:
            owed.setdefault(payload["event"], []).append(action)
        now = time.monotonic()
        for each in self._fresh:
            # Those of the last run are carried out once they are published, which `safe` says.
            acted = each.published_at is not None and (each.published_at <= now or safe == math.inf)
            if acted and each.due:
                left = owed.get(each.payload["event"], [])
                self._outdated |= left != each.due
                each.due = left
        kept = [
            each
            for each in self._fresh
            if each.due or each.published_at is None or each.published_at > safe
        ]
        self._outdated |= len(kept) != len(self._fresh)
        # Those not published yet are limited by the dispatcher.
        sent = [e for e in kept if e.published_at not in {None, math.inf} and not e.due]
        surplus = {id(each) for each in sent[: max(0, len(sent) - MOST)]}
        self._fresh = [each for each in kept if id(each) not in surplus] if surplus else kept

    def _write(self) -> None:
        """Write the whole state, replacing the appended entries."""
        with self._writing, self._disk.timed():
            with self._known:
                now = self._written = time.monotonic()
                number, waiting = self._latest, len(self._waiting)
                content = _Left(
                    [each.payload for each in self._fresh],
                    # By how long they are known to last: the clock may be set meanwhile.
                    {
                        name: {**payload, "seconds": round(now - since, 3)}
                        for name, (since, payload, _) in self._open.items()
                    },
                    self.totals,
                    {name: due for name, (_, _, due) in self._open.items() if due}
                    | {each.payload["event"]: each.due for each in self._fresh if each.due},
                    number,
                ).content()
            self._outdated = not self._file.save(content)
            if not self._outdated:
                self._bytes, self._on_disk = 0, number
                with self._known:
                    del self._waiting[:waiting]
                try:
                    os.truncate(self._appended, 0)
                except FileNotFoundError:
                    pass
                except OSError as problem:
                    log.warning("%s: cannot be cut: %s", self._appended, problem.strerror)


def _log_of(path: Path) -> Path:
    return path.with_suffix(".log")


def _open(path: Path) -> tuple[StateFile, _Left]:
    """Return the file for the state of this run, and what the last runs have left for this one."""
    beside = StateFile(path.with_suffix(".beside.json"), HOLDS, MODE)
    file = StateFile(path, HOLDS, MODE, beside.path.name)
    left, late = _read(file), _read(beside)
    if file.unread is not None:
        return beside, late
    appended = _log_of(beside.path)
    if beside.unread is not None or not (beside.path.exists() or appended.exists()):
        return file, left
    # A kill after the write leaves all of it in both: each is joined once.
    fresh = {json.dumps(each): each for each in (*left.fresh, *late.fresh)}
    joined = _Left(
        list(fresh.values()),
        left.open | late.open,
        left.totals | late.totals,
        left.due | late.due,
        max(left.number, late.number),
    )
    try:
        beside.write(late.content())  # as its lines are removed before it
        appended.unlink(missing_ok=True)
        file.write(joined.content())
        beside.path.unlink()
        sync_folder(path.parent)
    except OSError as problem:
        file.leave(path, problem, "written")
        return beside, late
    return file, joined


def _read(file: StateFile) -> _Left:
    """Read the last whole state, and the entries appended since."""
    left = file.read(_parse) or _Left([], {}, {})
    for number, events, totals, due in _lines(file, _log_of(file.path)):
        if 0 < number <= left.number:
            continue  # the state was written, but the older lines were not removed yet
        left.number = max(number, left.number)
        left.totals.update(totals)
        left.due.update(due)
        for payload, qos in events:
            if payload["state"] in {"begin", "update"}:
                left.open[payload["event"]] = payload
            elif payload["state"] == "end":
                left.open.pop(payload["event"], None)
            if qos or (payload["state"] == "end" and payload["event"] in left.due):
                left.fresh.append(payload)
    return left if file.unread is None else _Left([], {}, {})


def _forget_others(left: _Left, device: str, path: Path) -> None:
    """Leave ongoing events to the box from which this card was cloned: there they go on."""
    others = [name for name, payload in left.open.items() if payload["device"] != device]
    for name in others:
        del left.open[name]
    if others:
        words = "%s: %d events that go on are another device's; they are not ended"
        log.warning(words, path, len(others))


def _lines(
    file: StateFile, path: Path
) -> Iterator[tuple[int, list[tuple[Payload, int]], dict[str, Any], Due]]:
    """Yield the entries appended to *path*, except for incomplete lines."""
    try:
        data = read_plain_bytes(path)
    except FileNotFoundError:
        return
    except NoPlainFileError as problem:
        words = "%s: %s; %s are forgotten%s"
        log.warning(words, path, problem.strerror, HOLDS, put_aside(path))
        return
    except OSError as problem:
        file.leave(path, problem)  # which would make them obsolete
        return
    for line in data.splitlines():
        try:
            content = read_own(line)
            events = [(_checked(payload), int(qos)) for payload, qos in content["events"]]
            totals = dict(content["totals"])
            number = int(content.get("number", 0))  # 0: written by a version that had none
            due = _due(content)
        except DAMAGED:
            continue  # cut off by a kill, a power cut or a full disk, before `add` returned
        yield number, events, totals, due


def _parse(content: Mapping[str, Any]) -> _Left:
    fresh, lasting = ([_checked(each) for each in content[key]] for key in ("fresh", "open"))
    totals = dict(content.get("totals", {}))
    ongoing = {payload["event"]: payload for payload in lasting}
    return _Left(fresh, ongoing, totals, _due(content), int(content.get("number", 0)))


def _due(content: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what is due at ends; earlier versions kept none."""
    due = dict(content.get("due", {}))
    return {name: [dict(each) for each in actions] for name, actions in due.items()}


def _checked(content: Any) -> Payload:
    """Return *content* if it can be a message."""
    payload = dict(content)
    # All of them become topic levels.
    if not all(is_name(payload[key]) for key in ("event", "rule", "pipeline", "device")):
        raise ValueError("no event")
    if payload["state"] not in _STATES or type(payload.get("seconds", 0.0)) is not float:
        raise ValueError("no event")
    return payload
