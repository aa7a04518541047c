"""A tiny language model of random weights, in a folder as optimum-cli leaves one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, PLACES = 32, 2, 2, 4096
WORDS = ("hello", "pump", "gate", "the")
END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def language_model(
    folder: Path, version: str = "1", seed: int = 1, width: int = WIDTH, *, sees: bool = False
) -> Path:
    """Make the folder; the cache takes 256 bytes of each token for 32 of *width*."""
    folder.mkdir(parents=True)
    end = _tokenizer(folder, (*WORDS, "<image>") if sees else WORDS)
    _network(folder, end + 1, np.random.default_rng(seed), width, sees)
    length = {"max_position_embeddings": PLACES}
    numbers = {"bos_token_id": 0, "eos_token_id": end, "pad_token_id": 0}
    files: dict[str, dict[str, Any]] = {
        "config": {
            "model_type": "llava" if sees else "llama",
            "hidden_size": width,
            "vocab_size": end + 1,
            **length,
            **numbers,
        },
        "generation_config": numbers,
        "tokenizer_config": {"eos_token": END, "chat_template": TEMPLATE},
    }
    if sees:
        mean = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        cut = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
        files["preprocessor_config"] = {**cut, **mean, "patch_size": 8}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "model.toml").write_text(
        f'name = "{folder.name}"\nversion = "{version}"\ntask = "generate"\n'
        f'file = "openvino_{"language_" if sees else ""}model.xml"\n'
    )
    return folder


def _tokenizer(folder: Path, known: tuple[str, ...]) -> int:
    """Save a tokenizer of bytes and a few words; gives the number of the end."""
    import openvino as ov
    from openvino import opset13 as op
    from openvino_tokenizers.build_tokenizer import build_rwkv_tokenizer

    words = [*(f"b'\\x{byte:02x}'" for byte in range(256)), *map(repr, known), repr(END)]
    sizes = [*[1] * 256, *map(len, known), len(END)]
    lines = [
        f"{n} {word} {size}" for n, (word, size) in enumerate(zip(words, sizes, strict=True), 1)
    ]
    tokens, text = build_rwkv_tokenizer(lines)
    ids = tokens.outputs[0].get_node().input_value(0)
    mask = op.convert(op.not_equal(ids, op.constant(np.int64(0))), "i64")
    mask.output(0).set_names({"attention_mask"})
    both = [tokens.get_results()[0], op.result(mask)]
    tokens = ov.Model(both, tokens.get_parameters(), "tokenizer")
    for model, name in ((tokens, "tokenizer"), (text, "detokenizer")):
        for key, number in (("bos", 0), ("eos", len(lines)), ("pad", 0)):
            model.set_rt_info(number, f"{key}_token_id")
        ov.save_model(model, folder / f"openvino_{name}.xml")
    return len(lines)


def _constant(value: Any, kind: Any = np.int64) -> Any:
    from openvino import opset13 as op

    return op.constant(np.asarray(value, kind))


def _hidden(mask: Any, places: Any) -> Any:
    """Give what is added to attention, by which later and absent tokens are hidden."""
    from openvino import opset13 as op

    def wide(x: Any, *axes: int) -> Any:
        for axis in axes:
            x = op.unsqueeze(x, _constant(axis))
        return x

    count = op.gather(op.shape_of(mask, "i64"), _constant(1), _constant(0))
    keys = wide(op.range(_constant(0), count, _constant(1), "i64"), 0, 0)
    later = wide(op.convert(op.greater(keys, wide(places, 2)), "f32"), 1)
    absent = op.subtract(wide(op.convert(mask, "f32"), 1, 1), _constant(1, np.float32))
    return op.multiply(op.subtract(absent, later), _constant(1e9, np.float32))


def _state(part: Any, name: str, beam: Any, batch: Any, width: int) -> tuple[Any, Any]:
    """Give a part with what was there before, and what keeps it."""
    import openvino as ov
    from openvino import op as basic
    from openvino import opset13 as op
    from openvino.op.util import Variable, VariableInfo

    info = VariableInfo()
    info.data_shape = ov.PartialShape([-1, HEADS, -1, width // HEADS])
    info.data_type, info.variable_id = ov.Type.f32, name
    state = Variable(info)
    shape = op.concat([batch, _constant([HEADS, 0, width // HEADS])], 0)
    empty = op.broadcast(_constant(0, np.float32), shape)
    past = op.gather(basic.read_value(empty.output(0), state), beam, _constant(0))
    whole = op.concat([past, part], 2)
    return whole, basic.assign(whole, state)


def _network(
    folder: Path, vocabulary: int, random: np.random.Generator, width: int, sees: bool
) -> None:
    """Save a decoder with a cache as optimum has it: states, and attention as one operator."""
    import openvino as ov
    from openvino import opset13 as op

    def weights(*shape: int) -> Any:
        return _constant(random.standard_normal(shape) * 0.3, np.float32)

    def take(name: str, rank: int, kind: Any = ov.Type.i64) -> Any:
        made = op.parameter([-1] * rank, kind, name=name)
        made.output(0).set_names({name})
        return made

    def mul(x: Any, *shape: int) -> Any:
        return op.matmul(x, weights(*shape), False, False)

    mask, places = (take(n, 2) for n in ("attention_mask", "position_ids"))
    words = weights(vocabulary, width)
    ids = take("inputs_embeds", 3, ov.Type.f32) if sees else take("input_ids", 2)
    beam = take("beam_idx", 1, ov.Type.i32)
    x = ids if sees else op.gather(words, ids, _constant(0))
    x = op.add(x, op.gather(weights(PLACES, width), places, _constant(0)))
    batch = op.gather(op.shape_of(ids, "i64"), _constant([0]), _constant(0))
    hidden, states = _hidden(mask, places), []
    for layer in range(LAYERS):
        parts = []
        for name in ("query", "key", "value"):
            shape = _constant([0, 0, HEADS, width // HEADS])
            part = op.reshape(mul(x, width, width), shape, True)
            part = op.transpose(part, _constant([0, 2, 1, 3]))
            if name != "query":
                variable = f"past_key_values.{layer}.{name}present.{layer}.{name}"
                part, kept = _state(part, variable, beam, batch, width)
                states.append(kept)
            parts.append(part)
        heed = op.transpose(
            op.scaled_dot_product_attention(*parts, hidden), _constant([0, 2, 1, 3])
        )
        x = op.add(x, mul(op.reshape(heed, _constant([0, 0, width]), True), width, width))
        x = op.add(x, mul(op.relu(mul(x, width, 64)), 64, width))
    logits = mul(x, width, vocabulary)
    logits.output(0).set_names({"logits"})
    network = ov.Model([op.result(logits)], states, [ids, mask, places, beam], "tiny")
    if sees:
        _embeddings(folder, words, weights(width, 3, 8, 8), take)
    name = "openvino_language_model.xml" if sees else "openvino_model.xml"
    ov.save_model(network, folder / name, compress_to_fp16=False)


def _embeddings(folder: Path, words: Any, kernel: Any, take: Callable[..., Any]) -> None:
    """Save what makes vectors of words, and of the patches of a picture."""
    import openvino as ov
    from openvino import opset13 as op

    token = take("input", 2)
    _save(folder, "text_embeddings", token, op.gather(words, token, _constant(0)))
    pixels = take("pixel_values", 4, ov.Type.f32)
    patches = op.convolution(pixels, kernel, [8, 8], [0, 0], [0, 0], [1, 1])
    flat = op.reshape(patches, _constant([0, 0, -1]), True)
    _save(folder, "vision_embeddings", pixels, op.transpose(flat, _constant([0, 2, 1])))


def _save(folder: Path, name: str, given: Any, made: Any) -> None:
    import openvino as ov
    from openvino import opset13 as op

    made.output(0).set_names({"inputs_embeds"})
    network = ov.Model([op.result(made)], [given], name)
    ov.save_model(network, folder / f"openvino_{name}_model.xml", compress_to_fp16=False)
