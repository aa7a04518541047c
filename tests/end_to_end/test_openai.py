"""OpenAI's API of the device: language models and embeddings, asked by raw HTTP."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino_genai")
pytest.importorskip("tokenizers")
pytest.importorskip("httptools")

from tests.end_to_end.test_http import Caller, Listeners, running
from tests.helpers.language_model import language_model
from tests.helpers.support import AgentProcess, Mosquitto
from tests.helpers.text_models import embedder, expected

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
EMBED = "/v1/embeddings"
CHAT = "/v1/chat/completions"
FREE = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:"}}


def test_texts_are_answered_as_openai_does(
    broker: Mosquitto, listen: Listeners, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    """Chats, prompts and embeddings; what makes no sense is refused in OpenAI's form."""
    language_model(tmp_path / "models" / "tiny")
    folder = embedder(tmp_path / "models" / "texts")
    tables: dict[str, Any] = {
        "engine": "auto",
        "infer": {"models": ["tiny", "texts", "light"], "per_s": 1000, "max_mb": 1},
        "text": {"kv_cache_mb": 4, "max_tokens": 20},
        "trust": {"allow_unsigned": True},
    }
    with running(broker, listen, agent, tmp_path, **tables) as (ask, heard, _process):
        assert [each["id"] for each in ask("/v1/models").json["data"]] == ["tiny", "texts"]
        assert ask("/v1/models/tiny").json["object"] == "model"
        few = {"max_completion_tokens": 5, "user": "me", "modalities": ["text"]}
        said = ask(CHAT, {"model": "tiny", **HELLO, **few}).json
        assert (said["object"], said["model"]) == ("chat.completion", "tiny@1")
        choice = said["choices"][0]
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] == "length"
        used = said["usage"]
        assert used["completion_tokens"] == 5
        assert used["prompt_tokens"] > len("user: assistant:")
        assert used["total_tokens"] == used["prompt_tokens"] + 5
        same = ask(CHAT, {"model": "tiny@1", **PARTS, "max_tokens": 5}).json
        assert same["choices"] == said["choices"]
        prompt = ask("/v1/completions", {"model": "tiny", "prompt": ["hello"], "n": 1}).json
        assert prompt["object"] == "text_completion"
        assert prompt["usage"]["completion_tokens"] == 20
        stop = prompt["choices"][0]["text"][3]
        short = ask("/v1/completions", {"model": "tiny", "prompt": "hello", "stop": stop}).json
        assert short["choices"][0]["text"] == prompt["choices"][0]["text"].split(stop)[0]
        kept = ask(CHAT, {"model": "tiny", **HELLO, "response_format": FREE}).json
        assert kept["choices"][0]["message"]["content"].strip().lstrip("-").isdigit()

        both = ask(EMBED, {"model": "texts", "input": ["pump", "gate"]}).json["data"]
        assert np.dot(both[1]["embedding"], expected(folder, "gate", "mean")) > 0.9999
        packed = ask(EMBED, {"model": "texts", "input": "gate", "encoding_format": "base64"}).json
        vector = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
        assert vector == pytest.approx(both[1]["embedding"])

        wrong: list[tuple[str, Any, int, str]] = [
            (CHAT, b"\xff", 400, "no JSON object"),
            (CHAT, {}, 400, "model: expected"),
            (CHAT, {"model": "tiny"}, 400, "messages: missing"),
            (CHAT, {"model": "tiny", "messages": "hi"}, 400, "messages: expected"),
            (CHAT, {"model": "tiny", **HELLO, "n": 2}, 400, "n: only 1"),
            (CHAT, {"model": "tiny", **HELLO, "max_tokens": "9"}, 400, "max_tokens: expected"),
            (CHAT, {"model": "tiny", **HELLO, "seed": 1}, 400, "seed: is not supported"),
            (CHAT, {"model": "tiny", **HELLO, "response_format": 1}, 400, "response_format: exp"),
            (
                CHAT,
                {"model": "tiny", "messages": [{"content": [PICTURE]}]},
                400,
                "nothing is fetched",
            ),
            (CHAT, {"model": "texts", **HELLO}, 400, "not of task generate"),
            (CHAT, {"model": "light", **HELLO}, 400, "not of task generate"),
            (CHAT, {"model": "absent", **HELLO}, 404, "may not be asked"),
            (CHAT, {"model": "tiny@7", **HELLO}, 404, "no version 7"),
            (CHAT, {"model": "tiny@7", **HELLO, "stream": True}, 404, "no version 7"),
            (EMBED, {"model": "tiny", "input": "a"}, 400, "not of task embedding"),
            (EMBED, {"model": "texts", "input": [[1, 2]]}, 400, "input: expected"),
            (EMBED, {"model": "texts", "input": []}, 400, "texts"),
            (EMBED, b"a" * (1 << 20) + b"a", 413, "infer.max_mb"),
            ("/v1/models/light", None, 404, "light"),
            ("/v1/nothing", None, 404, "Not Found"),
        ]
        for path, body, status, words in wrong:
            answered = ask(path, body)
            assert answered.status == status, (path, body, answered)
            assert words in answered.json["error"]["message"]
            assert answered.json["error"]["type"] == "invalid_request_error"
        heard.wait_state("edge/box/health", state="ok")


def test_what_is_too_much_or_without_token_is_refused_in_openais_form(
    broker: Mosquitto, listen: Listeners, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    """With when to ask again."""
    embedder(tmp_path / "models" / "texts")
    path = tmp_path / "http.sock"
    tables: dict[str, Any] = {
        "infer": {"models": ["texts"], "per_s": 0.001},
        "http": {"listen": f"unix:{path}", "token": "geheim"},
    }
    with running(broker, listen, agent, tmp_path, **tables):
        refused = Caller(path)("/v1/models")
        assert refused.status == 401
        assert refused.json["error"]["code"] == "invalid_api_key"
        ask = Caller(path, "geheim")
        assert ask(EMBED, {"model": "texts", "input": "a"}).status == 200
        late = ask(EMBED, {"model": "texts", "input": "a"})
        assert (late.status, late.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(late.headers["retry-after"]) > 100
