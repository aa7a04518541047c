"""Embeddings of texts: as sentence-transformers computes them, and what no text is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import AgentError, ModelError, SampleError
from edge_agent.core.text_findings import Embeddings
from edge_agent.core.types import Kind, Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.manifest import load

pytest.importorskip("tokenizers")

from tests.helpers.text_models import embedder, expected

TEXTS = (
    "The pump vibrates.",
    "a forklift passes through the gate",
    "A VEHICLE passes through the entrance . . .",
    "  unheard-of  ",
    "",
    "word1 " * 100,
)


def opened(folder: Path, engine: str = "onnxruntime", kind: Kind = "text") -> Model:
    """Load a model on an engine."""
    return load_model(load(folder), [EngineChoice(engine)], kind)


def ask(model: Model, text: str | bytes) -> Any:
    """Give what a model finds in a text."""
    data = text if isinstance(text, bytes) else text.encode()
    sample = Sample(np.frombuffer(data, np.uint8), 0, time.time_ns(), 0.0, picture=False)
    return model.infer(sample).findings


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, engine: str, pooling: str
) -> None:
    """Padding, case, spaces and what is cut off change nothing: cosine 0.9999 and better."""
    folder = embedder(tmp_path / "texts", output={"pooling": pooling})
    model = opened(folder, engine)
    for text in TEXTS:
        found = ask(model, text)
        assert isinstance(found, Embeddings)
        (vector,) = found.vectors
        assert float(vector @ expected(folder, text, pooling)) > 0.9999, text
        assert np.linalg.norm(vector) == pytest.approx(1)
        (said,) = json.loads(json.dumps(found.as_json()))["embeddings"]
        assert said == pytest.approx(vector.tolist(), abs=1e-6)
    model.close()


@pytest.mark.parametrize(
    ("text", "words"), [(b"\xff\xfe", "not UTF-8"), ("a" * 100_001, "at most 100000 characters")]
)
def test_what_is_no_text_is_refused(tmp_path: Path, text: Any, words: str) -> None:
    """One line, and the model serves on."""
    model = opened(embedder(tmp_path / "texts"))
    with pytest.raises(SampleError, match=words):
        ask(model, text)
    assert ask(model, "a pump").finite
    model.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("max_tokens = 24\n", ""), "input.max_tokens: missing"),
        (('"tokenizer.json"', '"../tokenizer.json"'), "inside the model folder"),
        (('"tokenizer.json"', '"other.json"'), "is missing from"),
        (('tokenizer = "tokenizer.json"', "width = 3"), "the model takes no texts"),
        (('"embedding"', '"classification"'), "output.decoder: is missing"),
        (('"embedding"', '"raw"'), "input.tokenizer: is for task embedding, found raw"),
        (("max_tokens = 24", "window = 24"), "is for texts"),
    ],
)
def test_manifests_that_cannot_be_are_refused(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    """Each with its key and the mend."""
    folder = embedder(tmp_path / "texts")
    manifest = folder / "model.toml"
    before = manifest.read_text()
    assert change[0] in before
    manifest.write_text(before.replace(*change))
    with pytest.raises(AgentError, match=words):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 9, b'{"model": {"type": "BPE"}}'])
def test_a_tokenizer_that_is_none_costs_its_model_alone(tmp_path: Path, content: bytes) -> None:
    """Whatever the library makes of it."""
    folder = embedder(tmp_path / "texts")
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: is no tokenizer"):
        opened(folder)


def test_a_model_of_texts_takes_no_pictures(tmp_path: Path) -> None:
    """A camera's pipeline that names it says so."""
    with pytest.raises(ModelError, match="takes texts, and is given a picture"):
        opened(embedder(tmp_path / "texts"), kind="picture")
