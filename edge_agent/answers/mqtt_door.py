"""Questions over MQTT: `in/infer/<model>[/<id>]`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..core.errors import AgentError, MalformedError
from ..core.names import NAME_RULE, is_name
from ..core.text import one_line
from ..mqtt import payloads
from ..mqtt.client import Client
from ..mqtt.connection import ReceivedMessage
from ..mqtt.requests import is_for_replies
from ..mqtt.topics import Topics
from .answers import Answers
from .errors import RefusedError
from .ticket import Answer, ask_payload

log = logging.getLogger(__name__)


@dataclass(eq=False)
class MqttDoor:
    """Takes questions from the broker, and publishes the answers."""

    answers: Answers
    client: Client
    topics: Topics

    def message(self, levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        """Handle a message below `in/infer`; returns False if it can be acknowledged at once."""
        model, *more = levels
        if len(more) > 1 or not all(map(is_name, more)):
            raise MalformedError(f"expected in/infer/<model>[/<id>], the id a name ({NAME_RULE})")
        if message.retained and not message.payload:
            return False  # clears a retained message
        number = more[0] if more else None
        publish = self._way_back(number, message)
        if publish is None:
            raise MalformedError(
                "nobody can be answered: name a response topic (MQTT 5), or an id, as "
                "in/infer/<model>/<id>"
            )
        try:
            ticket = self.answers.admit(model, len(message.payload))
        except AgentError as problem:
            publish(_refusal(number, problem))
            return False
        ticket.future.add_done_callback(partial(self._answer, number, publish))
        self.answers.ask(ticket, ask_payload(message.payload))
        return False

    def _way_back(
        self, number: str | None, message: ReceivedMessage
    ) -> Callable[[dict[str, Any]], None] | None:
        """Return a function that publishes the answer, or None if there is nowhere to reply."""
        topic = message.response_topic
        if topic and is_for_replies(topic, self.topics, self.client.feeds.topics()):
            answer = partial(self.client.publish_reply, topic, foreign=True)
            return lambda body: answer(payloads.encode(body), correlation=message.correlation)
        if number is None:
            return None
        own = self.topics.reply(number)
        return lambda body: self.client.publish_reply(own, payloads.encode(body))

    def _answer(
        self,
        number: str | None,
        publish: Callable[[dict[str, Any]], None],
        future: Future[Answer],
    ) -> None:
        problem = future.exception()
        if problem is not None:
            publish(_refusal(number, problem))
            return
        body = {"id": number, "ok": True, **self.answers.result(future.result())}
        try:
            publish(body)
        except ValueError:
            words = AgentError("the answer has numbers that are not finite, unlike JSON's")
            publish(_refusal(number, words))


def _refusal(number: str | None, problem: BaseException) -> dict[str, Any]:
    """Return the reply to a question that gets no answer."""
    reply: dict[str, Any] = {
        "schema": payloads.SCHEMA,
        "id": number,
        "ok": False,
        "error": one_line(str(problem)),
    }
    if isinstance(problem, RefusedError):
        reply["retry_after_s"] = round(problem.retry_after_s, 3)
    return reply
