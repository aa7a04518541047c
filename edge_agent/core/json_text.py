"""JSON of strangers: of messages, commands and variables."""

from __future__ import annotations

import json
from typing import Any

from .text import half_letter


class HalfLetterError(ValueError):
    """Well-formed JSON with a text that nothing can encode: a lone surrogate."""

    def __init__(self, half: str, content: Any) -> None:
        """Name the half letter.

        Args:
            half: of a letter, as it was found.
            content: what the JSON holds all the same: an `id` to answer to, say.

        """
        super().__init__(
            f"holds half of a letter, {ascii(half)[1:-1]}; send whole letters, as UTF-8 or both "
            "escapes of a pair"
        )
        self.content = content


def read_json(text: bytes | str) -> Any:
    """Parse JSON, and refuse what could not be written again.

    Raises:
        HalfLetterError: a text or key in it holds half of a letter.
        ValueError: it is not JSON.
        RecursionError: it is too deep.

    """
    content = json.loads(text)
    # Without an escape, only bytes beyond ASCII can hold one: messages that are read many times a
    # second are not searched.
    escaped = "\\" in text if isinstance(text, str) else b"\\" in text
    if escaped or not text.isascii():
        half = half_letter(json.dumps(content, ensure_ascii=False))
        if half is not None:
            raise HalfLetterError(half, content)
    return content
