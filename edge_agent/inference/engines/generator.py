"""Models of task generate: OpenVINO GenAI's continuous batching, stepped by one thread of ours.

All questions go through the network together, one token each at a time; a question that the paged
cache has no room for waits or starts over, and is not lost. The library lets no other thread of
Python run while it loads or steps, so the agent runs this in a child (`generator_process`).
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import AgentError, ModelError, RequestError, SampleError
from ...core.json_text import read_json
from ...core.text import counted
from ...core.text_findings import Generated
from ...core.types import Array, Outcome, Timing
from ...device.resources import usable_cpus
from ...models.golden import read_answers
from ...models.manifest import ModelFolder
from .engine import native_reason

log = logging.getLogger(__name__)

LABEL = "openvino:CPU"
BLOCK_TOKENS = 32
"""Tokens in a block of the cache on a CPU."""
NUMBER_BYTES = 2
"""Most bytes per number in the cache: eight bits, or sixteen on devices without these."""
EXPECTED = '{"messages": [{"role": "user", "content": "…"}]} or {"prompt": "…"}'
TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
"""Files beside the network, as `optimum-cli export openvino` writes them."""
VISION = "openvino_vision_embeddings_model.xml"
PICTURE_TAG = "<ov_genai_image_{}>"
"""The library's tag for a picture in the text of a question, by the picture's number."""
UNLOAD_SECONDS = 5.0
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""Options for a model that gives its golden answers only with them."""
EXACT_BYTES = 4
SCHEMA_BYTES, SCHEMA_DEPTH = 16 * 1024, 64
"""Of a schema: while the library reads one, no other question is answered."""
Tell = Callable[[str, str], None]
"""Receives the model and each piece of its answer, in the thread that steps it."""


def takes_pictures(folder: ModelFolder) -> bool:
    """Whether it is a vision-language model."""
    return folder.network.with_name(VISION).is_file()


@dataclass(slots=True, eq=False)
class _Asked:
    """A question, and the progress of its answer."""

    prompt: tuple[Any, ...]
    """Its tokens, (1, n); for a vision-language model its text and pictures."""
    prompt_tokens: int
    """Number of tokens, without those of pictures."""
    config: Any
    stops: list[str]
    tell: Tell | None
    future: Future[Outcome] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)
    handle: Any = None
    tokens: list[int] = field(default_factory=list)
    told: str = ""
    """The part of the text that `tell` has received."""
    finish: str = "stop"


