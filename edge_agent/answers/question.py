"""Parses questions to models from bytes: a picture, readings, or raw inputs of the network."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..core.errors import ModelError, SampleError
from ..core.frozen import record
from ..core.json_text import read_json
from ..core.text import counted
from ..core.types import Array, Kind, Reading, Tensors, TensorSpec
from ..inference.engines.generator import PICTURE_TAG
from ..inference.model import Model
from ..inference.preprocess.placement import PreparedSample
from ..inference.preprocess.windowing import Windower, rate_trouble
from ..models.manifest import InputSpec
from ..sources.opencv import HEAD_BYTES, MAX_PIXELS, decode, refusal
from .numbers_json import read_large, to_numbers

PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
"""First bytes of a JPEG and a PNG: no other decoder gets untrusted bytes."""
EXPECTED = 'a JPEG, a PNG, or JSON: {"tensors": {name: lists}} or {"readings": [[…], …]}'
DATA = '{"url": "data:image/jpeg;base64,…"}'
ROWS = "readings: expected rows of equally many numbers, [[…], …]"
MOST_PICTURES = 4
_PIECE = 4096
"""Rows that are resampled at a time, which bounds its memory."""
MOST_TEXTS = 256
"""Most texts in a question."""


@record(quick=True, eq=False)
class Question:
    """A question in the form that the lanes take."""

    data: Array
    """A picture or a window, like the data of a `core.types.Sample`; with *tensors* one of them."""
    tensors: Tensors | None = None
    """Inputs of the network by name."""
    raw: bool = False
    """Whether the network's raw outputs are wanted."""
    warnings: tuple[str, ...] = ()
    """Parts of the question that were not used."""
    more: tuple[Array, ...] = ()
    """More texts, or the pictures that a text is about."""
    rows: int = 1
    """Number of samples in the tensors, for a network that takes one at a time."""
    early: PreparedSample | None = None
    """The picture as the model takes it, prepared while it is in the processor's cache, not by a
    lane: 0.3 ms less for 1024x717 pixels."""
    cut: InputSpec | None = None
    """For a window: how it was cut from the readings."""

    def parts(self) -> list[tuple[Array, Tensors | None]]:
        """Return its samples, each in the form that the lanes take."""
        if self.rows == 1 or self.tensors is None:
            return [(data, self.tensors) for data in (self.data, *self.more)]
        rows = (
            {name: array[row : row + 1].copy() for name, array in self.tensors.items()}
            for row in range(self.rows)
        )
        return [(self.data, row) for row in rows]


def read_question(payload: bytes, model: Model, kind: Kind) -> Question:
    """Parse a payload for a model that is loaded for samples of a kind."""
    if payload.startswith(PICTURES) and kind != "generate":
        if kind != "picture":
            takes = '{"texts": […]}' if kind == "text" else '{"readings": [[…], …]}'
            raise SampleError(f"{model.id} takes {takes}, not pictures")
        return Question(decode(np.frombuffer(payload, np.uint8)))
    try:
        body = read_json(payload) if kind == "generate" else read_large(payload)
    except (ValueError, RecursionError):
        body = None
    if kind == "text":
        return _texts(body)
    if kind == "generate":
        return _in_words(payload, body)
    if not isinstance(body, dict) or ("tensors" in body) == ("readings" in body):
        raise SampleError(f"expected {EXPECTED}{_instead(payload)}")
    if "tensors" in body:
        tensors = _tensors(body["tensors"], model.engine.inputs)
        return Question(next(iter(tensors.values())), tensors)
    if kind == "picture":
        raise SampleError(f"{model.id} takes a JPEG or a PNG, not readings")
    spec = model.manifest.input
    return _window(body["readings"], body.get("columns", ()), body.get("rate_hz"), spec)


def _instead(payload: bytes) -> str:
    """Return what came instead of a question, if known, preceded by a semicolon."""
    why = refusal(payload[:HEAD_BYTES]) if payload else "nothing came"
    if payload.startswith(b"--") and b"form-data" in payload[:1024]:
        why = "a form came; send the file itself as the body, as `curl -T FILE` does"
    return f"; {why}" if why else ""


def _in_words(payload: bytes, body: Any) -> Question:
    """Extract the pictures from chat messages, leaving tags in their places in the text."""
    messages = body.get("messages") if isinstance(body, dict) else None
    pictures: list[Array] = []
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            message["content"] = "".join(_part(each, pictures) for each in message["content"])
    payload = json.dumps(body).encode() if isinstance(messages, list) else payload
    return Question(np.frombuffer(payload, np.uint8), more=tuple(pictures))


def _part(part: Any, pictures: list[Array]) -> str:
    given = part if isinstance(part, dict) else {}
    text, url = given.get("text"), given.get("image_url")
    if given.get("type") == "text" and isinstance(text, str):
        return text
    url = url.get("url") if isinstance(url, dict) else None
    if given.get("type") != "image_url" or not isinstance(url, str):
        raise SampleError(f"messages: content: expected parts of type text or image_url: {DATA}")
    head, _, data = url.partition(";base64,")
    try:
        raw = b64decode(data, validate=True)
    except ValueError:
        raw = b""
    if not head.startswith("data:image/") or not raw.startswith(PICTURES):
        raise SampleError(f"image_url: nothing is fetched: expected a JPEG or PNG as {DATA}")
    if len(pictures) == MOST_PICTURES:
        raise SampleError(f"image_url: expected at most {MOST_PICTURES} pictures")
    pictures.append(decode(np.frombuffer(raw, np.uint8)))
    if sum(one.nbytes for one in pictures) > 3 * MAX_PIXELS:
        raise SampleError(
            f"image_url: expected pictures of at most {MAX_PIXELS // 2**20} megapixels together"
        )
    return PICTURE_TAG.format(len(pictures) - 1)


