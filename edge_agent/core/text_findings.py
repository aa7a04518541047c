"""What is found in texts, and said about them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from .frozen import record
from .types import Findings, Tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@record(quick=True, eq=False)
class Embeddings(Findings):
    """What texts are like, each as a direction: similar ones have a product near 1."""

    vectors: NDArray[np.float32]
    """(n, width), each of length 1."""
    tokens: int = 0
    """Of all texts, as the network took them."""

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        return {"embeddings": [[round(x, 7) for x in one] for one in self.vectors.tolist()]}

    def words(self) -> list[str]:
        return ["{} of {} numbers".format(*self.vectors.shape)]

    def numbers(self) -> Tensors:
        return {"embeddings": self.vectors}

    @property
    def finite(self) -> bool:
        return all(map(isfinite, self.vectors.ravel().tolist()))


@record(quick=True)
class Generated(Findings):
    """What a language model has said."""

    text: str
    tokens: int
    """Of the text."""
    finish: str
    """"stop", or "length" where it was cut off."""
    prompt_tokens: int
    """Of what was asked."""

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        return {"text": self.text, "tokens": self.tokens, "finish_reason": self.finish}

    def words(self) -> list[str]:
        return [self.text]
