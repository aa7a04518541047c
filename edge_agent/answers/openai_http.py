"""OpenAI's API: converts its requests to questions, and answers to its format."""

from __future__ import annotations

import base64
import json
import time
from asyncio import Queue
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

from ..core.errors import SampleError
from ..core.json_text import read_json
from ..core.text import one_line
from ..core.text_findings import Embeddings, Generated
from ..core.types import Kind
from ..inference.model import Model
from ..models.manifest import ModelFolder
from .question import Question, read_question
from .ticket import Answer

Piece = tuple[str, str] | Future[Answer]
"""A piece of an answer: the model and its next text; the last is the whole answer or its error."""

IDLE = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""Keys of a body that do not affect the answer."""
NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "best_of": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "echo": False,
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "modalities": ["text"],
}
"""Keys that are only supported with this value."""
TYPES = {401: "authentication_error", 429: "rate_limit_error"}
CODES = {
    401: "invalid_api_key",
    404: "not_found",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "unavailable",
}


def error(status: int, text: str, **more: Any) -> dict[str, Any]:
    """Return the body of an error."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = CODES.get(status)
    return {"error": {"message": text, "type": kind, "param": None, "code": code, **more}}


def listed(name: str, folder: ModelFolder) -> dict[str, Any]:
    """Return a model's entry in the list of /v1/models."""
    created = int(folder.network.stat().st_mtime)
    return {"id": name, "object": "model", "created": created, "owned_by": "edge-agent"}


def speaks(folder: ModelFolder) -> bool:
    """Whether a model takes texts."""
    manifest = folder.manifest
    return manifest.task == "generate" or manifest.input.kind == "text"


