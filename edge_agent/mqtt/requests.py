"""What others ask of this device: everything that arrives under `in/`.

Each order is answered, once, and remembered over restarts; nothing that arrives can stop the agent.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from ..core.errors import AgentError, MalformedError, ModelError
from ..core.names import NAME_RULE, is_name
from ..core.state_file import StateFile
from . import payloads
from .client import Client
from .connection import ReceivedMessage
from .topics import Topics

log = logging.getLogger(__name__)

REMEMBERED = 256
MAX_COMMAND_BYTES = 64 * 1024
MAX_AGE_SECONDS = 60.0
IDLE_SECONDS = 0.25
HARMLESS = frozenset({"ping", "snapshot"})
"""Verbs that change nothing: many at once are written down together."""

Verb = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""Does what is asked; its result goes into the reply, an AgentError's text too."""


@dataclass(frozen=True, slots=True)
class Inbox:
    """A message's place under `in/`."""

    levels: tuple[str, ...]
    group: str | None


class Memory:
    """The last requests and their replies, so that one repeated is not done twice."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, "requests that were done")
        self._replies: OrderedDict[str, dict[str, Any]] = OrderedDict(
            self._file.read(lambda content: [(str(entry["id"]), dict(entry)) for entry in content])
            or ()
        )
        self._unwritten = False

    def recall(self, request: str) -> dict[str, Any] | None:
        return self._replies.get(request)

    def remember(self, reply: dict[str, Any]) -> None:
        """Keep a reply; over a restart, once it is written."""
        self._replies[reply["id"]] = reply
        while len(self._replies) > REMEMBERED:
            self._replies.popitem(last=False)
        self._unwritten = True

    def write(self) -> None:
        """Write down what is not written yet."""
        if not self._unwritten:
            return
        self._unwritten = False
        self._file.save(list(self._replies.values()))


class Orders:
    """Takes messages off the inbox, one after the other, and has them done."""

    def __init__(
        self,
        inbox: SimpleQueue[ReceivedMessage | None],
        client: Client,
        topics: Topics,
        groups: Callable[[], tuple[str, ...]],
        memory: Memory,
        *,
        credible: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare.

        Args:
            inbox: what arrives.
            client: answers go out by it.
            topics: this device's.
            groups: that it is a member of.
            memory: of what has been done.
            credible: whether this machine's clock shows the time.

        """
        self._inbox = inbox
        self._client = client
        self._topics = topics
        self._groups = groups
        self._memory = memory
        self.malformed = 0
        """Messages that could not be understood."""
        self._credible = credible
        self.verbs: dict[str, Verb] = {}
        self.deliveries: Callable[[Inbox, ReceivedMessage], bool] | None = None
        """Takes models and transfers; True when it will acknowledge the message itself."""
        self.idle: Callable[[], None] = lambda: None
        """Called when nothing more is there to be dealt with, and every now and then."""
        self._behind = False

    def run(self) -> None:
        while True:
            try:
                message = self._inbox.get(timeout=0.0 if self._behind else IDLE_SECONDS)
            except Empty:
                self._behind = False
                self._memory.write()
                self.idle()
                continue
            if message is None:
                self._memory.write()
                return
            self._behind = True
            kept = False
            try:
                kept = self._handle(message)
            except MalformedError as problem:
                self.malformed += 1
                log.debug("%s: %s", message.topic, problem)
            if not kept:
                message.ack()

    def _handle(self, message: ReceivedMessage) -> bool:
        place = self._locate(message.topic)
        match place.levels:
            case ("command", verb):
                self._command(verb, message)
                return False
            case _:
                # Empty, it is what takes back one that was kept.
                if message.retained and message.payload:
                    self._refuse_retained(message.topic)
                if self.deliveries is None:
                    raise MalformedError("nothing is expected here")
                return self.deliveries(place, message)

    def _refuse_retained(self, topic: str) -> NoReturn:
        """Refuse what cannot be answered; who sent it finds out from the log.

        Raises:
            MalformedError: always.

        """
        log.warning(
            "%s: retained, so it is refused: it would replay at every connect; "
            "publish without retain",
            topic,
        )
        raise MalformedError("retained: it would replay at every connect")

    def _locate(self, topic: str) -> Inbox:
        own = self._topics.inbox + "/"
        if topic.startswith(own):
            return Inbox(tuple(topic.removeprefix(own).split("/")), None)
        for group in self._groups():
            shared = self._topics.group_inbox(group) + "/"
            if topic.startswith(shared):
                return Inbox(tuple(topic.removeprefix(shared).split("/")), group)
        raise MalformedError("not for us: a group that this device has left")

    def _command(self, name: str, message: ReceivedMessage) -> None:
        if len(message.payload) > MAX_COMMAND_BYTES:
            raise MalformedError(f"larger than {MAX_COMMAND_BYTES} bytes")
        try:
            body = json.loads(message.payload)
        except (ValueError, RecursionError):
            raise MalformedError("not JSON") from None
        request = body.get("id") if isinstance(body, dict) else None
        if not isinstance(request, str) or not is_name(request):
            raise MalformedError(f'has no "id" that is a name ({NAME_RULE})')
        known = self._memory.recall(request)
        if known is not None and not message.retained:
            self._answer(known, message)
            return
        reply: dict[str, Any] = {"schema": payloads.SCHEMA, "id": request}
        refusal = _refusal(name, body, message, self.verbs, credible=self._credible())
        if refusal is not None:
            self.malformed += 1
            self._answer({**reply, "ok": False, "error": refusal}, message)
            return
        try:
            result = self.verbs[name](body)
        except AgentError as problem:
            reply |= {"ok": False, "error": str(problem)}
        else:
            reply |= {"ok": True, "result": dict(result or {})}
        self._memory.remember(reply)
        if name not in HARMLESS:
            # Before it is answered: who got no answer asks again.
            self._memory.write()
        self._answer(reply, message)

    def _answer(self, reply: Mapping[str, Any], message: ReceivedMessage) -> None:
        payload = payloads.encode(reply)
        self._client.publish_reply(self._topics.reply(reply["id"]), payload)
        # Only where a requester may listen: neither as an order to a device, nor as its word.
        if message.response_topic and _may_answer_on(message.response_topic, self._topics):
            self._client.publish_reply(message.response_topic, payload, message.correlation)


