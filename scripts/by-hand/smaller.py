"""What smaller weights bring beside the float network on each engine: a table for each.

    VENV/bin/python scripts/by-hand/smaller.py MODEL[:LETTERS]…

A model is a folder or the name of a generated one (`edge-agent bench cold-start --help`); letters
choose the ways, all by default: h FP16, p weights of products, s INT8 throughout (generated models
only), z zeros. `load` and `infer` are medians of ratios to the float network, taken in turns;
`distance` is that of the outputs for noise, L2, relative.

VENV is that of `run`, with onnx-ir and onnxconverter-common added.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_agent.bench.common.models import find_model
from edge_agent.cli.lineup import engines_for
from edge_agent.core.errors import AgentError
from edge_agent.inference.agreement import relative_distance
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.inference.probe import probe_inputs, race
from edge_agent.models.manifest import load
from edge_agent.tools.folders import copy_rest

ROUNDS = 12
TIMES = 3
LARGE = 2048
"""Numbers in a weight that is worth being made smaller."""


def half(network: Path, out: Path) -> None:
    """Keep the weights as FP16, each made FP32 by a Cast, which engines do when they load."""
    model = onnx.load(network)
    graph, casts = model.graph, []
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims) >= LARGE:
            name = tensor.name
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, f"{name}.half"))
            casts.append(
                helper.make_node(
                    "Cast", [tensor.name], [name], f"{name}.Cast", to=TensorProto.FLOAT
                )
            )
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, out)


def half_throughout(network: Path, out: Path) -> None:
    """Compute in FP16, too."""
    from onnxconverter_common.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(network), keep_io_types=True), out)


def half_ir(network: Path, out: Path) -> None:
    """Write OpenVINO's own format with FP16 weights."""
    import openvino as ov

    ov.save_model(ov.Core().read_model(network), out.with_suffix(".xml"), compress_to_fp16=True)