class TextRequest:
    """A request to one of the three paths, which end in `chat/completions` and so on."""

    def __init__(self, path: str, body: bytes) -> None:
        """Parse the request as far as possible without its model.

        Raises:
            SampleError: it is malformed, or asks for something unsupported.
        """
        try:
            found = read_json(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise SampleError("the body is no JSON object")
        given = {key: value for key, value in found.items() if value is not None}
        name = given.pop("model", None)
        if not isinstance(name, str) or not name:
            raise SampleError("model: expected the name of a model, as GET /v1/models lists them")
        self.model, _, version = name.partition("@")
        self.version = version or None
        self.stream = self._usage = False
        if path != "embeddings":
            self._streams(given)
        for key, value in NEUTRAL.items():
            if given.pop(key, value) != value:
                raise SampleError(f"{key}: only {json.dumps(value)} is supported here")
        for key in IDLE:
            given.pop(key, None)
        self._path = path
        self._base64 = False
        made = self._embedding(given) if path == "embeddings" else self._completion(given)
        self._asked = json.dumps(made).encode()

    def _streams(self, given: dict[str, Any]) -> None:
        self.stream = given.pop("stream", False)
        if not isinstance(self.stream, bool):
            raise SampleError("stream: expected true or false")
        options = given.pop("stream_options", {})
        usage = options.get("include_usage", False) if isinstance(options, dict) else None
        if not isinstance(usage, bool) or (options and not self.stream):
            raise SampleError(
                'stream_options: expected {"include_usage": true}, where stream is true'
            )
        self._usage = usage

    def _embedding(self, given: dict[str, Any]) -> dict[str, Any]:
        coding = given.pop("encoding_format", "float")
        if coding not in ("float", "base64"):  # it may have any type
            raise SampleError("encoding_format: expected float or base64")
        self._base64 = coding == "base64"
        if "dimensions" in given:
            raise SampleError("dimensions: vectors have the length that the model gives them")
        texts = given.pop("input", None)
        _only(given, "model, input, encoding_format")
        whole = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not whole and not isinstance(texts, str):
            raise SampleError(
                "input: expected a text, or a list of texts; numbers of tokens are not taken, as "
                "they may be another tokenizer's"
            )
        return {"texts": [texts] if isinstance(texts, str) else texts}

    def _completion(self, given: dict[str, Any]) -> dict[str, Any]:
        asked = "messages" if self._path == "chat/completions" else "prompt"
        keys = (asked, "max_tokens", "temperature", "stop")
        if "max_completion_tokens" in given:
            given["max_tokens"] = given.pop("max_completion_tokens")
        schema = _schema(given.pop("response_format", {"type": "text"}))
        made = {key: given.pop(key) for key in keys if key in given}
        _only(given, f"model, {', '.join(keys)}, max_completion_tokens, response_format")
        if asked not in made:
            raise SampleError(f"{asked}: missing")
        if asked == "prompt" and isinstance(made[asked], list) and len(made[asked]) == 1:
            made[asked] = made[asked][0]
        return made if schema is None else {**made, "schema": schema}

    def parse(self, model: Model, kind: Kind) -> Question:
        """Make the question for a loaded model.

        Raises:
            SampleError: the model is not of this kind.
        """
        wanted = "text" if self._path == "embeddings" else "generate"
        if kind != wanted:
            task = "embedding of texts" if wanted == "text" else "generate"
            raise SampleError(f"model {self.model} is not of task {task}")
        return read_question(self._asked, model, kind)

    def encode(self, answer: Answer) -> dict[str, Any]:
        """Return the body of the answer."""
        outcome = answer.outcome
        match outcome.findings:
            case Embeddings() as found:
                return self._vectors(found, outcome.model)
            case Generated() as found:
                return self._text(found, outcome.model)
        raise SampleError(f"model {outcome.model} answers without text")

    def _vectors(self, found: Embeddings, model: str) -> dict[str, Any]:
        if not found.finite:
            raise SampleError("the answer has numbers that JSON does not support")
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
                if self._base64
                else vector.tolist(),
            }
            for index, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}

    def _text(self, found: Generated, model: str) -> dict[str, Any]:
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": found.text}}
            if self._chat
            else {"text": found.text}
        )
        return {
            **self._head(model),
            "choices": [_choice(said, found.finish)],
            "usage": _used(found),
        }

    @property
    def _chat(self) -> bool:
        return self._path == "chat/completions"

    def _head(self, model: str) -> dict[str, Any]:
        """Return the first fields of an answer and of each of its chunks."""
        kind = "chat.completion.chunk" if self.stream else "chat.completion"
        return {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid4().hex}",
            "object": kind if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    async def events(self, first: Piece, more: Queue[Piece]) -> AsyncIterator[bytes]:
        """Yield the events of a streamed answer.

        Args:
            first: the first piece.
            more: the other pieces; the answer itself is the last.
        """
        piece, told, none = first, 0, {"usage": None} if self._usage else {}
        model = piece[0] if isinstance(piece, tuple) else piece.result().outcome.model
        head = {**self._head(model), **none}

        def chunk(text: str, finish: str | None = None, **delta: str) -> bytes:
            said = {"delta": {**delta, "content": text} if text or delta else {}}
            return _event(
                {**head, "choices": [_choice(said if self._chat else {"text": text}, finish)]}
            )

        if self._chat:
            yield chunk("", role="assistant")
        while isinstance(piece, tuple):
            told += len(piece[1])
            yield chunk(piece[1])
            piece = await more.get()
        if problem := piece.exception():
            yield _event(error(500, one_line(str(problem))))
            return
        found: Any = piece.result().outcome.findings
        if rest := found.text[told:]:
            yield chunk(rest)
        yield chunk("", found.finish)
        if self._usage:
            yield _event({**head, "choices": [], "usage": _used(found)})
        yield b"data: [DONE]\n\n"


def _choice(said: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, **said, "logprobs": None, "finish_reason": finish}


def _used(found: Generated) -> dict[str, int]:
    return {
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.tokens,
        "total_tokens": found.prompt_tokens + found.tokens,
    }


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _only(left: Mapping[str, Any], known: str) -> None:
    for key in left:
        raise SampleError(f"{key}: is not supported here; supported: {known}")


def _schema(given: Any) -> dict[str, Any] | None:
    """Return the schema that an answer must follow; None: it has none."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    inner = given.get("json_schema") if kind == "json_schema" else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise SampleError(
            'response_format: expected {"type": "json_schema", "json_schema": {"schema": {…}}}, '
            '"json_object" or "text"'
        )
    return schema
