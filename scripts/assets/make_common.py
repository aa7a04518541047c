"""What the scripts that make the bundled models have in common: export, INT8, engines, files.

Needs, beside the product's own dependencies: torch (a CPU build is enough).
"""

import argparse
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import openvino as ov
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

Floats = npt.NDArray[np.float32]

MODELS = Path(__file__).resolve().parents[2] / "models"
OPSET = 17
_INT8_FLAGS = {
    "avx512_vnni": "AVX-512 VNNI",
    "amx_int8": "AMX",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
}


def arguments(what: str) -> argparse.Namespace:
    """Read the command line that both scripts share."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a small fraction of data and training: proves the script, not the model",
    )
    parser.add_argument(
        "--out", type=Path, default=MODELS, help="folder to write to (default: models/)"
    )
    return parser.parse_args()


def seed_everything(seed: int) -> None:
    """Make a second run on the same machine and versions give the same weights."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def trains_in_bf16() -> bool:
    """Say whether this CPU multiplies bfloat16 in hardware; elsewhere it would be slower."""
    try:
        return "_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def export(
    module: torch.nn.Module, shape: Sequence[int], path: Path, names: tuple[str, str]
) -> None:
    """Write a module as an ONNX file with a fixed shape, batch norms folded in."""
    module.eval()
    torch.onnx.export(
        module,
        (torch.zeros(*shape),),
        str(path),
        opset_version=OPSET,
        input_names=[names[0]],
        output_names=[names[1]],
        do_constant_folding=True,
        dynamo=False,
    )


class _Reader(CalibrationDataReader):
    """Feeds model-ready arrays to the calibration, one at a time."""

    def __init__(self, name: str, samples: Iterable[Floats]) -> None:
        self._name = name
        self._samples = iter(samples)

    def get_next(self) -> dict[str, Floats] | None:
        """Give the next sample, or None at the end."""
        sample = next(self._samples, None)
        return None if sample is None else {self._name: sample}


def downstream(model: onnx.ModelProto, marks: Sequence[str]) -> list[str]:
    """Name every node that reads a weight whose name starts with a mark, and all that follows.

    This is how the tail that stays in float is found without naming each of its nodes.
    """
    reached: set[str] = set()
    names = []
    for node in model.graph.node:  # ONNX nodes come in topological order
        if any(i in reached or i.startswith(tuple(marks)) for i in node.input):
            reached.update(node.output)
            names.append(node.name)
    return names


def to_int8(
    fp32: Path,
    int8: Path,
    samples: Iterable[Floats],
    *,
    keep_float: Callable[[onnx.ModelProto], list[str]],
    method: CalibrationMethod = CalibrationMethod.MinMax,
    percentile: float = 99.999,
) -> None:
    """Quantize to INT8: QDQ, unsigned activations, signed weights per channel.

    Weights take 7 of their 8 bits (reduce_range): CPUs without VNNI add pairs of 8-bit
    products in 16 bits, which saturates on full-range weights and silently breaks results.
    """
    prepared = fp32.with_suffix(".prepared.onnx")
    quant_pre_process(str(fp32), str(prepared), skip_symbolic_shape=True)
    model = onnx.load(str(prepared))
    quantize_static(
        str(prepared),
        str(int8),
        _Reader(model.graph.input[0].name, samples),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=True,
        nodes_to_exclude=keep_float(model),
        calibrate_method=method,
        extra_options={"CalibPercentile": percentile},
    )
    prepared.unlink()
    done = onnx.load(str(int8))
    done.producer_name = "edge-agent"
    done.doc_string = ""
    onnx.checker.check_model(done, full_check=True)
    onnx.save(done, str(int8))


@dataclass(frozen=True)
class Runner:
    """One model in one engine on one thread, as a function from array to array."""

    name: str
    call: Any

    def __call__(self, data: Floats) -> Floats:
        """Run once."""
        return np.asarray(self.call(data), np.float32)


def in_onnxruntime(path: Path) -> Runner:
    """Open a model in ONNX Runtime on its CPU provider."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return Runner("onnxruntime", lambda data: session.run(None, {name: data})[0])


def in_openvino(path: Path, *, precision: str | None = None) -> Runner:
    """Open a model in OpenVINO on the CPU; `precision` sets what float parts run in."""
    core = ov.Core()
    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
    if precision is not None:
        config["INFERENCE_PRECISION_HINT"] = precision
    request = core.compile_model(str(path), "CPU", config).create_infer_request()
    label = "openvino" if precision is None else f"openvino ({precision})"
    return Runner(label, lambda data: next(iter(request.infer({0: data}).values())).copy())


def milliseconds(runner: Runner, sample: Floats, runs: int = 200) -> float:
    """Time the median call."""
    for _ in range(10):
        runner(sample)
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        runner(sample)
        took.append(time.perf_counter() - start)
    return float(np.median(took) * 1000)


def write_golden(folder: Path, inputs: Floats, outputs: Floats, names: tuple[str, str]) -> None:
    """Write the self-test: what goes into the model and what must come out, a case a row."""
    np.savez_compressed(
        folder / "golden.npz",
        **{f"input/{names[0]}": inputs, f"output/{names[1]}": outputs},
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def vnni() -> str:
    """Say in words what this CPU has for INT8, for figures that depend on it."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        flags = []
    has = [name for flag, name in _INT8_FLAGS.items() if flag in flags]
    return f"{os.uname().machine} with {' and '.join(has) or 'no INT8 instructions'}"


def workers() -> int:
    """Count the CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
