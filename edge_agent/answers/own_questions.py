"""Questions from the device itself, about events, to its own models of task generate."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from ..core.errors import AgentError, RequestError, WebError
from ..core.text_findings import Generated
from ..core.types import Kind
from ..inference.engines.generator import takes_pictures
from .answers import Answers
from .errors import RefusedError
from .question import Question
from .ticket import ask_payload


def generate(
    answers: Answers, model: str, text: str, picture: bytes | None, seconds: float
) -> tuple[str, int]:
    """Ask a model; return its text, and the number of its tokens."""
    ticket = answers.admit_own(model)
    answers.ask(ticket, about(text, picture))
    try:
        found = ticket.future.result(seconds).outcome.findings
    except TimeoutError:
        late = f"no answer within {seconds:.3g} s; lower text.max_tokens, or raise ask.timeout_s"
        answers.give_up(ticket, RequestError(late))
        raise WebError(late) from None
    except AgentError as problem:
        raise WebError(problem, again=isinstance(problem, RefusedError)) from None
    if not isinstance(found, Generated):
        raise WebError(f"{model} is not of task generate", again=False)
    return found.text, found.tokens


def about(text: str, picture: bytes | None) -> Callable[[Any, Kind], Question]:
    """Return a parser for the question, with the JPEG *picture* if the model takes pictures."""

    def parse(model: Any, kind: Kind) -> Question:
        content: Any = text
        if picture is not None and kind == "generate" and takes_pictures(model.folder):
            url = f"data:image/jpeg;base64,{b64encode(picture).decode()}"
            content = [
                {"type": "text", "text": text},
                {"type": "image_url", "image_url": {"url": url}},
            ]
        body = {"messages": [{"role": "user", "content": content}]}
        return ask_payload(json.dumps(body).encode())(model, kind)

    return parse
