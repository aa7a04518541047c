"""OpenAI's own Python client, unchanged, asks the device."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.test_http import Caller, Listeners, running
from tests.helpers.language_model import language_model
from tests.helpers.small_models import encode_jpeg, plain
from tests.helpers.support import AgentProcess, Listener, Mosquitto, wait_until
from tests.helpers.text_models import embedder, expected

pytest.importorskip("openvino_genai")
pytest.importorskip("tokenizers")
openai = pytest.importorskip("openai")

HELLO: Any = [{"role": "user", "content": "hello"}]
ROOM = 512
"""Tokens that the cache of the wide model has room for."""


class Asked:
    """A device with language models and embeddings, and OpenAI's clients for it."""

    def __init__(self, ask: Caller, heard: Listener, models: Path) -> None:
        self.models = models
        self.heard = heard
        self.url = f"http://127.0.0.1:{ask.address}/v1"
        self.client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)

    def say(self, prompt: str, model: str = "tiny", **more: Any) -> str:
        made = self.client.completions.create(model=model, prompt=prompt, **more)
        return str(made.choices[0].text)

    def chunks(self, **more: Any) -> list[Any]:
        return list(
            self.client.chat.completions.create(model="tiny", messages=HELLO, stream=True, **more)
        )

    def counted(self, what: str) -> int:
        """Give how many questions are so, as the newest health has it."""
        return int((self.heard.last("edge/box/health") or {})["infer"][what])


@pytest.fixture
def asked(
    broker: Mosquitto, listen: Listeners, agent: Callable[..., AgentProcess], tmp_path: Path
) -> Iterator[Asked]:
    """Run it."""
    models = tmp_path / "models"
    language_model(models / "tiny")
    language_model(models / "wide", width=256)
    language_model(models / "views", sees=True)
    embedder(models / "texts")
    tables: dict[str, Any] = {
        "engine": "auto",
        "health": {"interval_s": 1},
        "infer": {"models": ["tiny", "wide", "texts", "views"], "per_s": 10_000},
        "text": {"kv_cache_mb": 1, "max_tokens": 2000},
    }
    with running(broker, listen, agent, tmp_path, **tables) as (ask, heard, _):
        yield Asked(ask, heard, models)


def test_openais_own_client_gets_what_it_gets_of_openai(asked: Asked) -> None:
    """Plain and streamed answers are the same; embeddings; the list; errors as its exceptions."""
    client = asked.client
    assert [model.id for model in client.models.list()] == ["tiny", "wide", "texts", "views"]
    whole = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=30)
    said = whole.choices[0].message
    assert (said.role, whole.choices[0].finish_reason, whole.model) == (
        "assistant",
        "length",
        "tiny@1",
    )
    first, *chunks, last = asked.chunks(max_tokens=30)
    assert (first.object, first.model) == ("chat.completion.chunk", "tiny@1")
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert len(chunks) > 3
    assert all(chunk.id == first.id and chunk.usage is None for chunk in [*chunks, last])
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == said.content
    assert {chunk.choices[0].finish_reason for chunk in [first, *chunks]} == {None}
    assert last.choices[0].finish_reason == "length"
    *_, used = asked.chunks(max_tokens=30, stream_options={"include_usage": True})
    assert (used.choices, used.usage) == ([], whole.usage)

    text = asked.say("hello", max_tokens=40)
    stop = text[9:11]
    pieces = list(
        client.completions.create(
            model="tiny", prompt="hello", max_tokens=40, stop=[stop, "n" * 200], stream=True
        )
    )
    assert "".join(piece.choices[0].text for piece in pieces) == text.split(stop)[0]
    assert pieces[-1].choices[0].finish_reason == "stop"

    found = client.embeddings.create(model="texts", input=["gate", "the pump"])  # as base64
    pump = client.embeddings.create(model="texts", input="the pump", encoding_format="float")
    rest = client.embeddings.create(model="texts", input=["gate"]).usage
    assert found.data[1].embedding == pytest.approx(pump.data[0].embedding)
    assert found.usage.total_tokens == found.usage.prompt_tokens
    assert found.usage.prompt_tokens == pump.usage.prompt_tokens + rest.prompt_tokens
    assert pump.usage.prompt_tokens > rest.prompt_tokens > 0
    with pytest.raises(openai.BadRequestError, match="dimensions: vectors have"):
        client.embeddings.create(model="texts", input="gate", dimensions=8)
    with pytest.raises(openai.BadRequestError, match="another tokenizer"):
        client.embeddings.create(model="texts", input=[[1, 2]])
    gate = expected(asked.models / "texts", "gate", "mean")
    assert np.dot(found.data[0].embedding, gate) > 0.9999

    def refused(kind: type[Exception], words: str, **more: Any) -> None:
        with pytest.raises(kind, match=words):
            client.completions.create(**{"model": "tiny", "prompt": "hello", **more})

    refused(openai.NotFoundError, "may not be asked", model="absent")
    refused(openai.NotFoundError, "may not be asked", model="absent", stream=True)
    refused(openai.BadRequestError, "room for 4096", prompt="ab" * 2048)
    refused(openai.BadRequestError, "room for 4096", prompt="ab" * 2048, stream=True)
    refused(openai.BadRequestError, "kv_cache_mb", model="wide", prompt="a" * (ROOM + 99))
    refused(openai.BadRequestError, "stream: expected", stream=1)
    usage = {"include_usage": True}
    refused(openai.BadRequestError, "stream_options: expected", stream_options=usage)
    amid = client.completions.create(model="wide", prompt="hello", max_tokens=2000, stream=True)
    assert all(chunk.choices[0].text for chunk, _ in zip(amid, range(9), strict=False))
    assert list(amid)[-1].choices[0].finish_reason == "length", "the cache is full"
    assert asked.say("hello", max_tokens=40) == text, "others go on"


