"""Networks of texts, and the files that sentence-transformers keeps beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .facts import Draft, NetworkFacts, takes_texts
from .huggingface import read_beside

TOKENIZER = "tokenizer.json"
_VECTORS = {"sentence_embedding", "last_hidden_state", "token_embeddings"}
_DONE = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that are inside the network, or done after it."""


def draft_of_texts(network: Path, facts: NetworkFacts) -> Draft | None:
    """Draft a network that takes texts; None: it takes none.

    Raises:
        ModelError: a file beside it is too large or not JSON.
    """
    if not takes_texts(facts):
        return None
    made = [one for one in facts.outputs if one.name in _VECTORS]
    if not made:
        names = ", ".join(map(str, facts.outputs))
        how = (
            "task: only embedding takes texts; export the network without a head, for "
            f"feature-extraction: its outputs are {names}"
        )
        return Draft("a network of texts", {"task": "embedding"}, questions=(how,))
    keys: dict[str, Any] = {"task": "embedding", "input": {"tokenizer": TOKENIZER}}
    assumed, questions = [f"task: embedding, by the output {made[0].name}"], []
    if not network.with_name(TOKENIZER).is_file():
        questions.append(f"input.tokenizer: put its {TOKENIZER} beside it")
    length = (read_beside(network.with_name("sentence_bert_config.json")) or {}).get(
        "max_seq_length"
    )
    if isinstance(length, int) and length > 0:
        keys["input"]["max_tokens"] = length
        assumed.append("max_tokens: max_seq_length of its sentence_bert_config.json")
    elif all(one.shape[1:] == (None,) for one in facts.inputs):
        questions.append(
            "input.max_tokens: texts are cut off there; max_seq_length in its "
            "sentence_bert_config.json"
        )
    if not any(len(one.shape) == 2 for one in made):
        pooling = read_beside(network.parent / "1_Pooling" / "config.json") or {}
        ways = [name for name, on in pooling.items() if name.startswith("pooling_mode") and on]
        mode = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
        if [*map(mode.get, ways)] in (["mean"], ["cls"]):
            keys["output"] = {"pooling": mode[ways[0]]}
            assumed.append("pooling: as its 1_Pooling/config.json has it")
        else:
            questions.append("output.pooling: mean or cls, as its 1_Pooling/config.json says")
        questions += _further(network.with_name("modules.json"))
    return Draft("a network of texts", keys, tuple(assumed), tuple(questions))


def _further(path: Path) -> list[str]:
    """Return a question for modules after the network that nothing here computes."""
    modules = read_beside(path, list) or []
    kinds = [str(one.get("type")).rpartition(".")[2] for one in modules if isinstance(one, dict)]
    left = ", ".join(kind for kind in kinds if kind not in _DONE)
    if not left:
        return []
    return [f"export: its modules.json has {left} after the network; export them with it"]
