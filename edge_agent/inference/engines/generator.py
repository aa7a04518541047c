"""Models of task generate: OpenVINO GenAI's continuous batching, stepped by one thread of ours.

All questions go through the network together, one token each at a time; a question that the paged
cache has no room for waits or starts over, and is not lost. A long prompt gives way to short ones.
The library lets no other thread of Python run while it loads or steps, so the agent runs this in a
child (`generator_process`).
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .generator_question import checked

log = logging.getLogger(__name__)

LABEL = "openvino:CPU"
STEP_TOKENS = 64
"""Most tokens of a step: new questions wait until it ends."""
BLOCK_TOKENS = 32
"""Tokens in a block of the cache on a CPU."""
NUMBER_BYTES = 2
"""Most bytes per number in the cache: eight bits, or sixteen on devices without these."""
FILES = ("config.json", "openvino_tokenizer.xml", "openvino_detokenizer.xml")
"""Files beside the network, as `optimum-cli export openvino` writes them."""
VISION = "openvino_vision_embeddings_model.xml"
PICTURE_TAG = "<ov_genai_image_{}>"
"""The library's tag for a picture in the text of a question, by the picture's number."""
UNLOAD_SECONDS = 5.0
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""Options for a model that gives its golden answers only with them."""
EXACT_BYTES = 4
Tell = Callable[[str, str], None]
"""Receives the model and each piece of its answer, in the thread that steps it."""


def takes_pictures(folder: ModelFolder) -> bool:
    """Whether it is a vision-language model."""
    return folder.network.with_name(VISION).is_file()


PIECE_TOKENS, MOST_PIECE = 2 * STEP_TOKENS, 16 * STEP_TOKENS
"""Of a long prompt."""


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
    computed: int = 0
    """Number of tokens of its prompt that were computed in pieces."""
    size: int = PIECE_TOKENS
    """Number of tokens of the next piece."""
    turn: int = 0
    """Number of the last piece."""
    tokens: list[int] = field(default_factory=list)
    told: str = ""
    """The part of the text that `tell` has received."""
    finish: str = "stop"

    @property
    def is_over(self) -> bool:
        """Whether it is answered, or is canceled and may be let go.

        Not in the midst of its prompt: the library would take a block that is computed in part for
        a whole one, and the same question, asked again, would get a wrong answer.
        """
        if self.handle is None or self.tokens or not self.future.cancelled():
            return self.future.done()
        return not _runs(self.handle)

    @property
    def is_long(self) -> bool:
        """Whether more of its prompt is to be computed in pieces first."""
        left = self.prompt_tokens - self.computed
        return self.handle is None and len(self.prompt) == 1 and left > PIECE_TOKENS


def _runs(handle: Any) -> bool:
    import openvino_genai as genai

    return bool(handle.get_status() == genai.GenerationStatus.RUNNING)