def test_pictures_are_taken_out_of_messages(asked: Asked) -> None:
    """Of data: URLs only, streamed or not; they change the answer, and nothing is fetched."""

    def look(*urls: str, model: str = "views") -> str:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        messages: Any = [{"role": "user", "content": [*parts, {"type": "text", "text": "hello"}]}]
        made = asked.client.chat.completions.create(model=model, messages=messages, max_tokens=20)
        return str(made.choices[0].message.content)

    def url(level: int) -> str:
        return f"data:image/jpeg;base64,{b64encode(encode_jpeg(plain(level))).decode()}"

    dark, bright = look(url(20)), look(url(220))
    assert len({dark, bright, look(), look(url(20), url(220))}) == 4
    assert look(url(20)) == dark
    for wrong, words in (
        (["https://example.com/a.jpg"], "nothing is fetched"),
        (["data:image/jpeg;base64,abc"], "nothing is fetched"),
        (["data:image/png;base64," + b64encode(b"GIF89a").decode()], "nothing is fetched"),
        ([url(20)] * 5, "at most 4"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            look(*wrong)
    with pytest.raises(openai.BadRequestError, match="takes no pictures"):
        look(url(20), model="tiny")
    with pytest.raises(openai.BadRequestError, match="views@1"):
        asked.client.completions.create(model="views", prompt="<ov_genai_image_7>")
    assert look(url(220)) == bright


def test_a_hundred_callers_are_answered_or_refused_and_leave_no_trace(asked: Asked) -> None:
    """Eight together get what each gets alone; 16 of 100 begin; whoever leaves frees its room."""
    prompts = [f"hello {number} the gate" for number in range(8)]
    alone = [asked.say(prompt, max_tokens=40) for prompt in prompts]

    async def together(model: str) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=asked.url, api_key="none") as client:
            made = [
                client.completions.create(model=model, prompt=prompt, max_tokens=length)
                for prompt in prompts
            ]
            return await asyncio.gather(*made)

    length = 40
    answers = asyncio.run(together("tiny"))
    assert [answer.choices[0].text for answer in answers] == alone
    length = 100  # of all of them together more than the cache has room for
    answers = asyncio.run(together("wide"))
    assert [answer.usage.completion_tokens for answer in answers] == [100] * 8

    async def flood() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=asked.url, api_key="none", max_retries=0) as client:
            asks = [
                client.completions.create(
                    model="tiny", prompt="hello", max_tokens=2000, stream=True
                )
                for _ in range(100)
            ]
            found = await asyncio.gather(*asks, return_exceptions=True)
            for each in found:
                if isinstance(each, openai.AsyncStream):
                    await each.close()
            return found

    found = asyncio.run(flood())
    refused = [each for each in found if isinstance(each, openai.RateLimitError)]
    assert len(refused) == 84, [each for each in found if each not in refused]
    assert all(int(each.response.headers["retry-after"]) >= 1 for each in refused)
    wait_until(lambda: asked.counted("failed") == 16, "all that have left are given up")
    assert asked.say("ab" * 1000, max_tokens=2000), "there is room again, in queue and cache"
    hurried = asked.client.with_options(timeout=0.05)

    def left() -> bool:
        with pytest.raises(openai.APITimeoutError):
            hurried.completions.create(model="tiny", prompt="hello", max_tokens=2000)
        return asked.counted("failed") > 16

    wait_until(left, "who has not waited for the whole answer, too")
