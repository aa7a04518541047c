"""Questions of the device itself, about events, to its own models of task generate."""

from __future__ import annotations

import json

from ..core.errors import AgentError, RequestError, WebError
from ..core.text_findings import Generated
from .answers import Answers
from .errors import RefusedError
from .ticket import ask_payload


def generate(answers: Answers, model: str, text: str, seconds: float) -> tuple[str, int]:
    """Ask a model; return what it says, and of how many tokens."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    ticket = answers.admit_own(model)
    answers.ask(ticket, ask_payload(body))
    try:
        found = ticket.future.result(seconds).outcome.findings
    except TimeoutError:
        late = f"no answer within {seconds:.3g} s"
        answers.give_up(ticket, RequestError(late))
        raise WebError(late) from None
    except AgentError as problem:
        raise WebError(problem, again=isinstance(problem, RefusedError)) from None
    if not isinstance(found, Generated):
        raise WebError(f"{model} is not of task generate", again=False)
    return found.text, found.tokens
