"""Models on other servers: asks them and parses their untrusted answers.

WebError is raised if there is no answer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..config.asks import Server
from ..core.errors import WebError
from ..core.frozen import record
from ..core.json_text import read_json
from ..core.text import HIDDEN
from ..core.web import WebReply, exchange

if TYPE_CHECKING:
    import ssl

MOST_BYTES = 256 << 10
"""Most bytes of an answer."""
MOST_TOKENS = 512
"""Most tokens of an answer, if the server counts them."""
MOST_INPUTS = 16
"""Most inputs of a model asked through KServe's protocol."""
MOST_NUMBERS = 64
"""Most numbers in an answer without text."""
MOST_WORDS = 200
"""Longest text taken from a server's error, in characters."""
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@record
class Question:
    """A question about an event."""

    prompt: str
    facts: str
    """The event, as JSON."""
    picture: bytes | None
    """JPEG; None: the event has none."""


@record
class Answer:
    """A server's answer."""

    text: str
    tokens: int | None = None
    """Tokens used, including the question; None: the server does not report them."""


def ask(server: Server, question: Question, seconds: float) -> Answer:
    """Ask a server once, and wait up to *seconds* for its answer."""
    try:
        if server.kind == "openai":
            answer = _ask_openai(server, question, seconds)
        else:
            answer = _ask_kserve(server, question, seconds)
    except WebError as problem:
        hidden = _hide(server, str(problem))
        raise WebError(hidden, again=problem.again, pause_s=problem.pause_s) from None
    except RecursionError:
        raise WebError("the answer is nested too deeply", again=False) from None
    if not answer.text.strip():
        raise WebError("the answer is empty", again=False)
    # A server may repeat what we sent, with its key.
    return Answer(_hide(server, answer.text), answer.tokens)


def reach(server: Server, seconds: float) -> str:
    """Check that a server answers and has the model; return a short text about it."""
    try:
        if server.kind == "kserve":
            _get(server, f"{_v2(server)}/ready", seconds)
            return f"{server.model} is ready"
        listed = _object(_get(server, f"{_base(server)}/models", seconds)).get("data")
    except WebError as problem:
        raise WebError(_hide(server, str(problem))) from None
    entries = listed if isinstance(listed, list) else []
    names = [each.get("id") for each in entries if isinstance(each, dict)]
    if server.model not in names:
        there = ", ".join(str(name) for name in names[:10]) or "none"
        raise WebError(_hide(server, f"does not list the model {server.model!r}; it has {there}"))
    return f"{server.model} is there"


def _hide(server: Server, text: str) -> str:
    return text.replace(server.key, HIDDEN) if server.key else text


def _base(server: Server) -> str:
    return server.url.rstrip("/")


# OpenAI's API


def _ask_openai(server: Server, question: Question, seconds: float) -> Answer:
    content: Any = f"{question.prompt}\n\n{question.facts}"
    if question.picture is not None:
        data = base64.b64encode(question.picture).decode()
        content = [
            {"type": "text", "text": question.prompt},
            {"type": "text", "text": question.facts},
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}},
        ]
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": MOST_TOKENS,
        "stream": False,
    }
    url = f"{_base(server)}/chat/completions"
    reply = _checked(server, _send(server, url, json.dumps(body).encode(), JSON, seconds))
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        return _streamed(reply.body)
    said = _object(reply)
    usage = said.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    text = _choice(said).get("message", {})
    text = text.get("content") if isinstance(text, dict) else None
    if not isinstance(text, str):
        raise WebError("the answer has no choices[0].message.content", again=False)
    return Answer(text, tokens if type(tokens) is int and 0 <= tokens < 2**53 else None)


