"""Checks of the settings for answers on demand."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.errors import UsageError
from .answers import Http, Infer, parse_listen
from .settings import parse_route

Problem = tuple[str, str, str]
"""Table, key and error text."""


def answer_problems(infer: Infer, http: Http) -> Iterator[Problem]:
    """Yield the problems of `[infer]` and `[http]`."""
    seen: set[str] = set()
    for text in infer.models:
        try:
            names = {arm.name for arm in parse_route(text)}
        except UsageError as problem:
            yield "infer", "models", str(problem)
            continue
        if len(names) > 1:
            yield "infer", "models", f"{text!r}: expected versions of one model, found several"
        if names & seen:
            yield "infer", "models", f"{text!r}: this model is listed twice; requests use its name"
        seen |= names
    if not http.listen:
        return
    try:
        endpoint = parse_listen(http.listen)
    except UsageError as problem:
        yield "http", "listen", str(problem)
        return
    if not endpoint.local and not http.token:
        mend = "set http.token (systemd credential http.token), or listen on 127.0.0.1"
        yield "http", "listen", f"{http.listen!r}: others can reach it; {mend}"
