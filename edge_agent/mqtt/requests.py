"""Handles messages under `in/`: carries out and answers commands, passes on all others.

It declares, checks and answers commands without depending on any of them. A command with `id` and
`time` is carried out once (`command_memory`); no message can stop the agent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ..core.errors import AgentError, MalformedError, RequestError
from ..core.frozen import record
from ..core.json_text import HalfLetterError, read_json
from ..core.names import NAME_RULE, is_name
from ..core.parameters import parse, shown, unknown, usage
from ..core.text import cut
from . import payloads
from .client import Client
from .command_memory import CommandMemory, Repeatable
from .connection import ReceivedMessage
from .subscriptions import Handler, Subscriptions
from .topics import Topics

log = logging.getLogger(__name__)

MAX_COMMAND_BYTES = 64 * 1024
MAX_ANSWERED_BYTES = 1024 * 1024
"""Most bytes of a command that is too large but whose id is read, to answer its sender."""
MOST_DOUBTS = 8
"""Most unknown keys of a command that are reported."""
MAX_ERROR = 1000
"""Most characters of an error in a reply, and of a command in the log."""
MAX_RESPONSE_TOPIC, MAX_RESPONSE_LEVELS = 512, 32
"""Most characters and levels of a response topic: brokers end a connection over topics that they
consider too long or too deep (mosquitto: more than 200 levels)."""
IDLE_SECONDS = 0.25

R = TypeVar("R")
SetBare = Callable[[str, str, bytes], Mapping[str, Any]]
"""Sets a key of a pipeline to a bare value; returns a result with possible `warnings`."""


class Later:
    """The outcome of a command that takes a while, or must not be lost; reported by any thread."""

    def __init__(
        self,
        unfinished: str,
        begin: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """Set up the outcome; *unfinished* is the error if the agent ends first.

        *begin* is called once `reply_to` is known, and may report the outcome, or raise AgentError;
        *after* once the reply is remembered and published.
        """
        self.unfinished = unfinished
        self.begin = begin
        self.after = after
        self.answered = False
        """Whether the reply was published."""
        self.reply_to: Mapping[str, Any] | None = None
        """Argument of `Requests.answer_unfinished`, as JSON; None: nobody waits for a reply."""
        self._told: Mapping[str, Any] | AgentError | None = None

    def tell(self, outcome: Mapping[str, Any] | AgentError) -> None:
        """Report the result, or the error."""
        self._told = outcome

    @property
    def told(self) -> bool:
        return self._told is not None

    def result(self) -> Mapping[str, Any]:
        """Return the reported result, or raise the reported AgentError."""
        if isinstance(self._told, AgentError):
            raise self._told
        return self._told or {}


@dataclass(frozen=True, slots=True)
class Command(Generic[R]):
    """A verb of `in/command/<verb>`."""

    verb: str
    parameters: type[R]
    """A frozen record that declares the parameters, see `core.parameters`."""
    run: Callable[[R], Mapping[str, Any] | Later]
    """Carries it out; returns the result of the reply, or a `Later` that will report it. An
    AgentError becomes the reply's error."""
    changes: bool = True
    """Whether it changes anything: such a command is logged and, if it is repeatable, stored on
    disk."""


@record
class _Request:
    """A command as received."""

    verb: str
    body: Mapping[str, Any]
    id: str | None
    message: ReceivedMessage
    trouble: str | None = None
    """Why only its id may be used, or None if all of it may."""

    def __str__(self) -> str:
        """Return the command in one line, shortened, with control characters escaped."""
        try:
            body = json.dumps(self.body)
        except RecursionError:  # logging is deeper in the stack than the parser was
            body = "(nested too deep to show)"
        return _cut(f"{shown(self.verb)} {body}")


@dataclass(slots=True)
class _Waiting:
    """A command that is being carried out."""

    command: Command[Any]
    request: _Request
    repeatable: Repeatable | None
    later: Later | None = None
    """Reports the outcome if that takes a while."""


