"""State of the fleet while the page is served, and the updates to send to each browser.

Messages come from the readers' threads, frames are requested by the server's thread, all under one
lock. Everything is bounded, whatever is published.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import isnan, nan
from typing import Any

from ..core.text import cut, printable
from ..mqtt.connection import ReceivedMessage, parse_object
from ..mqtt.look import WRONG_SECONDS, DeviceLook, Said, look_at, number_in, table_in, texts_in
from ..mqtt.payloads import moment
from ..mqtt.topics import rollouts
from .rollouts import Rollouts

IN_ROW = frozenset({"status", "info", "health", "model", "source", "rollout"})
"""Kinds of topics that a device's row is made of; without any the device is gone."""
RETAINED = IN_ROW | {"pipeline", "count", "config"}
LEFT = ("status", "info", "health", "model/+", "source/+")
"""Kinds of topics that a device normally retains."""
FLEET_KINDS = (*LEFT, "rollout", "event/+", "picture/+/+", "push/+")
"""Kinds of topics read for every device; the others only for a device that is being watched."""
WATCH_KINDS = (
    *("result/+", "snapshot/+", "count/+", "pipeline/+", "config", "answer/+", "reply/+"),
)

MOST_BYTES = 128 * 1024
"""Largest payload that is shown."""
MOST_PICTURE_BYTES = 4 * 2**20
MOST_PICTURES_BYTES = 64 * 2**20
MOST_DEVICES = 10_000
MOST_KEPT = 500
"""Most retained topics kept for a device."""
MOST_EVENTS = 100
MOST_PUSHES = 40
MOST_FIGURES = 240
"""Health messages per device whose figures are kept: 40 minutes at the usual interval."""
_FIGURES = 6
MOST_WAITING = 2000
"""Most messages queued for a slow browser."""
MOST_WAITING_BYTES = 4 * 2**20
"""Most bytes of them, beyond which its connection is closed: the page connects again."""
MOST_WORDS = 300
ASK = 200
"""Number of retained topics requested at once."""
ANSWER_SECONDS = 5.0
"""Time for a broker to send what was requested: it may grant that first."""
RETURN_SECONDS = 90.0
"""Time for devices to return to a broker that is back: they pause for up to 60 s."""
EXPIRED_SECONDS = 3600.0
"""Interval for requesting roll-outs that have expired, which a broker may have removed."""
JUDGE_SECONDS = 5.0
"""Interval for checking whether health has stopped coming."""
JPEG = b"\xff\xd8\xff"

Says = list[Any]
"""A message for the browser: kind, name, content."""


@dataclass
class Device:
    """Everything known about a device."""

    revision: int = 0
    """The revision of the page's state when this device last changed."""
    seen: float = 0.0
    """When its last message came, seconds since 1970."""
    ahead: float | None = None
    """Seconds that its clock was ahead of ours as its latest health came; None: unknown."""
    kept: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """Its retained topics, by kind and name."""
    events: deque[Says] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    pushes: deque[Says] = field(default_factory=lambda: deque(maxlen=MOST_PUSHES))
    figures: array[float] = field(default_factory=lambda: array("d"))
    """`_FIGURES` numbers of each health message, one after the other: lists take five times the
    memory."""
    row: dict[str, Any] = field(default_factory=dict)
    """Its row in the table; empty: it must be made again."""


@dataclass
class Viewer:
    """One browser: the device it shows, and messages not yet sent to it."""

    device: str | None = None
    revision: int = 0
    told: tuple[str, float, bool] | None = None
    rollouts: int = 0
    """The revision of the roll-outs that it has been sent."""
    latest: dict[tuple[str, str], Says] = field(default_factory=dict)
    """Results and snapshots: only the newest for each pipeline."""
    waiting: deque[Says] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    size: int = 0
    """Bytes of the messages since the last frame."""
    behind: bool = False
    """Whether these were too many, so that nothing is queued any more."""


