"""What is done when a rule fires: messages on other topics, and posts to web servers.

Bounded and retried, in threads of its own: nothing here waits on the way of a frame.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ..config.settings import Action
from ..config.templates import fill, topic_trouble
from ..core.containment import words
from ..core.frozen import record
from ..core.text import redact
from ..mqtt import payloads

log = logging.getLogger(__name__)

MOST = 100
"""Actions that may wait; the oldest give way."""
TRIES = 3
HTTP_SECONDS = 5.0
PAUSE_SECONDS = 1.0
"""Between two tries."""
MESSAGES = "messages"
"""What all that is published counts as, where each URL is a kind of its own."""
MESSAGE_SECONDS = 60.0
"""How long a message waits for a connection."""


@record
class _Post:
    url: str
    body: bytes
    rule: str

    @property
    def server(self) -> str:
        return urlsplit(self.url).netloc


class Actions:
    """Carries out actions. `run` by one thread; others may call the rest."""

    name = "actions"

    def __init__(
        self,
        publish: Callable[[str, bytes, int, bool], bool],
        root: Callable[[], str],
        read: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Start with nothing to do.

        Args:
            publish: publishes topic, payload, QoS, retained or not; False without a connection.
            root: returns the topic root.
            read: returns the topics that sources of this agent read: what is published there would
                come back as a reading.
        """
        self.done = 0
        self.failed = 0
        """Given up: after all tries, or for want of room."""
        self._publish = publish
        self._root = root
        self._read = read
        self._posts: deque[_Post] = deque()
        self._busy: set[str] = set()
        """Servers that are being posted to."""
        self._messages: deque[tuple[float, str, bytes, Action]] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._failing: dict[str, str] = {}
        """By URL, or `MESSAGES`: why the last one was given up, until one succeeds; latest last."""

    def problem(self, to: Container[str]) -> str | None:
        """Return why an action was given up last, of those that none like it has followed since.

        Args:
            to: URLs that are posted to, and `MESSAGES`: what no rule does any more is no problem.
        """
        with self._changed:
            return next((why for what, why in reversed(self._failing.items()) if what in to), None)

    # What the events' thread calls

    def act(self, action: Action, payload: Mapping[str, Any]) -> None:
        """Carry out an action soon."""
        if action.http is not None:
            self._put_post(_Post(action.http, payloads.encode(payload), str(payload["rule"])))
            return
        told = {**payload.get("anomaly", {}), **payload}
        values = {**told, "label": _topic_safe(str(payload.get("label", "")))}
        topic = fill(action.publish or "", values)
        why = topic_trouble(topic, self._root())
        if why is None and topic in self._read():
            why = (
                f"{topic!r}: a source of this agent reads it, so that this would go round for ever"
            )
        if why is not None:
            self._give_up(f"rule {payload['rule']}: publish: {why}", MESSAGES)
            return
        text = fill(action.payload, told).encode() if action.payload else payloads.encode(payload)
        if len(self._messages) >= MOST:
            self._messages.popleft()
            self._give_up("publish: too many messages wait for the broker", MESSAGES)
        self._messages.append((time.monotonic(), topic, text, action))
        self.flush()

    def flush(self) -> None:
        """Publish the messages that wait, where there is a connection."""
        while self._messages:
            since, topic, data, action = self._messages[0]
            if self._publish(topic, data, action.qos, action.retain):
                self._succeed(MESSAGES)
            elif action.qos and time.monotonic() - since < MESSAGE_SECONDS:
                return
            else:
                self._give_up(f"publish {topic}: the broker was away", MESSAGES)
            self._messages.popleft()

    def _put_post(self, post: _Post) -> None:
        with self._changed:
            if len(self._posts) >= MOST:
                oldest = self._posts.popleft().url
                self._give_up(f"{redact(oldest)}: too many events wait for it", oldest)
            self._posts.append(post)
            self._changed.notify()

    # The thread, and those of single posts

    def run(self) -> None:
        """Post what waits, one at a time to each server, until closed and nothing waits."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None or self._is_over)
                post = self._next()
                if post is None:
                    return
                self._posts.remove(post)
                self._busy.add(post.server)
            # A server that hangs must not keep the others waiting.
            posting = threading.Thread(target=self._put_through, args=(post,), daemon=True)
            try:
                posting.start()
            except RuntimeError:  # there is no room for another thread
                self._put_through(post)

    def _next(self) -> _Post | None:
        """Return the oldest post to a server that has time for it."""
        return next((post for post in self._posts if post.server not in self._busy), None)

    @property
    def _is_over(self) -> bool:
        return self._closing.is_set() and not self._posts

    def _put_through(self, post: _Post) -> None:
        try:
            self._try(post)
        finally:
            with self._changed:
                self._busy.discard(post.server)
                self._changed.notify()

    def _try(self, post: _Post) -> None:
        why: str | None = None
        for number in range(TRIES):
            if number and self._closing.wait(PAUSE_SECONDS):
                break
            why, again = _posted(post)
            if why is None:
                self._succeed(post.url)
                return
            if not again:
                break
        self._give_up(f"rule {post.rule}: {redact(post.url)}: {why}", post.url)

    def close(self, seconds: float = 0.0) -> None:
        """End the threads, once what waits is posted, each in one try more.

        Args:
            seconds: what takes longer is given up.
        """
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over and not self._busy, seconds)
            left, self._posts = self._posts, deque()
            self._changed.notify_all()
        for post in left:
            self._give_up(f"rule {post.rule}: {redact(post.url)}: the agent stops", post.url)

    def _give_up(self, why: str, what: str) -> None:
        with self._changed:
            self.failed += 1
            # Once in a row: a server that is away is away for every event.
            begins = self._failing.pop(what, None) is None
            self._failing[what] = why  # behind the others
        if begins:
            log.warning("action: %s", why)

    def _succeed(self, what: str) -> None:
        with self._changed:
            self.done += 1
            self._failing.pop(what, None)


def _posted(post: _Post) -> tuple[str | None, bool]:
    """Post once; return why it failed, None if it did not, and whether to try again."""
    import http.client
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(post.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection: http.client.HTTPConnection = kind(
        parts.hostname or "", parts.port, timeout=HTTP_SECONDS
    )
    headers = {"Content-Type": "application/json", "User-Agent": "edge-agent"}
    if parts.username is not None:
        import base64
        from urllib.parse import unquote

        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    late = threading.Event()

    def cut() -> None:
        # The time-out is that of each read: a server that sends a byte now and then has none.
        late.set()
        if connection.sock is not None:
            import socket

            with suppress(OSError):  # gone already
                connection.sock.shutdown(socket.SHUT_RDWR)

    limit = threading.Timer(HTTP_SECONDS, cut)
    limit.daemon = True
    limit.start()
    try:
        connection.request("POST", target, post.body, headers)
        status = connection.getresponse().status
    except TimeoutError:
        return f"no answer within {HTTP_SECONDS:.0f} s", True
    except (OSError, HTTPException, ValueError) as problem:
        if late.is_set():
            return f"no answer within {HTTP_SECONDS:.0f} s", True
        return words(problem) or type(problem).__name__, True
    finally:
        limit.cancel()
        connection.close()
    if 200 <= status < 300:
        return None, False
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed, name the final address", False
    return f"answered {status}", status >= 500 or status == 429


def _topic_safe(label: str) -> str:
    """Return a label as one level of a topic."""
    return "".join("_" if mark in "/+#" or not mark.isprintable() else mark for mark in label)
