"""A small network for texts as Hugging Face's exporters leave one, and what it gives, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.small_models import write_manifest
from tests.helpers.tiny_networks import node, save_onnx

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "pump", "vibrates", "machine", "gate"),
    *("vehicle", "passes", "through", "entrance", "fork", "##lift", "."),
    *(f"word{number}" for number in range(300)),
]
WIDTH = 16


def tokenizer(path: Path) -> Any:
    """Save a tokenizer as BERT's, without padding; gives it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = BertNormalizer(lowercase=True)
    made.pre_tokenizer = BertPreTokenizer()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(path))
    return made


def weights() -> dict[str, NDArray[np.float32]]:
    """Make the weights: embeddings of words and types, and of one layer of attention."""
    random = np.random.default_rng(3)
    shapes = {"words": (len(WORDS), WIDTH), "types": (2, WIDTH)}
    shapes |= dict.fromkeys(("query", "key", "value"), (WIDTH, WIDTH))
    return {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def embedder(folder: Path, version: str = "1", **more: Any) -> Path:
    """Make a model of task embedding whose tokens heed each other, but none that is padding."""
    folder.mkdir(parents=True)
    tokenizer(folder / "tokenizer.json")
    open_ended = ("batch", "tokens")
    save_onnx(
        folder / "model.onnx",
        [
            node("Gather", ["words", "input_ids"], ["of_words"]),
            node("Gather", ["types", "token_type_ids"], ["of_types"]),
            node("Add", ["of_words", "of_types"], ["x"]),
            *(node("MatMul", ["x", name], [name[0]]) for name in ("query", "key", "value")),
            node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
            node("MatMul", ["q", "kt"], ["scores"]),
            node("Cast", ["attention_mask"], ["mask"], to=1),
            node("Sub", ["mask", "one"], ["absent"]),
            node("Mul", ["absent", "much"], ["hidden"]),
            node("Unsqueeze", ["hidden", "axis"], ["wide"]),
            node("Add", ["scores", "wide"], ["masked"]),
            node("Softmax", ["masked"], ["heed"], axis=-1),
            node("MatMul", ["heed", "v"], ["last_hidden_state"]),
        ],
        [(name, "int64", open_ended) for name in ("input_ids", "attention_mask", "token_type_ids")],
        [("last_hidden_state", "float32", (*open_ended, WIDTH))],
        {
            **weights(),
            "one": np.array(1, np.float32),
            "much": np.array(1e9, np.float32),
            "axis": np.array([1], np.int64),
        },
    )
    entries = {"tokenizer": "tokenizer.json", "max_tokens": 24}
    return write_manifest(folder, version, "embedding", input=entries, **more)


def expected(folder: Path, text: str, pooling: str = "mean") -> NDArray[np.float64]:
    """Give the vector of a text by sentence-transformers' arithmetic, with no padding at all.

    Its tokens, cut off at the model's length; the mean of their vectors, or the first; length 1.
    """
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.enable_truncation(24)
    parts = {name: array.astype(np.float64) for name, array in weights().items()}
    x = parts["words"][made.encode(text.strip()).ids] + parts["types"][0]
    scores = (x @ parts["query"]) @ (x @ parts["key"]).T
    heed = np.exp(scores - scores.max(axis=-1, keepdims=True))
    heed /= heed.sum(axis=-1, keepdims=True)
    found = heed @ (x @ parts["value"])
    vector = found.mean(axis=0) if pooling == "mean" else found[0]
    vector /= np.linalg.norm(vector)
    return np.asarray(vector)