def _may_answer_on(topic: str, own: Topics) -> bool:
    """Whether a response topic is one, and nothing but an answer would be looked for there.

    A requester's own topic is; of the devices' topics only this one's for replies are: an answer
    on `status` or `model/…` would pass for what the device says of itself, to everybody.
    """
    if any(mark in topic for mark in "+#\0"):
        return False
    if topic == own.root or topic.startswith(f"{own.root}/"):
        replies = own.reply("")
        return topic.startswith(replies) and is_name(topic.removeprefix(replies))
    return "in" not in topic.split("/")


def _refusal(
    name: str,
    body: Mapping[str, Any],
    message: ReceivedMessage,
    verbs: Mapping[str, Verb],
    *,
    credible: bool,
) -> str | None:
    """Say why a command is not even tried.

    How old one is can only be judged by a clock that has been set: one that has not would refuse
    all of them, or none. Until then they are taken; none is done twice, and none is retained.
    """
    if message.retained:
        return (
            "retained commands are refused: they would replay at every connect; "
            "publish without retain"
        )
    if name not in verbs:
        return f"unknown command {name!r}; known: {', '.join(sorted(verbs))}"
    if "time" in body:
        try:
            sent = datetime.fromisoformat(str(body["time"]))
        except ValueError:
            return f"time: {body['time']!r} is not ISO 8601"
        if sent.tzinfo is None:
            sent = sent.replace(tzinfo=UTC)
        age = time.time() - sent.timestamp()
        if credible and age > MAX_AGE_SECONDS:
            return f"expired: sent {age:.0f} s ago, taken for {MAX_AGE_SECONDS:.0f} s"
    return None


def text(body: Mapping[str, Any], key: str) -> str:
    """Read a required name from a command."""
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise ModelError(f"{key}: is missing; a text is expected")
    return value