def _texts(body: Any) -> Question:
    texts = body.get("texts") if isinstance(body, dict) else None
    whole = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not whole or not texts or len(texts) > MOST_TEXTS:
        raise SampleError(f'expected {{"texts": […]}} with 1 to {MOST_TEXTS} of them')
    first, *more = (np.frombuffer(text.encode(), np.uint8) for text in texts)
    return Question(first, more=tuple(more))


def _tensors(given: Any, inputs: tuple[TensorSpec, ...]) -> dict[str, Array]:
    listed = ", ".join(map(str, inputs))
    if not isinstance(given, Mapping) or not given:
        raise SampleError(f"tensors: expected them by name; the inputs: {listed}")
    known = {spec.name: spec for spec in inputs}
    for name in given:
        if name not in known:
            raise SampleError(f"tensors: there is no input {name!r}; the inputs: {listed}")
    return {name: to_array(value, known[name]) for name, value in given.items()}


def to_array(value: Any, spec: TensorSpec, shape: tuple[int, ...] | None = None) -> Array:
    """Convert numbers from JSON to an array for an input; a batch axis of one may be left out.

    Args:
        value: nested lists.
        spec: the input.
        shape: the shape stated by the sender, for lists that may be flat; None: the lists' own.
    """
    found, wanted = to_numbers(value), np.dtype(spec.dtype)
    if found is None or found.dtype.kind not in ("b" if wanted.kind == "b" else "iuf"):
        raise SampleError(f"input {spec}: expected numbers in lists of equal lengths")
    with np.errstate(all="ignore"):
        made = found.astype(wanted)
    exact = wanted.kind == "f" or np.array_equal(made, found)
    if not exact or (wanted.kind == "f" and not np.isfinite(made).all()):
        raise SampleError(f"input {spec}: holds a number that {spec.dtype} has not")
    if shape is not None:
        if made.size != prod(shape):
            raise SampleError(f"input {spec}: {made.size} numbers are not of shape {list(shape)}")
        made = made.reshape(shape)
    elif made.shape == spec.shape[1:] and spec.shape[0] == 1:
        made = made[None]
    return np.ascontiguousarray(made)


def _at_own_rate(rows: Array, rate: Any, spec: InputSpec) -> Array:
    """Bring rows (n, channels) that come with their rate to the model's own."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e9:
        raise SampleError("rate_hz: expected how many samples a second the readings are")
    own = spec.resample_hz
    if rate == own or rows.ndim != 2:
        return rows
    if not own:
        if why := rate_trouble(spec, rate):
            raise SampleError(f"readings: come at {why} in its manifest, or convert them first")
        return rows
    from ..inference.preprocess.resampling import Resampler

    resampler = Resampler(own, float(rate))
    starts = range(0, len(rows), _PIECE)
    made = [resampler.push(rows[start : start + _PIECE], None)[0] for start in starts]
    last = resampler.finish()
    return np.concatenate(made if last is None else [*made, last])


def _window(given: Any, columns: Any, rate: Any, spec: InputSpec) -> Question:
    """Return the last window that a pipeline would cut from these rows."""
    named = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    if columns != () and not named:
        raise SampleError("columns: expected the channels' names")
    rows = to_numbers(given)
    if rows is None or rows.dtype.kind == "b":
        raise SampleError(ROWS)
    if rows.ndim == 1:  # one channel, or a single row
        several = (spec.window or 1) > 1 and len(spec.channels) <= 1
        rows = rows[:, None] if several else rows[None]
    if rows.ndim < 2 or not rows.size:
        raise SampleError(ROWS)
    if columns and len(columns) != rows.shape[1]:
        raise SampleError(f"columns: {len(columns)} names for rows of {rows.shape[1]} values")
    if not columns and rows.shape[1] == len(spec.channels):
        columns = [name for name in spec.channels if isinstance(name, str)]  # in this order
    if rate is not None:
        rows = _at_own_rate(rows, rate, spec)
    needed = 1 if spec.window is None else (spec.window - 1) * spec.every + 1
    if len(rows) < needed or (needed == 1 and len(rows) > 1):
        mend = "; ask many as tensors, see /v2/models/<model>/infer" if needed == 1 else ""
        raise SampleError(f"readings: expected {counted(needed, 'row')}, found {len(rows)}{mend}")
    warnings: tuple[str, ...] = ()
    if len(rows) > needed:
        warnings = (f"readings: of {len(rows)} rows the last {needed} were used",)
    with np.errstate(over="ignore"):
        last = rows[-needed:].astype(np.float32)
    # They are at the model's own rate, with no gap before them.
    plain = replace(spec, lead=0, resample_hz=0.0)
    reading = Reading(last, time.time_ns(), time.monotonic(), columns=tuple(columns))
    try:
        windows = Windower(plain, tuple(columns)).push(reading)
    except ModelError as problem:
        raise SampleError(f"readings: {problem}") from None
    return Question(windows[-1].data, warnings=warnings, cut=spec)