def _choice(said: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = said.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _streamed(body: bytes) -> Answer:
    """Assemble the answer of a server that streams without being asked to."""
    parts: list[str] = []
    for line in body.splitlines():
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        delta = _choice(_parsed(data)).get("delta")
        part = delta.get("content") if isinstance(delta, dict) else None
        parts += [part] if isinstance(part, str) else []
    return Answer("".join(parts))


# KServe's Open Inference Protocol


def _ask_kserve(server: Server, question: Question, seconds: float) -> Answer:
    inputs = _object(_get(server, _v2(server), seconds)).get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
        raise WebError(f"does not say which inputs {server.model} has", again=False)
    if len(inputs) > MOST_INPUTS:  # each may contain the picture
        raise WebError(f"has {len(inputs)} inputs, more than {MOST_INPUTS}", again=False)
    declared, data = [], b""
    for each in inputs:
        tensor, raw = _tensor(each, question)
        declared.append({**tensor, "parameters": {"binary_data_size": len(raw)}})
        data += raw
    head = json.dumps({"inputs": declared}).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    url = f"{_v2(server)}/infer"
    return _outputs(_object(_checked(server, _send(server, url, head + data, headers, seconds))))


def _v2(server: Server) -> str:
    from urllib.parse import quote

    return f"{_base(server).removesuffix('/v2')}/v2/models/{quote(server.model, safe='')}"


def _tensor(given: Mapping[str, Any], question: Question) -> tuple[dict[str, Any], bytes]:
    """Return the description of an input and its bytes."""
    name, kind, shape = given.get("name"), given.get("datatype"), given.get("shape")
    if not isinstance(name, str) or not isinstance(shape, list):
        raise WebError("describes an input without name or shape", again=False)
    if kind == "BYTES" and any(word in name.lower() for word in ("prompt", "text")):
        data = question.prompt.encode()
        tensor = {"name": name, "datatype": kind, "shape": [1] * len(shape)}
        return tensor, len(data).to_bytes(4, "little") + data
    if question.picture is None:
        raise WebError(f"wants a picture as {name!r}, and the event has none", again=False)
    if kind == "UINT8" and len(shape) <= 2 and shape[-1:] == [-1]:
        size = len(question.picture)
        shape = [1] * (len(shape) - 1) + [size]
        return {"name": name, "datatype": kind, "shape": shape}, question.picture
    # OpenVINO Model Server decodes a JPEG for picture inputs of any type.
    if kind == "BYTES" or (len(shape) == 4 and 3 in shape):
        tensor = {"name": name, "datatype": "BYTES"}
        tensor["shape"] = [1] * (len(shape) if kind == "BYTES" else 1)
        return tensor, len(question.picture).to_bytes(4, "little") + question.picture
    raise WebError(
        f"wants {name!r} of {kind} {shape}; an event gives a JPEG, as BYTES or UINT8 of any size, "
        'and its prompt, as BYTES whose name holds "prompt" or "text"',
        again=False,
    )


def _outputs(said: Mapping[str, Any]) -> Answer:
    """Return the text of all outputs that have text, or else their numbers."""
    outputs = said.get("outputs")
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise WebError("the answer has no outputs", again=False)
    flat = {str(each.get("name")): _flat(each.get("data")) for each in outputs}
    texts = [value for values in flat.values() for value in values if isinstance(value, str)]
    if texts:
        return Answer("\n".join(texts))
    count = sum(map(len, flat.values()))
    if count > MOST_NUMBERS:
        raise WebError(f"the answer has {count} numbers and no text", again=False)
    return Answer(json.dumps(flat) if count else "")


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data] if isinstance(data, str | int | float) else []
    return [value for each in data for value in _flat(each)]


# Both


def _send(
    server: Server, url: str, body: bytes | None, headers: Mapping[str, str], seconds: float
) -> WebReply:
    if server.key:
        headers = {**headers, "Authorization": f"Bearer {server.key}"}
    return exchange(url, body, headers, seconds=seconds, most_bytes=MOST_BYTES, tls=_tls(server))


def _get(server: Server, url: str, seconds: float) -> WebReply:
    return _checked(server, _send(server, url, None, {"Accept": "application/json"}, seconds))


def _tls(server: Server) -> ssl.SSLContext | None:
    if server.ca_file is None:
        return None
    import ssl

    from ..core.tls import client_context

    try:
        return client_context(server.ca_file)
    except ssl.SSLError:
        raise WebError(f"ca_file: {server.ca_file}: holds no certificate in PEM form") from None
    except OSError as problem:
        raise WebError(f"ca_file: {server.ca_file}: {problem.strerror}") from None


def _checked(server: Server, reply: WebReply) -> WebReply:
    """Return the reply if the request succeeded, or else raise WebError."""
    if reply.trouble is None:
        return reply
    why = reply.trouble
    if reply.status in {401, 403}:
        why += f"; look at the key (systemd credential servers.{server.name}.key)"
    elif reply.status == 404 and server.kind == "openai" and not _base(server).endswith("/v1"):
        why += '; the url usually ends in "/v1"'
    said = _hide(server, _error_words(reply.body))[:MOST_WORDS]
    wait = reply.headers.get("retry-after", "")
    pause = float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 6 else 0.0
    raise WebError(f"{why}: {said}" if said else why, again=reply.again, pause_s=pause)


def _error_words(body: bytes) -> str:
    """Return the message in a server's error, in OpenAI's or KServe's form."""
    try:
        error = _parsed(body).get("error")
    except WebError:
        return ""
    words = error.get("message") if isinstance(error, dict) else error
    return words if isinstance(words, str) else ""


def _object(reply: WebReply) -> Mapping[str, Any]:
    return _parsed(reply.body)


def _parsed(data: bytes) -> Mapping[str, Any]:
    try:
        said = read_json(data)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise WebError("the answer is not a JSON object", again=False)
    return said