class Generator:
    """A loaded model. Any thread may `submit`; its own thread loads, steps, and closes it."""

    def __init__(
        self,
        folder: ModelFolder,
        *,
        kv_cache_mb: int = 64,
        max_tokens: int = 8,
        golden: bool = True,
    ) -> None:
        """Load a model; may take long.

        Raises:
            ModelError: it cannot be loaded, or does not give its golden answers.
        """
        self.folder = folder
        self.id = folder.manifest.id
        self.problem: str | None = None
        """Why it could not be loaded again after a failure."""
        self._kv_cache_mb, self._max_tokens = kv_cache_mb, max_tokens
        self._pipeline: Any = None
        self._number = 0
        self._asked: list[_Asked] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._loaded: Future[str | None] = Future()
        held = golden and folder.golden.exists()
        name = f"text-{self.id}"
        self._thread = threading.Thread(target=self._run, args=(held,), name=name, daemon=True)
        self._thread.start()
        self._loaded.result()

    # What others call

    @property
    def golden(self) -> str | None:
        """How its golden answers agree; None: none were compared."""
        return self._loaded.result()

    def submit(
        self, data: bytes, pictures: Sequence[Array] = (), tell: Tell | None = None
    ) -> Future[Outcome]:
        """Ask a question without waiting for the answer.

        The text has a tag, `PICTURE_TAG`, for each picture, (height, width, 3) uint8, BGR.
        *tell* receives the answer piece by piece, as far as it is final; the rest comes with the
        outcome.

        Raises:
            SampleError: the question is malformed.
            RequestError: it is being unloaded.
        """
        asked = self._read(data, pictures, tell)
        with self._changed:
            if self._closing.is_set():
                raise RequestError(f"{self.id}: is being unloaded; ask again")
            self._asked.append(asked)
            self._changed.notify()
        return asked.future

    def close(self) -> None:
        """Stop taking questions; unload the model once those in progress are answered."""
        self._closing.set()
        with self._changed:
            self._changed.notify()

    def join(self, seconds: float | None = None) -> None:
        """Wait until it is unloaded, up to *seconds*."""
        self._thread.join(seconds)

    def _read(
        self, data: bytes, pictures: Sequence[Array] = (), tell: Tell | None = None
    ) -> _Asked:
        """Check a question, and make its prompt."""
        import openvino_genai as genai

        body = _checked(data)
        vision = takes_pictures(self.folder)
        if pictures and not vision:
            raise SampleError(f"image_url: {self.id} takes no pictures")
        defaults = self.folder.network.with_name("generation_config.json")
        config = (
            genai.GenerationConfig(str(defaults)) if defaults.exists() else genai.GenerationConfig()
        )
        config.apply_chat_template = False
        heat = body.get("temperature", 0)
        config.do_sample, config.temperature = heat > 0, float(heat or 1)
        stop = body.get("stop", [])
        stops = [stop] if isinstance(stop, str) else stop
        config.stop_strings = set(stops)
        if "schema" in body:
            text = json.dumps(body["schema"])
            config.structured_output_config = genai.StructuredOutputConfig(json_schema=text)
        try:
            text, tokens = self._prompt(body)
        except RuntimeError as problem:
            raise SampleError(f"messages: {self._reason(problem)}") from None
        left = self._context - tokens.shape[-1]
        if left < 1:
            raise SampleError(
                f"{tokens.shape[-1]} tokens, of which {self.id} has room for {self._context} with "
                "its answer; shorten the prompt"
            )
        config.max_new_tokens = min(body.get("max_tokens", math.inf), self._max_tokens, left)
        prompt: tuple[Any, ...] = (tokens,)
        if vision:
            import openvino

            prompt = text, [openvino.Tensor(one[None, ..., ::-1].copy()) for one in pictures]
        return _Asked(prompt, tokens.shape[-1], config, stops, tell)

    def _prompt(self, body: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the text of a question, and its tokens, (1, n)."""
        text = body.get("prompt")
        if text is None:
            text = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        # A template contains the begin token itself.
        tokens = self._tokenizer.encode(text, add_special_tokens="prompt" in body)
        return text, tokens.input_ids

    def _reason(self, problem: Exception) -> str:
        return native_reason(problem, self.folder.network)

    # The thread

    def _run(self, held: bool) -> None:
        try:
            golden = self._load(held)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the model's
            self._loaded.set_exception(ModelError(f"{self.id}: {self._reason(problem)}"))
            return
        self._loaded.set_result(golden)
        try:
            while self._step():
                pass
        except Exception as problem:  # noqa: BLE001 - it could not be loaded again
            self.close()
            self.problem = self._reason(problem)
            self._fail(self._asked, RequestError(f"{self.id}: {self.problem}"))
        self._pipeline = None

    def _load(self, held: bool = False) -> str | None:
        """Load the model; with *held*, check its golden answers and return how many it has."""
        import openvino

        try:
            import openvino_genai as genai
        except ImportError:
            same = f"'openvino-genai=={openvino.__version__.partition('-')[0]}.*'"
            raise ModelError(
                f"needs openvino-genai (extra text): {sys.executable} -m pip install {same}"
            ) from None

        for name in TOKENIZERS:
            if not self.folder.network.with_name(name).is_file():
                raise ModelError(f"{name} is missing beside it; optimum-cli writes one")
        config = read_json(self.folder.network.with_name("config.json").read_bytes())
        self._context = config.get("text_config", config).get("max_position_embeddings", math.inf)
        network = openvino.Core().read_model(str(self.folder.network))
        shapes = [one.info.data_shape for one in network.get_variables()]
        numbers = sum(shape[1].get_length() * shape[3].get_length() for shape in shapes)
        del network
        for exact in (False, True):
            scheduler = genai.SchedulerConfig()
            block = numbers * BLOCK_TOKENS * (EXACT_BYTES if exact else NUMBER_BYTES)
            scheduler.num_kv_blocks = max(1, (self._kv_cache_mb << 20) // block)
            scheduler.enable_prefix_caching = True
            scheduler.max_num_batched_tokens = 64  # new questions wait until a step ends
            threads = {"INFERENCE_NUM_THREADS": max(1, usable_cpus() // 2)}
            self._pipeline = None  # memory may only have room for one
            self._pipeline = genai.ContinuousBatchingPipeline(
                *(str(self.folder.network.parent), scheduler, "CPU"),
                {**threads, **(EXACT if exact else {})},
            )
            self._tokenizer = self._pipeline.get_tokenizer()
            cases = read_answers(self.folder.golden) if held else []
            if (why := self._differs(cases)) is None:
                if exact:
                    log.warning("%s: gives its golden answers in 32 bits only: slower", self.id)
                return counted(len(cases), "answer") + " as it should be" if held else None
        raise ModelError(f"golden: {why}")

    def _differs(self, cases: Sequence[tuple[dict[str, Any], str]]) -> str | None:
        """Return how the answers differ from the golden ones, or None if they do not."""
        asked = [self._read(json.dumps(body).encode()) for body, _ in cases]
        for each, (body, _) in zip(asked, cases, strict=True):
            each.config.max_new_tokens = body["max_tokens"]
        while left := [each for each in asked if not each.future.done()]:
            self._advance(left)
        for number, (each, (_, wanted)) in enumerate(zip(asked, cases, strict=True)):
            found: Any = each.future.result().findings
            if found.text != wanted:
                return f"case {number}: expected {wanted[:60]!r}, found {found.text[:60]!r}"
        return None

    def _step(self) -> bool:
        """Generate one token for each question; False: no more questions come."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closing.is_set())
            asked = list(self._asked)
        if not asked:
            return False
        try:
            self._advance(asked)
            done = {id(each) for each in asked if each.future.done()}
            canceled = [each for each in asked if each.future.cancelled() and each.handle]
            for each in canceled:
                each.handle.cancel()
            if canceled:
                self._pipeline.step()  # releases their cache
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the model's
            self._give_up(asked, self._reason(problem))
            # The question is still in the pipeline, and would fail with every step.
            self._pipeline = None
            self._load()
            done = {id(each) for each in asked if each.future.done()}
        with self._changed:
            self._asked = [each for each in self._asked if id(each) not in done]
        return True

    def _give_up(self, asked: list[_Asked], why: str) -> None:
        """Fail the question whose schema the library refuses at its first step, else all.

        The others start over, except sampled answers whose callers have part of them already.
        """
        begun = [each for each in asked if each.handle is not None and not each.tokens]
        wrong = [each for each in begun if each.config.structured_output_config is not None]
        self._fail(wrong, SampleError(f"schema: {why}"))
        lost = [each for each in asked if not wrong or (each.told and each.config.do_sample)]
        self._fail(lost, RequestError(f"{self.id}: {why}"))
        for each in asked:
            each.handle, each.tokens = None, []

    def _advance(self, asked: list[_Asked]) -> None:
        for each in asked:
            if each.handle is None and not each.future.cancelled():
                self._number += 1
                try:
                    add = self._pipeline.add_request
                    each.handle = add(self._number, *each.prompt, each.config)
                except RuntimeError as problem:
                    self._fail([each], SampleError(f"{self.id}: {self._reason(problem)}"))
                if each.config.structured_output_config is not None:
                    break  # one new schema per step, so that a failure is known to be its fault
        self._pipeline.step()
        for each in asked:
            self._take(each)

    def _take(self, each: _Asked) -> None:
        """Collect the tokens so far; complete the answer with the last of them."""
        import openvino_genai as genai

        if each.future.done() or each.handle is None:
            return
        before = len(each.tokens)
        while each.handle.can_read():
            for output in each.handle.read().values():
                each.tokens += output.generated_ids
                if output.finish_reason == genai.GenerationFinishReason.LENGTH:
                    each.finish = "length"
        status = each.handle.get_status()
        if status == genai.GenerationStatus.RUNNING:
            if each.tell is not None and len(each.tokens) > before:
                certain = _certain(self._text(each), each.stops)
                if len(certain) > len(each.told):
                    each.tell(self.id, certain[len(each.told) :])
                    each.told = certain
            return
        if status == genai.GenerationStatus.IGNORED:
            most = f"text.kv_cache_mb = {self._kv_cache_mb}"
            self._fail([each], SampleError(f"{self.id}: is longer than {most} has room for"))
            return
        text = self._text(each)
        found = Generated(text, len(each.tokens), each.finish, each.prompt_tokens)
        took = (time.perf_counter() - each.since) * 1e3
        if each.future.set_running_or_notify_cancel():
            each.future.set_result(Outcome(self.id, LABEL, found, Timing(0.0, took, 0.0)))

    def _text(self, each: _Asked) -> str:
        """Return the text so far, cut at a stop text."""
        text: str = self._tokenizer.decode(each.tokens)
        ends = [at for one in each.stops if (at := text.find(one)) >= 0]
        if ends:
            each.finish = "stop"
        return text[: min(ends, default=None)]

    def _fail(self, asked: list[_Asked], problem: AgentError) -> None:
        for each in asked:
            if not each.future.done() and each.future.set_running_or_notify_cancel():
                each.future.set_exception(problem)


def _certain(text: str, stops: list[str]) -> str:
    """Return the part of an answer that is final: without a partial character or stop text."""
    text = text.rstrip("\ufffd")
    held = (n for one in stops for n in range(len(one) - 1, 0, -1) if text.endswith(one[:n]))
    return text[: len(text) - max(held, default=0)]


def _checked(data: bytes) -> Mapping[str, Any]:
    """Parse a question; a `null` counts as left out."""
    try:
        body = read_json(data)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        body = {key: value for key, value in body.items() if value is not None}
    if not isinstance(body, dict) or ("prompt" in body) == ("messages" in body):
        raise SampleError(f"expected {EXPECTED}")
    for key, value in body.items():
        if key not in CHECKS:
            raise SampleError(f"{key}: unknown key; known: {', '.join(CHECKS)}")
        expected, is_so = CHECKS[key]
        if not is_so(value):
            raise SampleError(f"{key}: expected {expected}")
    return body


def _is_text(found: Any) -> bool:
    return isinstance(found, str) and bool(found)


def _is_stop(found: Any) -> bool:
    return _is_text(found) and len(found) <= 200


def _are(found: Any, is_so: Callable[[Any], bool], most: int) -> bool:
    return isinstance(found, list) and 0 < len(found) <= most and all(map(is_so, found))


def _is_message(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == {"role", "content"}
        and all(isinstance(text, str) for text in found.values())
    )


def _is_flat(part: Any, depth: int) -> bool:
    """Whether a schema has no more levels, and its texts, as patterns, few enough repetitions."""
    if isinstance(part, str):
        times = re.findall(r"\{(?:\d+,)?(\d{1,9})", part)  # {n}, {m,n}, {m,}
        return math.prod(map(int, times)) <= 10_000
    inner = [*part, *part.values()] if isinstance(part, dict) else part
    if not isinstance(inner, list):
        return True
    return depth > 0 and all(_is_flat(each, depth - 1) for each in inner)


CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "prompt": ("a text", _is_text),
    "messages": (
        'a list of {"role": "user", "content": "…"}',
        lambda found: _are(found, _is_message, 1000),
    ),
    "max_tokens": (
        "a whole number of 1 or more",
        lambda found: type(found) is int and found > 0,
    ),
    "temperature": (
        "a number from 0 to 2",
        lambda found: type(found) in {int, float} and 0 <= found <= 2,
    ),
    "stop": (
        "a text of up to 200 letters, or up to 16 of them",
        lambda found: _is_stop(found) or _are(found, _is_stop, 16),
    ),
    "schema": (
        f"a JSON schema of up to {SCHEMA_BYTES} bytes, {SCHEMA_DEPTH} levels and 10000 repetitions",
        lambda found: (
            isinstance(found, dict)
            and len(json.dumps(found)) <= SCHEMA_BYTES
            and _is_flat(found, SCHEMA_DEPTH)
        ),
    ),
}


def try_out(folder: ModelFolder, *, golden: bool = True) -> tuple[float, str | None]:
    """Load a model and have it generate an answer.

    Returns:
        How long that took, in milliseconds, and how its golden answers agree, if that was asked.

    Raises:
        AgentError: it cannot.
    """
    generator = Generator(folder, golden=golden)
    start = time.perf_counter()
    try:
        generator.submit(b'{"prompt": "Hello"}').result()
    finally:
        generator.close()
        generator.join(UNLOAD_SECONDS)
    return (time.perf_counter() - start) * 1e3, generator.golden
