"""How an engine is called: by its label in payloads, in fewer letters in words for people."""

from __future__ import annotations

import re


def engine_words(text: str) -> str:
    """Write each label of an engine in a text as a reader knows it: "onnxruntime:CPU"."""
    return re.sub(r"\b(onnxruntime:\w+?)ExecutionProvider\b", r"\1", text)
