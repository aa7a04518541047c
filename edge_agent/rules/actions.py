"""Actions of rules: messages on other topics, and posts to web servers.

Bounded and retried, in separate threads: nothing here delays a frame. The work for one server is
done in sequence, for different servers in parallel: a server that hangs delays no other.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from ..config.rules import Action
from ..config.templates import fill, fill_payload, topic_trouble
from ..core.errors import WebError
from ..core.frozen import record
from ..core.text import counted, redact
from ..core.threads import start_thread
from ..core.web import exchange
from ..mqtt import payloads
from ..mqtt.message import Answered
from ..mqtt.outbox import BROKEN, CROWDED

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class SideBySide(Generic[T]):
    """A queue of items and the threads that handle them. One thread calls `run`."""

    do: Callable[[T], None]
    """Handles one item, however long that takes."""
    server: Callable[[T], str]
    """Returns the server of an item."""
    most: int
    """Most waiting items."""
    closing: threading.Event = field(default_factory=threading.Event)
    _waiting: deque[T] = field(default_factory=deque)
    _busy: dict[str, T] = field(default_factory=dict)
    """The work in progress, by server."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, item: T) -> T | None:
        """Append an item; if the queue was full, drop and return the oldest."""
        with self._changed:
            oldest = self._waiting.popleft() if len(self._waiting) >= self.most else None
            self._waiting.append(item)
            self._changed.notify()
        return oldest

    def run(self) -> None:
        """Handle waiting items until closed and none wait."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None or self._is_over)
                item = self._next()
                if item is None:
                    return
                self._waiting.remove(item)
                self._busy[self.server(item)] = item
            if start_thread("action", partial(self._carry_out, item)) is None:
                self._carry_out(item)

    def _next(self) -> T | None:
        """Return the oldest item for a server that is idle."""
        return next((each for each in self._waiting if self.server(each) not in self._busy), None)

    @property
    def _is_over(self) -> bool:
        return self.closing.is_set() and not self._waiting

    def _carry_out(self, item: T) -> None:
        try:
            self.do(item)
        finally:
            with self._changed:
                del self._busy[self.server(item)]
                self._changed.notify()

    def close(self, seconds: float) -> list[T]:
        """End once all work is done, but within *seconds*; return unfinished work."""
        self.closing.set()
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over and not self._busy, seconds)
            left, self._waiting = [*self._busy.values(), *self._waiting], deque()
            self._changed.notify_all()
        return left


log = logging.getLogger(__name__)

MOST = 100
"""Most waiting actions; the oldest are dropped."""
TRIES = 3
HTTP_SECONDS = 5.0
PAUSE_SECONDS = 1.0
"""Seconds between tries."""
MESSAGES = "messages"
"""The target of all messages together, as while the broker is away."""
MOST_TOPICS = 16
"""Most topics that are remembered as failing."""
MESSAGE_SECONDS = 60.0
"""How long a message of QoS 1 waits for a connection."""


@record
class _Post:
    number: int
    """Its key in `Actions._undone`."""
    url: str
    body: bytes
    rule: str

    @property
    def server(self) -> str:
        return urlsplit(self.url).netloc


@record
class _Message:
    number: int
    """Its key in `Actions._undone`."""
    since: float
    """When it was accepted, monotonic seconds."""
    topic: str
    data: bytes
    action: Action


class Publish(Protocol):
    """`Client.publish`."""

    def __call__(
        self, topic: str, payload: bytes, /, *, qos: int, retain: bool, answered: Answered
    ) -> bool:
        """Publish; return whether there is a connection."""


class Actions:
    """Carries out actions. One thread calls `run`; any may call the rest."""

    name = "actions"

    def __init__(
        self,
        publish: Publish,
        root: Callable[[], str],
        read: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Start without actions.

        *read* returns the topics that sources of this agent read: messages published there would
        come back as readings.
        """
        self.done = 0
        self.failed = 0
        """Number given up after all tries, refused, or dropped because the queue was full."""
        self._publish = publish
        self._root = root
        self._read = read
        self._posts = SideBySide(self._try, lambda post: post.server, MOST)
        self._messages: deque[_Message] = deque()
        self._numbers = itertools.count()
        self._undone: dict[int, tuple[Mapping[str, Any], Action]] = {}
        """Actions not carried out or given up yet, with the payloads of their events."""
        self._changed = threading.Condition()
        self._failing: dict[tuple[str, str], str] = {}
        """Why the last one was given up, until one succeeds, by target and topic; latest last."""

    def problem(self, to: Container[str]) -> str | None:
        """Return why the latest action was given up for a target that has not succeeded since.

        *to* contains the targets of the current rules: others are ignored.
        """
        with self._changed:
            latest_first = reversed(self._failing.items())
            return next((why for (target, _), why in latest_first if target in to), None)

    # Called by the events' thread

    def act(self, action: Action, payload: Mapping[str, Any]) -> None:
        """Carry out an action soon."""
        number = next(self._numbers)
        if action.http is not None:
            post = _Post(number, action.http, payloads.encode(payload), str(payload["rule"]))
            self._undone[number] = payload, action
            oldest = self._posts.put(post)
            if oldest is not None:
                self._finish(oldest.number)
                self._give_up(f"{redact(oldest.url)}: too many events wait for it", oldest.url)
            return
        told = {**payload.get("anomaly", {}), **payload}
        topic = topic_of(action, payload)
        why = topic_trouble(topic, self._root())
        if why is None and topic in self._read():
            why = f"{topic!r}: a source of this agent reads it, so this would loop forever"
        if why is not None:
            self._give_up(f"rule {payload['rule']}: publish: {why}", action.publish or "", topic)
            return
        body = action.payload
        text = fill_payload(body, told).encode() if body else payloads.encode(payload)
        if len(self._messages) >= MOST:
            self._finish(self._messages.popleft().number)
            self._give_up("publish: too many messages wait for the broker", MESSAGES)
        self._undone[number] = payload, action
        self._messages.append(_Message(number, time.monotonic(), topic, text, action))
        self.flush()

    def flush(self) -> None:
        """Publish waiting messages if there is a connection."""
        while self._messages:
            message = self._messages.popleft()
            action = message.action
            connected = self._publish(
                message.topic,
                message.data,
                qos=action.qos,
                retain=action.retain,
                answered=partial(self._answered, message),
            )
            if not connected and action.qos and not _is_late(message):
                self._messages.appendleft(message)
                return
            if self._messages and self._messages[0] is message:
                return  # too many are in flight; again at the next call
            if not connected:
                self._finish(message.number)
                self._give_up(f"publish {message.topic}: the broker was away", MESSAGES)
            elif not action.qos and message.number in self._undone:  # it is not answered
                self._succeed_message(message)

    def undone(self) -> list[tuple[Mapping[str, Any], Action]]:
        """Return the actions of ends that have not been carried out or given up yet.

        Each is with the payload of its event. Called by the thread that calls `act`.
        """
        with self._changed:
            there = list(self._undone.values())
        return [(payload, action) for payload, action in there if payload["state"] == "end"]

    def settle(self, seconds: float) -> None:
        """Wait until the broker has answered what was published, up to *seconds*.

        What it has not answered then, and no next run carries out, is logged.
        """
        waiting = {message.number for message in list(self._messages)}
        with self._changed:
            self._changed.wait_for(
                lambda: all(
                    number in waiting or action.http is not None
                    for number, (_, action) in self._undone.items()
                ),
                seconds,
            )
            lost = [
                str(payload["rule"])
                for payload, action in self._undone.values()
                if action.http is None and payload["state"] != "end"
            ]
        if lost:
            what, whose = counted(len(lost), "message"), ", ".join(sorted({*lost})[:10])
            log.warning("action: %s given up: the broker was away (rule %s)", what, whose)

    # Called by any thread, with the client locked

    def _answered(self, message: _Message, why: str | None) -> None:
        if why is None:
            self._succeed_message(message)
        elif why in {BROKEN, CROWDED} and not _is_late(message):
            self._messages.appendleft(message)  # as QoS 1 does, maybe a copy
        else:
            # Others may be allowed.
            self._finish(message.number)
            template = message.action.publish or ""
            self._give_up(f"publish {message.topic}: {why}", template, message.topic)

    # Called by the thread, and by those of single posts

    def run(self) -> None:
        """Post waiting requests, one at a time per server, until closed and none wait."""
        self._posts.run()

    def _try(self, post: _Post) -> None:
        headers = {"Content-Type": "application/json"}
        why = ""
        for number in range(TRIES):
            if number and self._posts.closing.wait(PAUSE_SECONDS):
                break
            try:
                reply = exchange(post.url, post.body, headers, seconds=HTTP_SECONDS)
            except WebError as problem:
                why = str(problem)
                continue
            if reply.trouble is None:
                self._finish(post.number)
                self._succeed((post.url, ""))
                return
            why = reply.trouble
            if not reply.again:
                break
        if not self._posts.closing.is_set():  # else the next start may try again
            self._finish(post.number)
        self._give_up(f"rule {post.rule}: {redact(post.url)}: {why}", post.url)

    def close(self, seconds: float = 0.0) -> None:
        """End the threads after one more try of each waiting post, or when the time is over."""
        for post in self._posts.close(seconds):
            self._give_up(f"rule {post.rule}: {redact(post.url)}: the agent stops", post.url)

    def _give_up(self, why: str, target: str, topic: str = "") -> None:
        with self._changed:
            self.failed += 1
            # Only the first of a series: an unreachable server fails for every event.
            begins = self._failing.pop((target, topic), None) is None
            self._failing[target, topic] = why  # after the others
            topics = [each for each in self._failing if each[1]]
            if len(topics) > MOST_TOPICS:
                del self._failing[topics[0]]
        if begins:
            log.warning("action: %s", why)

    def _finish(self, number: int) -> None:
        with self._changed:
            self._undone.pop(number, None)
            self._changed.notify_all()

    def _succeed_message(self, message: _Message) -> None:
        self._finish(message.number)
        self._succeed((MESSAGES, ""), (message.action.publish or "", message.topic))

    def _succeed(self, *targets: tuple[str, str]) -> None:
        with self._changed:
            self.done += 1
            for each in targets:
                self._failing.pop(each, None)


def topic_of(action: Action, payload: Mapping[str, Any]) -> str:
    """Return the topic of an action for an event; empty: it has none."""
    told = {**payload.get("anomaly", {}), **payload}
    named = {key: _as_level(str(payload.get(key, ""))) for key in ("label", "text")}
    return fill(action.publish or "", {**told, **named})


def targets_of(action: Action) -> tuple[str, ...]:
    """Return what may fail of an action, for `Actions.problem`."""
    return (action.http,) if action.http is not None else (MESSAGES, action.publish or "")


def _is_late(message: _Message) -> bool:
    return time.monotonic() - message.since >= MESSAGE_SECONDS


def _as_level(text: str) -> str:
    """Return *text* as one level of a topic."""
    return "".join("_" if c in "/+#" or not c.isprintable() else c for c in text)