def blocks(network: Path, out: Path, bits: int, level: int) -> None:
    """Make MatMulNBits of ONNX Runtime, blocks of 32 weights; level 4 multiplies in INT8."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(
        str(network), bits=bits, block_size=32, is_symmetric=True, accuracy_level=level
    )
    made.process()
    made.model.save_model_to_file(str(out), use_external_data_format=False)


def compressed(network: Path, out: Path, mode: str) -> None:
    """Compress the weights with NNCF, without data."""
    import nncf
    import openvino as ov

    more: dict[str, Any] = {"ratio": 1.0, "group_size": 128} if mode.startswith("INT4") else {}
    made = nncf.compress_weights(
        ov.Core().read_model(network), mode=nncf.CompressWeightsMode[mode], **more
    )
    ov.save_model(made, out.with_suffix(".xml"), compress_to_fp16=False)


def sparse(network: Path, out: Path, share: float, of: int = 0) -> None:
    """Zero the smallest weights: a share of all, or of every `of` that are summed one by one."""
    model = onnx.load(network)
    for tensor in model.graph.initializer:
        quantized = tensor.data_type in {TensorProto.INT8, TensorProto.UINT8}
        if len(tensor.dims) < 2 or np.prod(tensor.dims) < LARGE:
            continue
        if not quantized and tensor.data_type != TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(tensor).copy()
        # Convolutions sum over their second axis, products over their first.
        axis = 1 if array.ndim == 4 else 0
        moved = np.moveaxis(array, axis, -1)
        if of and moved.shape[-1] % of == 0:
            rows = np.ascontiguousarray(moved).reshape(-1, of)
            last = np.argsort(np.abs(rows.astype(np.float32)), axis=1)[:, : round(of * share)]
            np.put_along_axis(rows, last, 0, axis=1)
            array = np.ascontiguousarray(np.moveaxis(rows.reshape(moved.shape), -1, axis))
        elif not of:
            sizes = np.abs(array.astype(np.float32))
            array[sizes <= np.quantile(sizes, share)] = 0
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, out)


Recipe = Callable[[Path, Path], None]
HALF: dict[str, Recipe] = {
    "FP16 weights": half,
    "FP16 throughout": half_throughout,
    "FP16 weights, OpenVINO's format": half_ir,
}
PRODUCTS: dict[str, Recipe] = {
    "INT8 weights, MatMulNBits": partial(blocks, bits=8, level=0),
    "INT8 weights, MatMulNBits, INT8 products": partial(blocks, bits=8, level=4),
    "INT4 weights, MatMulNBits": partial(blocks, bits=4, level=0),
    "INT4 weights, MatMulNBits, INT8 products": partial(blocks, bits=4, level=4),
    "INT8 weights, NNCF": partial(compressed, mode="INT8_SYM"),
    "INT4 weights, NNCF": partial(compressed, mode="INT4_SYM"),
}


def static(network: Path, out: Path) -> None:
    """Take the generated INT8 network: activations in eight bits, too, by fixed ranges."""
    quantized = find_model(network.parent.name.replace("fp32", "int8"), print)
    shutil.copyfile(quantized / "model.onnx", out)


STATIC: dict[str, Recipe] = {"INT8, activations too": static}
ZEROS: dict[str, Recipe] = {
    "50 % zeros": partial(sparse, share=0.5),
    "2:4 zeros": partial(sparse, share=0.5, of=4),
    "90 % zeros": partial(sparse, share=0.9),
}
LETTERS = {"h": HALF, "p": PRODUCTS, "s": STATIC, "z": ZEROS}
SPARSE = {"CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": 0.4}


def opened(place: Path, choice: EngineChoice) -> Any:
    """Load a model as the agent does."""
    model, _ = load_model(load(place), [choice], "picture", checked=True)
    return model


def compare(name: str, ways: dict[str, Recipe], work: Path) -> None:
    """Print what each way brings for a model."""
    folder = load(find_model(name, print))
    made: dict[str, Path] = {}
    for number, (way, make) in enumerate(ways.items()):
        place = work / str(number)
        place.mkdir()
        copy_rest(folder, place)
        try:
            make(folder.network, place / "model.onnx")
            if (place / "model.xml").exists():
                text = (place / "model.toml").read_text()
                (place / "model.toml").write_text(text.replace("model.onnx", "model.xml"))
            load(place)
        except Exception as problem:  # noqa: BLE001 - whatever it is, is the result
            print(f"{name}: {way}: {type(problem).__name__}: {problem}"[:300], flush=True)
            continue
        made[way] = place
    for choice in engines_for(folder.network):
        plan = {way: (place, choice) for way, place in made.items()}
        if choice.engine == "openvino":
            for way in ("50 % zeros", "90 % zeros"):
                if way in made:
                    how = replace(choice, options={**choice.options, **SPARSE})
                    plan[f"{way}, sparse rate 0.4"] = (made[way], how)
        print(f"| {name} on {choice.engine} | MB | load | infer | quartiles | distance |")
        first = opened(folder.path, choice)
        probes = [probe_inputs(first.engine.inputs, seed) for seed in range(4)]
        want = [next(iter(first.raw(each).values())) for each in probes]
        for way, (place, how) in plan.items():
            try:
                model = opened(place, how)
            except AgentError as problem:
                print(f"{name}: {way} on {choice.engine}: {problem}"[:300], flush=True)
                continue
            got = [next(iter(model.raw(each).values())) for each in probes]
            far = median(map(relative_distance, want, got))
            pair = [lambda n, m=m, p=probes: m.raw(p[n % 4]) for m in (first, model)]
            took = np.array(race(pair, ROUNDS))
            low, mid, high = np.percentile(took[1] / took[0], [25, 50, 75])
            model.close()
            loads: list[list[float]] = [[], []]
            for _ in range(TIMES):
                for times, (where, with_) in zip(
                    loads, ((folder.path, choice), (place, how)), strict=True
                ):
                    start = time.perf_counter()
                    model = opened(where, with_)
                    times.append(time.perf_counter() - start)
                    model.close()
            load_ratio = median(np.array(loads[1]) / np.array(loads[0]))
            size = sum(f.stat().st_size for f in place.glob("model.*")) / 1e6
            print(
                f"| {way} | {size:.1f} | {load_ratio:.2f} | {mid:.2f} | {low:.2f}-{high:.2f} |"
                f" {far:.3g} |",
                flush=True,
            )
        first.close()


def main() -> None:
    """Compare every model that is named."""
    if len(sys.argv) < 2:
        sys.exit("usage: scripts/by-hand/smaller.py MODEL[:LETTERS]…")
    for text in sys.argv[1:]:
        name, _, letters = text.partition(":")
        ways: dict[str, Recipe] = {}
        for letter in letters or "hpz":
            ways |= LETTERS[letter]
        with TemporaryDirectory() as work:
            compare(name, ways, Path(work))


if __name__ == "__main__":
    main()
