"""From texts to tokens, with the tokenizer that belongs to a network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...core.containment import words
from ...core.errors import AgentError, ModelError, SampleError
from ...core.types import Array, TensorSpec
from ...models.files.facts import IDS, MASK, TYPES

MOST_BYTES = 64 * 2**20
"""Limit for a tokenizer's file."""
MOST_CHARACTERS = 100_000
"""Limit for a text, before it is truncated."""


class TextPreprocessor:
    """Makes the network's inputs from a text. Thread-safe."""

    size = None

    def __init__(self, file: Path, inputs: tuple[TensorSpec, ...]) -> None:
        """Load the tokenizer.

        Raises:
            ModelError: it cannot be loaded, or the network takes other inputs than tokens.
        """
        names = [one.name for one in inputs]
        if IDS not in names or not {*names} <= {IDS, MASK, TYPES}:
            listed = ", ".join(map(str, inputs))
            raise ModelError(f"expected the inputs {IDS}, {MASK} and {TYPES}, found {listed}")
        shapes = {one.shape for one in inputs}
        (shape, *more) = shapes
        if (
            more
            or len(shape) != 2
            or shape[0] != 1
            or any("int" not in one.dtype for one in inputs)
        ):
            listed = ", ".join(map(str, inputs))
            raise ModelError(f"expected whole numbers of one shape [1, tokens], found {listed}")
        self._dtypes = {one.name: np.dtype(one.dtype) for one in inputs}
        self._tokenizer = _load(file, int(shape[1] or 1))

    def __call__(
        self,
        data: Array,
        *,
        stream: bool = False,
    ) -> tuple[dict[str, Array], None]:
        """Make tokens from one text.

        Args:
            data: (n,) uint8, UTF-8.
            stream: only matters for pictures.
        """
        del stream
        try:
            text = data.tobytes().decode().strip()
        except UnicodeDecodeError:
            raise SampleError("text: is not UTF-8") from None
        if len(text) > MOST_CHARACTERS:
            raise SampleError(f"text: expected at most {MOST_CHARACTERS} characters")
        with _contained("text: cannot be made tokens", SampleError):
            found = self._tokenizer.encode(text)
        columns = {IDS: found.ids, MASK: found.attention_mask, TYPES: found.type_ids}
        return {name: np.array([columns[name]], kind) for name, kind in self._dtypes.items()}, None


def _load(file: Path, length: int) -> Any:
    """Load a tokenizer that gives *length* tokens for any text."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ModelError(
            "input.tokenizer: needs the library tokenizers (extra text): "
            f"{sys.executable} -m pip install 'tokenizers>=0.22'"
        ) from None
    if file.stat().st_size > MOST_BYTES:
        raise ModelError(f"{file}: expected at most {MOST_BYTES >> 20} MiB")
    with _contained(f"{file}: is no tokenizer", ModelError):
        made = Tokenizer.from_file(str(file))
        padding = made.padding or {}
        token = padding.get("pad_token") or next(
            (each for each in ("[PAD]", "<pad>") if made.token_to_id(each) is not None), "[PAD]"
        )
        number = padding.get("pad_id", made.token_to_id(token) or 0)
        made.enable_padding(length=length, pad_id=number, pad_token=token)
        made.enable_truncation(max_length=length)
    return made


@contextmanager
def _contained(where: str, error: type[AgentError]) -> Iterator[None]:
    """Raise any failure of the library as *error*; a Rust panic is not an `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - any failure is the tokenizer's
        said = words(problem) if isinstance(problem, Exception) else "it has panicked"
        raise error(f"{where}: {said}") from None