class _Pieces:
    """Computes long prompts piece by piece, so that short questions come in between.

    A piece is a question whose answer is not read: the cache keeps what it computes.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        """Number of tokens that the cache has room for."""
        self._asked: _Asked
        self._handle: Any = None
        self._end = self._steps = 0
        self._waits = False

    def begin(self, asked: list[_Asked], pipeline: Any, numbers: Iterator[int]) -> None:
        """Add the next piece, of another prompt each time, unless one is in the pipeline.

        Prompts that the cache has no room for together wait in line, lest they push each other out.
        """
        import openvino
        import openvino_genai as genai

        if self._handle is not None:
            return
        new = any(each.handle is not None and not each.tokens for each in asked)
        self._waits = new and not self._waits  # a step for them alone is short
        if self._waits:
            return
        room, turns = self.room, list[_Asked]()
        for each in asked:
            if not each.future.done() and (each.prompt_tokens <= room or not turns):
                room -= each.prompt_tokens + len(each.tokens)
                turns += [each] if each.is_long else []
        if not turns:
            return
        each = self._asked = min(turns, key=lambda each: each.turn)
        each.turn = next(numbers)
        # Whole blocks: of a block, the library keeps the key of all of its tokens.
        most = (each.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        self._end, self._steps = min(each.computed + each.size, most), 0
        tokens = openvino.Tensor(each.prompt[0].data[:, : self._end].copy())
        config = genai.GenerationConfig(max_new_tokens=1, rng_seed=secrets.randbits(32))
        self._handle = pipeline.add_request(each.turn, tokens, config)

    def end(self) -> None:
        """Note after a step what is computed."""
        self._steps += 1
        if self._handle is not None and not _runs(self._handle):
            each, self._handle = self._asked, None
            each.computed = self._end
            # One that took a single step was in the cache already, and so may the next ones be.
            each.size = min(each.size * 2, MOST_PIECE) if self._steps == 1 else PIECE_TOKENS


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
        self._numbers = itertools.count(1)
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

        body = checked(data)
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
        most = min(self._context, self._pieces.room)
        left = most - tokens.shape[-1]
        if left < 1:
            more = ", or raise text.kv_cache_mb" if self._pieces.room < self._context else ""
            raise SampleError(
                f"{tokens.shape[-1]} tokens, of which {self.id} has room for {most} with its "
                f"answer; shorten the prompt{more}"
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

        for name in FILES:
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
            self._pieces = _Pieces(scheduler.num_kv_blocks * BLOCK_TOKENS)
            scheduler.enable_prefix_caching = True
            scheduler.max_num_batched_tokens = STEP_TOKENS
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
                expected, got = _parting(wanted, found.text)
                return f"case {number}: expected {expected!r}, found {got!r}"
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
            over = [each for each in asked if each.is_over]
            canceled = [each for each in over if each.future.cancelled() and each.handle]
            for each in canceled:
                each.handle.cancel()
            if canceled:
                self._pipeline.step()  # releases their cache
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the model's
            self._give_up(asked, self._reason(problem))
            # The question is still in the pipeline, and would fail with every step.
            self._pipeline = None
            self._load(self.golden is not None)
            over = [each for each in asked if each.future.done()]
        with self._changed:
            self._asked = [each for each in self._asked if each not in over]
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
            each.handle, each.tokens, each.computed = None, [], 0

    def _advance(self, asked: list[_Asked]) -> None:
        for each in asked:
            if each.handle is None and not each.is_long and not each.future.done():
                each.config.rng_seed = secrets.randbits(32)  # of all answers from here on
                try:
                    add = self._pipeline.add_request
                    each.handle = add(next(self._numbers), *each.prompt, each.config)
                except RuntimeError as problem:
                    self._fail([each], SampleError(f"{self.id}: {self._reason(problem)}"))
                if each.config.structured_output_config is not None:
                    break  # one new schema per step, so that a failure is known to be its fault
        self._pieces.begin(asked, self._pipeline, self._numbers)
        self._pipeline.step()
        self._pieces.end()
        for each in asked:
            self._take(each)

    def _take(self, each: _Asked) -> None:
        """Collect the tokens so far; complete the answer with the last of them."""
        import openvino_genai as genai

        if each.handle is None or (each.future.done() and not each.future.cancelled()):
            return
        before = len(each.tokens)
        while each.handle.can_read():
            for output in each.handle.read().values():
                each.tokens += output.generated_ids
                if output.finish_reason == genai.GenerationFinishReason.LENGTH:
                    each.finish = "length"
        status = each.handle.get_status()
        if status == genai.GenerationStatus.RUNNING:
            new = len(each.tokens) > before
            if each.tell is not None and new and not each.future.cancelled():
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


def _parting(*texts: str) -> list[str]:
    """Return the part of each text where they begin to differ."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    start = max(0, len(list(same)) - 20)
    return ["…" * (start > 0) + text[start : start + 60] for text in texts]


def _certain(text: str, stops: list[str]) -> str:
    """Return the part of an answer that is final: without a partial character or stop text."""
    text = text.rstrip("\ufffd")
    held = (n for one in stops for n in range(len(one) - 1, 0, -1) if text.endswith(one[:n]))
    return text[: len(text) - max(held, default=0)]


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