class Site:
    """The state behind the page."""

    def __init__(self, root: str) -> None:
        """Start without devices; *root* is the first topic level."""
        self._root = root
        self._lock = threading.Lock()
        self._devices: dict[str, Device] = {}
        self._gone: dict[str, int] = {}
        self._revision = 0
        self._judged = 0.0
        self._told = ("connecting to the broker", time.time(), True)
        self._heard = time.time()
        """When the broker was last heard, seconds since 1970."""
        self._asked: set[str] = set()
        self._unseen: dict[str, float] = {}
        """Retained topics that have not come since the broker was back, or may have expired there;
        each with when it is requested, monotonic seconds."""
        self._requested: tuple[list[str], float] = [], 0.0
        """Those that were requested, and when."""
        self._pictures: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()
        self._picture_bytes = 0
        self._viewers: list[Viewer] = []
        self._rollouts = Rollouts()

    def filters(self, device: str | None = None) -> list[str]:
        """Return the topic filters for every device, or for one that is being watched."""
        if device is not None:
            return [f"{self._root}/{device}/{kind}" for kind in WATCH_KINDS]
        return [*(f"{self._root}/+/{kind}" for kind in FLEET_KINDS), f"{rollouts(self._root)}/+"]

    # From the broker

    def told(self, problem: str, away: bool) -> None:
        """Note a problem of the broker, "" for none, and whether it is away."""
        with self._lock:
            now, (_, since, was_away) = time.time(), self._told
            # It is away since the first of its problems, whatever comes after that.
            since = since if away and was_away else now
            self._told = (cut(printable(problem), MOST_WORDS), since, away)
            self._asked.clear()
            if was_away and not away:
                self._requested = [], 0.0
                at = time.monotonic()
                plans, root = rollouts(self._root), self._root
                self._unseen = {f"{plans}/{name}": at for name in self._rollouts.names}
                for name, device in self._devices.items():
                    self._note_gap(name, device, {"since": self._heard, "until": now})
                    topics = (f"{root}/{name}/{k}/{n}" for k, n in device.kept if k in IN_ROW)
                    for topic in topics:
                        self._unseen[topic.removesuffix("/")] = at + RETURN_SECONDS
                self._heard = now

    def _note_gap(self, name: str, device: Device, gap: dict[str, float]) -> None:
        """Note when events may have been missed; gaps in a row are one."""
        if device.events and device.events[-1][0] == "gap":
            gap["since"] = device.events.pop()[2]["since"]
        device.events.append(["gap", "", gap])
        self._tell(name, device.events[-1])

    def missing(self, whole: bool) -> list[str]:
        """Return retained topics that should have come by now, each once.

        *whole*: all that was requested and is there has come, so that the others are gone.
        """
        missing = self._unseen_now(whole)
        with self._lock:
            for name in self._devices.keys() - self._asked:
                self._asked.add(name)
                here = {kind for kind, _ in self._devices[name].kept}
                lacking = [kind for kind in LEFT if kind.partition("/")[0] not in here]
                missing += [f"{self._root}/{name}/{kind}" for kind in lacking]
                if len(missing) > ASK:
                    break
        return missing

    def _unseen_now(self, whole: bool) -> list[str]:
        """Forget what was requested in vain; return what to request next."""
        now = time.monotonic()
        with self._lock:
            requested, since = self._requested
            if requested and (not whole or now < since + ANSWER_SECONDS):
                return []
            gone = [each for each in requested if self._unseen.get(each, now) < since]
            due = (each for each, at in self._unseen.items() if at < now and each not in gone)
            self._requested = following, _ = list(islice(due, ASK)), now
        for topic in gone:
            self.take(ReceivedMessage(topic, b"", retained=True))
        return following

    def take(self, message: ReceivedMessage) -> None:
        """Handle a message from a device."""
        with self._lock:
            self._unseen.pop(message.topic, None)
        name, *levels = message.topic.removeprefix(f"{self._root}/").split("/")
        if f"{self._root}/{name}" == rollouts(self._root):
            self._take_rollout("/".join(levels), message.payload)
            return
        if not levels or name.startswith("@"):
            return
        kind, about = levels[0], "/".join(levels[1:])
        with self._lock:
            device = self._devices.get(name)
            if device is None:
                if not message.payload or len(self._devices) >= MOST_DEVICES:
                    return
                device = self._devices[name] = Device()
            if not message.retained:
                device.seen = self._heard = time.time()
            if kind in {"snapshot", "picture"}:
                self._take_picture(name, kind, about, message.payload)
            elif kind in RETAINED and not (message.payload or message.too_large):
                device.kept.pop((kind, about), None)
                self._changed(name, device, [kind, about, None])
            else:
                body = _body(message.payload)
                if kind == "health" and not message.retained and (at := moment(body)) is not None:
                    device.ahead = at - time.time()
                self._take_words(name, device, [kind, about, body], len(message.payload))

    def _take_words(self, name: str, device: Device, says: Says, size: int) -> None:
        kind, about, body = says
        if (at := moment(body)) is not None and at < (now := time.time()) + WRONG_SECONDS:
            device.seen = max(device.seen, min(at, now))
        if kind in RETAINED:
            if (kind, about) in device.kept or len(device.kept) < MOST_KEPT:
                device.kept[kind, about] = body
            if kind == "health" and "odd" not in body:
                device.figures.extend(nan if each is None else each for each in _figures(body))
                del device.figures[: -MOST_FIGURES * _FIGURES]
        elif kind == "event":
            device.events.append(says)
        elif kind == "push":
            device.pushes.append([*says, time.time()])
        self._changed(name, device, says, size)

    def _take_rollout(self, name: str, payload: bytes) -> None:
        with self._lock:
            if self._rollouts.take(name, payload):
                self._revision += 1
                for device in self._devices.values():
                    device.revision, device.row = self._revision, {}
            if (left := self._rollouts.left_s(name)) is not None:
                after = left + RETURN_SECONDS if left > 0 else EXPIRED_SECONDS
                self._unseen[f"{rollouts(self._root)}/{name}"] = time.monotonic() + after

    def _take_picture(self, name: str, kind: str, about: str, data: bytes) -> None:
        says: Says = [kind, about, {"at": time.time()}]
        if not data.startswith(JPEG) or len(data) > MOST_PICTURE_BYTES:
            says[2] = _odd(data, "is no JPEG that can be shown")
        else:
            key = (name, kind, about)
            self._picture_bytes += len(data) - len(self._pictures.pop(key, b""))
            self._pictures[key] = data
            while self._picture_bytes > MOST_PICTURES_BYTES:
                self._picture_bytes -= len(self._pictures.popitem(last=False)[1])
        self._tell(name, says)

    def _changed(self, name: str, device: Device, says: Says, size: int = 0) -> None:
        """Note that a device's row may have changed, and queue the message for its viewers."""
        if says[0] in IN_ROW:
            self._revision += 1
            device.revision, device.row = self._revision, {}
            if not any(kind in IN_ROW for kind, _ in device.kept):
                del self._devices[name]
                if len(self._gone) > MOST_DEVICES:
                    self._gone.clear()
                self._gone[name] = self._revision
            else:
                self._gone.pop(name, None)
        self._tell(name, says, size)

    def _tell(self, name: str, says: Says, size: int = 0) -> None:
        for viewer in self._viewers:
            if viewer.device == name and not viewer.behind:
                viewer.size += size
                if viewer.size > MOST_WAITING_BYTES:
                    viewer.behind = True
                    viewer.waiting.clear()
                    viewer.latest.clear()
                elif says[0] in {"result", "snapshot"}:
                    viewer.latest[says[0], says[1]] = says
                else:
                    viewer.waiting.append(says)

    def say(self, name: str, says: Says) -> None:
        """Tell browsers that watch a device about the progress of a push from this page."""
        with self._lock:
            if (device := self._devices.get(name)) is not None:
                device.pushes.append([*says, time.time()])
            self._tell(name, [*says, time.time()])

    def answer(self, viewer: Viewer, says: Says) -> None:
        """Queue a message for one browser."""
        with self._lock:
            viewer.waiting.append(says)

    # To the browsers

    def join(self) -> Viewer:
        """Add a browser."""
        viewer = Viewer()
        with self._lock:
            self._viewers.append(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Forget a browser."""
        with self._lock:
            self._viewers.remove(viewer)

    def watch(self, viewer: Viewer, name: str | None) -> None:
        """Show a device to a browser: everything known about it now, then its messages."""
        with self._lock:
            viewer.device = name
            viewer.latest.clear()
            viewer.waiting.clear()
            device = None if name is None else self._devices.get(name)
            if device is None:
                return
            known = [None if isnan(each) else each for each in device.figures]
            rows = [known[at : at + _FIGURES] for at in range(0, len(known), _FIGURES)]
            viewer.waiting.append(["figures", "", rows])
            viewer.waiting += [[kind, about, body] for (kind, about), body in device.kept.items()]
            viewer.waiting += device.events
            viewer.waiting += device.pushes
            viewer.waiting += [
                [kind, about, {"at": 0}]
                for owner, kind, about in self._pictures
                if owner == name and kind == "picture"
            ]

    def picture(self, name: str, kind: str, about: str) -> bytes | None:
        """Return the last snapshot of a pipeline, or the picture of an event."""
        with self._lock:
            return self._pictures.get((name, kind, about))

    def frame(self, viewer: Viewer) -> dict[str, Any]:
        """Return the updates not yet sent to a browser, or an empty dict."""
        with self._lock:
            if time.monotonic() - self._judged > JUDGE_SECONDS:
                self._judge_again()
            frame: dict[str, Any] = {}
            if viewer.revision != self._revision:
                changed = [
                    (name, device)
                    for name, device in self._devices.items()
                    if device.revision > viewer.revision
                ]
                frame["rows"] = [_row(name, device, self._rollouts) for name, device in changed]
                frame["gone"] = [n for n, at in self._gone.items() if at > viewer.revision]
                viewer.revision = self._revision
            if viewer.rollouts != self._rollouts.revision:
                viewer.rollouts = self._rollouts.revision
                frame["rollouts"] = self._rollouts.told()
            if viewer.told != self._told:
                viewer.told = self._told
                problem, since, away = self._told
                frame["broker"] = {"problem": problem, "since": since, "away": away}
            if viewer.latest or viewer.waiting:
                frame["watch"] = viewer.device
                frame["says"] = [*viewer.waiting, *viewer.latest.values()]
                viewer.waiting.clear()
                viewer.latest.clear()
            viewer.size = 0
        return frame

    def _judge_again(self) -> None:
        """Find devices of which something else holds just because they are silent."""
        self._judged = time.monotonic()
        for name, device in self._devices.items():
            if not device.row:
                continue
            look, row = _look(name, device), device.row
            # The ages in the words go on; who is well says them anew with its next health.
            is_silent = look.state in {"offline", "unknown"}
            if row["state"] != look.state or (is_silent and row["words"] != _words(device, look)):
                self._revision += 1
                device.revision, device.row = self._revision, {}


def _look(name: str, device: Device) -> DeviceLook:
    status, info, health = (device.kept.get((k, ""), {}) for k in ("status", "info", "health"))
    sources = {about: body for (kind, about), body in device.kept.items() if kind == "source"}
    return look_at(Said(name, status, info, health, sources, device.ahead))


def _words(device: Device, look: DeviceLook) -> str:
    odd = [kind for (kind, _), body in device.kept.items() if "odd" in body]
    words = f"{look.words}; cannot be read: {', '.join(odd)}" if odd else look.words
    return cut(words, MOST_WORDS)


def _row(name: str, device: Device, plans: Rollouts) -> dict[str, Any]:
    """Return a device's row in the table, made again if the device has changed."""
    if device.row:
        return device.row
    look = _look(name, device)
    info, health = device.kept.get(("info", ""), {}), device.kept.get(("health", ""), {})
    running = [each for each in look.pipelines.values() if each.enabled and look.state != "offline"]
    has = texts_in(info["has"]) if "has" in info else None
    models = [
        _model(about, body)
        for (kind, about), body in device.kept.items()
        # The broker may keep others, of an earlier state folder.
        if kind == "model" and (has is None or about in has)
    ]
    says = device.kept.get(("rollout", ""), {})
    groups = [text[:64] for text in texts_in(info.get("groups"))[:20]]
    device.row = {
        "id": name,
        "state": look.state,
        "words": _words(device, look),
        "groups": groups,
        "agent": str(info.get("agent") or "")[:64],
        "models": models[:20],
        "fps": _sum(each.fps for each in running),
        "p99": max((each.p99_ms for each in running if each.p99_ms is not None), default=None),
        "temperature": number_in(health.get("temperature_c")),
        "seen": device.seen,
        "rollouts": plans.of(name, groups, says),
        "lags": plans.lags(name, groups, says),
    }
    return device.row


def _model(name: str, body: dict[str, Any]) -> dict[str, Any]:
    candidate = table_in(body.get("candidate"))
    return {
        "name": name[:64],
        "live": str(body.get("live") or "")[:64],
        "next": str(candidate.get("version") or "")[:64],
        "phase": str(candidate.get("phase") or "")[:64],
    }


def _figures(health: dict[str, Any]) -> list[float | None]:
    """Return time, results per second, p99, processor, memory, and temperature of a device."""
    pipelines = [table_in(each) for each in table_in(health.get("pipelines")).values()]
    slowest = (number_in(table_in(each.get("latency_ms")).get("p99")) for each in pipelines)
    return [
        moment(health) or time.time(),
        _sum(number_in(each.get("fps")) for each in pipelines),
        max((p99 for p99 in slowest if p99 is not None), default=None),
        number_in(health.get("cpu_percent")),
        number_in(health.get("rss_mb")),
        number_in(health.get("temperature_c")),
    ]


def _sum(numbers: Iterable[float | None]) -> float | None:
    known = [each for each in numbers if each is not None]
    return number_in(sum(known)) if known else None


def _body(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a payload, or one that describes a payload of another kind."""
    body = parse_object(data) if len(data) <= MOST_BYTES else None
    return _odd(data, "is no JSON object that can be shown") if body is None else body


def _odd(data: bytes, what: str) -> dict[str, Any]:
    begin = printable(data[:80].decode("utf-8", "backslashreplace"))
    return {"odd": f"a message of {len(data)} bytes {what}; it begins with {begin}"}