class Requests:
    """Handles the messages of the inbox one at a time. One thread calls `run`."""

    def __init__(
        self,
        inbox: SimpleQueue[ReceivedMessage | None],
        client: Client,
        topics: Topics,
        subscriptions: Subscriptions,
        memory: CommandMemory,
        *,
        commands: Iterable[Command[Any]],
        deliveries: Handler,
        set_bare: SetBare | None = None,
    ) -> None:
        """Set up the handling.

        *deliveries* handles inbox messages that are not commands: models and transfers;
        *set_bare* sets a key of a pipeline to a bare value.
        """
        self.malformed = 0
        """Number of messages that could not be parsed."""
        self._inbox = inbox
        self._client = client
        self._topics = topics
        self._subscriptions = subscriptions
        self._memory = memory
        self._commands = {command.verb: command for command in commands}
        self._deliveries = deliveries
        self._set_bare = set_bare
        self._waiting: list[_Waiting] = []

    def run(self, on_idle: Callable[[], object] = lambda: None) -> None:
        """Handle messages until the inbox is closed; while none waits, *on_idle* is called."""
        busy = False
        while True:
            try:
                message = self._inbox.get(timeout=0.0 if busy else IDLE_SECONDS)
            except Empty:
                busy = False
                self._answer_waiting()
                on_idle()
                continue
            self._answer_waiting(ending=message is None)
            if message is None:
                return
            busy = True
            acknowledged_later = False
            try:
                acknowledged_later = self._handle(message)
            except MalformedError as problem:
                self.malformed += 1
                if not problem.logged:
                    log.warning("%s: ignored: %s", _cut(message.topic), _cut(str(problem)))
            except Exception:
                # This must not end the agent: the broker would send a QoS 1 message again at the
                # next start and end that as well.
                self.malformed += 1
                log.exception("%s: cannot be handled; the message is discarded", message.topic)
            if not acknowledged_later:
                message.ack()

    def _handle(self, message: ReceivedMessage) -> bool:
        if message.too_large:
            raise MalformedError(f"{message.too_large} bytes, more than this device has room for")
        try:
            handler, levels = self._subscriptions.find(message.topic)
        except MalformedError:
            # The broker still knows the subscription of a source that is gone since the last run.
            self._client.leave([message.topic])
            raise
        if handler is not None:
            return handler(levels, message)
        if levels[:1] == ("command",) and len(levels) == 2:
            self._handle_command(levels[1], message)
            return False
        if message.retained and message.payload:  # an empty one clears a retained message
            # It cannot be answered; the log gives the reason.
            log.warning(
                "%s: retained, so it is refused: it would replay at every connect; "
                "publish without retain",
                message.topic,
            )
            raise MalformedError("retained: it would replay at every connect", logged=True)
        if levels[:1] == ("set",) and len(levels) == 3 and self._set_bare is not None:
            if message.payload:
                self._handle_bare(self._set_bare, *levels[1:], message)
            return False
        return self._deliveries(levels, message)

    def _handle_bare(
        self, set_bare: SetBare, pipeline: str, key: str, message: ReceivedMessage
    ) -> None:
        """Set a key of a pipeline; answered if there is a response topic.

        Raises:
            MalformedError: it cannot be set to that, and only the log can report it.
        """
        value = _cut(message.payload.decode(errors="replace"))
        words = f"set {shown(pipeline)} {shown(key)} to {shown(value)}"
        try:
            self._memory.count_unidentified()
            done = set_bare(pipeline, key, message.payload)
        except AgentError as problem:
            log.warning("%s: refused: %s", words, _cut(str(problem)))
            self._answer(None, message, error=str(problem))
            raise MalformedError(str(problem), logged=True) from None
        log.info("%s: done", words)
        doubts = done.get("warnings", ())
        if doubts:
            log.warning("set %s %s: %s", shown(pipeline), shown(key), _cut("; ".join(doubts)))
        self._publish(_reply(None, result={"warnings": doubts} if doubts else None), message)

    def _handle_command(self, verb: str, message: ReceivedMessage) -> None:
        """Carry a command out, and answer it.

        Raises:
            MalformedError: it cannot be parsed; it is answered if it has a response topic.
        """
        try:
            request = _parse(verb, message)
        except MalformedError as problem:
            self._answer(None, message, error=str(problem))
            raise
        try:
            repeatable = self._check(request)
        except RequestError as problem:
            self.malformed += 1
            log.warning("command %s: refused: %s", request, problem)
            self._answer(request.id, message, error=str(problem))
            return
        command, earlier = self._commands[verb], None
        try:
            if repeatable is not None:
                if any(repeatable.repeats(each.repeatable) for each in self._waiting):
                    return  # it will be answered later
                earlier = self._memory.find(repeatable)
            elif command.changes:
                self._memory.count_unidentified()
        except RequestError as problem:
            log.warning("command %s: refused: %s", request, problem)
            self._answer(request.id, message, error=str(problem))
            return
        if earlier is not None:
            self._publish({**earlier, "repeated": True}, message)
            return
        self._finish(_Waiting(command, request, repeatable))

    def _answer_waiting(self, *, ending: bool = False) -> None:
        """Answer the commands whose outcome has been reported; *ending*: all of them."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.later is not None and ending and not each.later.told:
                each.later.tell(RequestError(each.later.unfinished))
            self._finish(each)

    def answer_unfinished(
        self, reply_to: Mapping[str, Any], outcome: Mapping[str, Any] | AgentError
    ) -> None:
        """Answer a command that the last run left unfinished; *reply_to* is from its `Later`."""
        correlation = bytes.fromhex(reply_to["correlation"]) or None
        message = ReceivedMessage("", b"", False, reply_to["topic"], correlation)
        name = reply_to["id"]
        if isinstance(outcome, AgentError):
            reply = _reply(name, error=str(outcome))
        else:
            reply = _reply(name, result=outcome)
        if reply_to.get("digest") is not None:
            # The broker may send it again, if the last run had no time to acknowledge it.
            done = Repeatable(name, reply_to["sent"], reply_to["digest"])
            self._memory.add(done, reply, durable=True)
        self._publish(reply, message)

    def _finish(self, asked: _Waiting) -> None:
        """Carry out a command or get its outcome, and answer it unless it takes a while."""
        later = asked.later
        reply, done = (None, False) if later and not later.told else self._carry_out(asked)
        if reply is None:
            self._waiting.append(asked)
            return
        if asked.repeatable is not None:
            # Before the answer: a requester that gets none asks again.
            durable = done and asked.command.changes
            self._memory.add(asked.repeatable, reply, durable=durable)
        self._publish(reply, asked.request.message)
        if asked.later is not None:
            asked.later.answered = True
            asked.later.after()

    def _carry_out(self, asked: _Waiting) -> tuple[dict[str, Any] | None, bool]:
        """Return the reply (None: not yet) and whether the command was carried out."""
        command, request = asked.command, asked.request
        # Ignored, so that later versions may send more keys; but reported as possible errors.
        doubts = unknown(command.parameters, request.body, ("schema", "id", "time"))[:MOST_DOUBTS]
        try:
            if asked.later is None:
                result = command.run(parse(command.parameters, request.body))
                if isinstance(result, Later):
                    asked.later = result
                    result.reply_to = _reply_to(asked)
                    result.begin()
                    if not result.told:
                        return None, False
                    result = result.result()
            else:
                result = asked.later.result()
        except AgentError as problem:
            told = [str(problem), *(doubts if isinstance(problem, RequestError) else ())]
            log.warning("command %s: failed: %s", request, "; ".join(told))
            return _reply(request.id, error="; ".join(told)), False
        except Exception as problem:
            log.exception("command %s: failed", request)
            error = f"failed by an error of the agent: {problem!r}; its log has the details"
            return _reply(request.id, error=error), False
        doubts += result.get("warnings", ())
        if doubts:
            log.warning("command %s: done, but %s", request, _cut("; ".join(doubts)))
            result = {**result, "warnings": doubts}
        else:
            log.log(logging.INFO if command.changes else logging.DEBUG, "command %s: done", request)
        return _reply(request.id, result=result), True

    def _check(self, request: _Request) -> Repeatable | None:
        """Check whether a command may be tried; return its identity, if it has one."""
        if request.trouble is not None:
            raise RequestError(request.trouble)
        if request.message.retained:
            raise RequestError(
                "retained commands are refused: they would replay at every connect; "
                "publish without retain"
            )
        if request.verb not in self._commands:
            known = sorted(self._commands.items())
            listed = ", ".join(f"{name} {usage(each.parameters)}" for name, each in known)
            raise RequestError(f"unknown command {shown(request.verb)}; known: {listed}")
        return self._memory.identify(request.verb, request.body, request.id)

    def _answer(self, request: str | None, message: ReceivedMessage, *, error: str) -> None:
        self._publish(_reply(request, error=error), message)

    def _publish(self, reply: Mapping[str, Any], message: ReceivedMessage) -> None:
        payload = payloads.encode(reply)
        if reply["id"] is not None:
            self._client.publish_reply(self._topics.reply(reply["id"]), payload)
        wanted = message.response_topic
        if wanted and is_for_replies(wanted, self._topics, self._client.feeds.topics()):
            self._client.publish_reply(wanted, payload, message.correlation, foreign=True)


def _parse(verb: str, message: ReceivedMessage) -> _Request:
    """Parse the payload of a command."""
    too_large = f"larger than {MAX_COMMAND_BYTES} bytes"
    if len(message.payload) > MAX_ANSWERED_BYTES:
        raise MalformedError(too_large)
    trouble = None
    try:
        body = read_json(message.payload)
    except HalfLetterError as problem:
        body, trouble = problem.content, f"the payload {problem}"
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise MalformedError("the payload is not a JSON object; send {} if there are no parameters")
    request = body.get("id")
    if request is not None and not (isinstance(request, str) and is_name(request)):
        raise MalformedError(f"id: {shown(request)} is not a name ({NAME_RULE})")
    if len(message.payload) > MAX_COMMAND_BYTES:
        # Nothing else of it is kept, because refused commands are logged.
        return _Request(verb, {"id": request}, request, message, too_large)
    return _Request(verb, body, request, message, trouble)


def _reply_to(asked: _Waiting) -> dict[str, Any]:
    message, once = asked.request.message, asked.repeatable
    return {
        "id": asked.request.id,
        "topic": message.response_topic,
        "correlation": (message.correlation or b"").hex(),
        **({} if once is None else {"sent": once.sent, "digest": once.digest}),
    }


def _reply(
    request: str | None, *, result: Mapping[str, Any] | None = None, error: str | None = None
) -> dict[str, Any]:
    reply = {"schema": payloads.SCHEMA, "id": request, "ok": error is None}
    if error is not None:
        return {**reply, "error": _cut(error)}
    return {**reply, "result": dict(result or {})}


def _cut(text: str) -> str:
    return cut(text, MAX_ERROR)


def is_for_replies(topic: str, own: Topics, read: Collection[str]) -> bool:
    """Whether a response topic can be published on and cannot be mistaken for anything else.

    That is a requester's own topic or this device's reply topics. A reply on `status` or `model/…`
    would be read as the state of a device, one under `in/` as a request, and one on a topic of
    *read*, which this device's sources read, as a reading.
    """
    if topic in read or any(mark in topic for mark in "+#"):
        return False
    if len(topic) > MAX_RESPONSE_TOPIC or topic.count("/") >= MAX_RESPONSE_LEVELS:
        return False
    if topic.startswith("$") or not topic.isprintable():
        return False  # reserved for the broker, or not accepted by all brokers
    if topic == own.root or topic.startswith(f"{own.root}/"):
        replies = own.reply("")
        return topic.startswith(replies) and is_name(topic.removeprefix(replies))
    return "in" not in topic.split("/")
