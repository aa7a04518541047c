"""Servers to ask about events, and the questions: records and their checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from ..core.codec import storable
from ..core.constraints import Gt, Le, Plain
from ..core.frozen import record
from ..core.names import NAME_RULE, is_name, name_problems
from .templates import trouble, url_trouble

_STRICT: Any = {"extra": "forbid"}
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
"""Units of `at_most`, in seconds."""
MOST_PROMPT = 8192
"""Most characters of a prompt."""

Problem = tuple[str, str]
"""Key and error text."""


@storable
@record(kw_only=True)
class Server:
    """A model on another machine."""

    __pydantic_config__ = _STRICT
    name: str
    url: str = field(repr=False)
    """For "openai" with the version, http://gpu.lan:8000/v1; for "kserve" without /v2."""
    kind: Literal["openai", "kserve"] = "openai"
    model: str
    key: str = field(default="", repr=False)
    """Sent as a bearer token; better given as the systemd credential `servers.<name>.key`."""
    ca_file: str | None = None
    """CA certificates for the server's certificate, PEM; None: the system's."""


@storable
@record(kw_only=True)
class Ask:
    """A question to a server about the events of rules."""

    __pydantic_config__ = _STRICT
    server: str | None = None
    model: str | None = None
    """A model of this device with the task "generate"."""
    rules: tuple[str, ...] = ()
    """Empty: all rules of the pipeline."""
    prompt: str
    """May contain words in braces, as in actions."""
    at_most: str = "10/min"
    timeout_s: Annotated[float, Plain(), Gt(0), Le(3600)] = 30.0
    """Time limit for an answer, all tries together."""

    @property
    def most(self) -> tuple[int, float]:
        """The most questions, and the number of seconds that this limit is for."""
        count, _, unit = self.at_most.partition("/")
        return int(count), UNITS[unit]

    @property
    def whom(self) -> str:
        """The server or model that is asked, as named in health and the log."""
        return f"server {self.server}" if self.server is not None else f"model {self.model}"


def server_problems(servers: Sequence[Server]) -> Iterator[Problem]:
    """Yield the problems of servers; no text repeats a URL or key, since these are secrets."""
    yield from name_problems("servers", [server.name for server in servers], "two servers have")
    for server in servers:
        subject = f"servers[{server.name}]"
        if (why := url_trouble(server.url)) is not None:
            yield f"{subject}.url", why
        elif urlsplit(server.url).query or urlsplit(server.url).fragment:
            yield f"{subject}.url", "holds '?' or '#'; a key is given as `key`"
        elif server.ca_file is not None and urlsplit(server.url).scheme != "https":
            yield f"{subject}.ca_file", "needs TLS: begin `url` with https://"
        if not server.model or not server.model.isprintable():
            yield f"{subject}.model", "expected the server's name for its model"
        if not (server.key.isascii() and server.key.isprintable()) or " " in server.key:
            yield f"{subject}.key", "expected ASCII letters, digits and marks, without spaces"


def ask_problems(
    asks: Sequence[Ask], rules: Sequence[str], servers: Sequence[Server]
) -> Iterator[Problem]:
    """Yield the problems of a pipeline's `[[ask]]` tables, given the names of its rules."""
    names = [server.name for server in servers]
    for index, ask in enumerate(asks):
        key = f"ask[{index}]"
        if (ask.server is None) == (ask.model is None):
            yield key, "expected either `server` or `model`"
        if ask.model is not None and not is_name(ask.model):
            yield f"{key}.model", f"{ask.model!r} is not a name ({NAME_RULE})"
        if ask.server is not None and ask.server not in names:
            there = ", ".join(names) or "none; add one as [[servers]]"
            yield f"{key}.server", f"there is no server {ask.server!r}; there are {there}"
        if not rules:
            yield key, "asks about events of rules, but the pipeline has no rules"
        for name in ask.rules:
            if name not in rules:
                there = ", ".join(rules) or "none"
                yield f"{key}.rules", f"there is no rule {name!r}; there are {there}"
        if not ask.prompt.strip() or len(ask.prompt) > MOST_PROMPT:
            yield f"{key}.prompt", f"expected 1 to {MOST_PROMPT} characters"
        elif (why := trouble(ask.prompt)) is not None:
            yield f"{key}.prompt", why
        if re.fullmatch(rf"[1-9][0-9]{{0,5}}/({'|'.join(UNITS)})", ask.at_most) is None:
            units = ", ".join(UNITS)
            yield f"{key}.at_most", f'expected "10/min", of {units}; found {ask.at_most!r}'
