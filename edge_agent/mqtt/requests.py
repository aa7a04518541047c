"""Handles what arrives under `in/`: commands are carried out and answered, all else is handed on.

Knows how a command is declared, checked and answered, and none of the commands. Each reply is
remembered, over restarts too, so that a repeated request is not carried out twice; nothing that
arrives can stop the agent.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

from ..core.errors import AgentError, MalformedError
from ..core.names import NAME_RULE, is_name
from ..core.parameters import parse, usage
from ..core.state_file import StateFile
from . import payloads
from .client import Client
from .connection import ReceivedMessage
from .subscriptions import Handler, Subscriptions
from .topics import Topics

log = logging.getLogger(__name__)

REMEMBERED = 256
MAX_COMMAND_BYTES = 64 * 1024
MAX_AGE_SECONDS = 60.0
IDLE_SECONDS = 0.25

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Command(Generic[R]):
    """A verb of `in/command/<verb>`."""

    verb: str
    parameters: type[R]
    """A frozen record whose fields declare them, see `core.parameters`."""
    run: Callable[[R], Mapping[str, Any]]
    """Carries it out; returns the result of the reply. An AgentError becomes the reply's error."""
    changes: bool = True
    """Whether it changes anything; the replies of others are written to disk several at a time."""


class ReplyMemory:
    """The latest requests and their replies, over restarts."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, "requests that were done")
        self._replies: OrderedDict[str, dict[str, Any]] = OrderedDict(
            self._file.read(lambda content: [(str(entry["id"]), dict(entry)) for entry in content])
            or ()
        )
        self._unwritten = False

    def find(self, request: str) -> dict[str, Any] | None:
        """Find the reply to a request."""
        return self._replies.get(request)

    def add(self, reply: dict[str, Any]) -> None:
        """Remember a reply; over a restart, once it is written."""
        self._replies[reply["id"]] = reply
        while len(self._replies) > REMEMBERED:
            self._replies.popitem(last=False)
        self._unwritten = True

    def write(self) -> None:
        """Write what is not on disk yet."""
        if not self._unwritten:
            return
        self._unwritten = False
        self._file.save(list(self._replies.values()))


class Requests:
    """Takes messages off the inbox, one after the other. `run` by one thread."""

    def __init__(
        self,
        inbox: SimpleQueue[ReceivedMessage | None],
        client: Client,
        topics: Topics,
        subscriptions: Subscriptions,
        memory: ReplyMemory,
        *,
        commands: Iterable[Command[Any]],
        deliveries: Handler,
        credible: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare.

        Args:
            inbox: what was received.
            client: publishes the replies.
            topics: this device's.
            subscriptions: know what is for whom.
            memory: of earlier requests.
            commands: that there are.
            deliveries: takes what is in an inbox and is no command: models and transfers.
            credible: whether this machine's clock shows the time.

        """
        self.malformed = 0
        """Messages that could not be understood."""
        self._inbox = inbox
        self._client = client
        self._topics = topics
        self._subscriptions = subscriptions
        self._memory = memory
        self._commands = {command.verb: command for command in commands}
        self._deliveries = deliveries
        self._credible = credible

    def run(self, on_idle: Callable[[], object] = lambda: None) -> None:
        """Handle messages until the inbox is closed.

        Args:
            on_idle: called when no message waits, and every IDLE_SECONDS then.

        """
        busy = False
        while True:
            try:
                message = self._inbox.get(timeout=0.0 if busy else IDLE_SECONDS)
            except Empty:
                busy = False
                self._memory.write()
                on_idle()
                continue
            if message is None:
                self._memory.write()
                return
            busy = True
            acknowledged_later = False
            try:
                acknowledged_later = self._handle(message)
            except MalformedError as problem:
                self.malformed += 1
                log.debug("%s: %s", message.topic, problem)
            if not acknowledged_later:
                message.ack()

    def _handle(self, message: ReceivedMessage) -> bool:
        handler, levels = self._subscriptions.find(message.topic)
        if handler is not None:
            return handler(levels, message)
        match levels:
            case ("command", verb):
                self._handle_command(verb, message)
                return False
            case _:
                # Empty, it is what clears a retained message.
                if message.retained and message.payload:
                    self._refuse_retained(message.topic)
                return self._deliveries(levels, message)

    def _refuse_retained(self, topic: str) -> NoReturn:
        """Refuse what cannot be answered; the log tells its sender why.

        Raises:
            MalformedError: always.

        """
        log.warning(
            "%s: retained, so it is refused: it would replay at every connect; "
            "publish without retain",
            topic,
        )
        raise MalformedError("retained: it would replay at every connect")

    def _handle_command(self, verb: str, message: ReceivedMessage) -> None:
        """Carry a command out, and answer it.

        Raises:
            MalformedError: it cannot be answered.

        """
        if len(message.payload) > MAX_COMMAND_BYTES:
            raise MalformedError(f"larger than {MAX_COMMAND_BYTES} bytes")
        try:
            body = json.loads(message.payload)
        except (ValueError, RecursionError):
            raise MalformedError("not JSON") from None
        request = body.get("id") if isinstance(body, dict) else None
        if not isinstance(request, str) or not is_name(request):
            raise MalformedError(f'has no "id" that is a name ({NAME_RULE})')
        earlier = self._memory.find(request)
        if earlier is not None and not message.retained:
            self._answer(earlier, message)
            return
        reply: dict[str, Any] = {"schema": payloads.SCHEMA, "id": request}
        refusal = self._refusal(verb, body, message)
        if refusal is not None:
            self.malformed += 1
            self._answer({**reply, "ok": False, "error": refusal}, message)
            return
        command = self._commands[verb]
        try:
            result = command.run(parse(command.parameters, body))
        except AgentError as problem:
            reply |= {"ok": False, "error": str(problem)}
        else:
            reply |= {"ok": True, "result": dict(result)}
        self._memory.add(reply)
        if command.changes:
            # Before it is answered: a requester without an answer asks again.
            self._memory.write()
        self._answer(reply, message)

    def _refusal(self, verb: str, body: Mapping[str, Any], message: ReceivedMessage) -> str | None:
        """Return why a command is not even tried.

        The age of a command can only be judged by a clock that has been set: one that has not would
        refuse all of them, or none. Until then they are carried out; none twice, and none that is
        retained.
        """
        if message.retained:
            return (
                "retained commands are refused: they would replay at every connect; "
                "publish without retain"
            )
        if verb not in self._commands:
            known = sorted(self._commands.items())
            listed = ", ".join(f"{name} {usage(each.parameters)}" for name, each in known)
            return f"unknown command {verb!r}; known: {listed}"
        if "time" in body:
            try:
                sent = datetime.fromisoformat(str(body["time"]))
            except ValueError:
                return f"time: {body['time']!r} is not ISO 8601"
            if sent.tzinfo is None:
                sent = sent.replace(tzinfo=UTC)
            age = time.time() - sent.timestamp()
            if self._credible() and age > MAX_AGE_SECONDS:
                return f"expired: sent {age:.0f} s ago, taken for {MAX_AGE_SECONDS:.0f} s"
        return None

    def _answer(self, reply: Mapping[str, Any], message: ReceivedMessage) -> None:
        payload = payloads.encode(reply)
        self._client.publish_reply(self._topics.reply(reply["id"]), payload)
        if message.response_topic and _is_for_replies(message.response_topic, self._topics):
            self._client.publish_reply(message.response_topic, payload, message.correlation)


def _is_for_replies(topic: str, own: Topics) -> bool:
    """Whether a response topic can be published on, and would be read as nothing but a reply.

    A requester's own topic is; of the devices' topics only this one's for replies are. A reply on
    `status` or `model/…` would pass for the state of a device, and under `in/` for a request.
    """
    if any(mark in topic for mark in "+#\0"):
        return False
    if topic == own.root or topic.startswith(f"{own.root}/"):
        replies = own.reply("")
        return topic.startswith(replies) and is_name(topic.removeprefix(replies))
    return "in" not in topic.split("/")
