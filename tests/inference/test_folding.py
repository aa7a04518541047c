"""Folded preprocessing: an eight-bit network that takes bytes gives the numbers that it gave."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_agent.config.settings import Arm
from edge_agent.core.types import Detections, RawTensors, Sample, TensorSpec
from edge_agent.delivery.trial.worker import judge
from edge_agent.device.resources import adds_bytes_exactly
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.ort import fitting
from edge_agent.inference.engines.ort_session import session_config, session_options
from edge_agent.inference.engines.ov import compile_network
from edge_agent.inference.engines.registry import EngineName, open_engine
from edge_agent.inference.folding.find import cut_for, find
from edge_agent.inference.folding.fold import Fold
from edge_agent.inference.model import Model, assemble, load_model
from edge_agent.inference.prepared.artifact import WEIGHTS, Artifact, read
from edge_agent.inference.prepared.compile.cache import prepare
from edge_agent.inference.prepared.fallback import FallbackEngine, load_prepared
from edge_agent.inference.preprocess.inputs import fixed_shapes
from edge_agent.inference.preprocess.preprocessor import build_preprocessor
from edge_agent.models.manifest import InputSpec, ModelFolder, load
from edge_agent.models.store.store import Store
from edge_agent.serving.active import Serving
from edge_agent.serving.challenger import Challenge
from edge_agent.sources.video import FILE, Video
from tests.helpers.prepared_models import damage, table_of
from tests.helpers.quantized_models import (
    FOCUS,
    PICTURE,
    SIZE,
    STEP,
    WIDTH,
    ZERO,
    focus,
    model,
    save,
)
from tests.helpers.support import ASSETS, CHECKOUT, needs_assets
from tests.helpers.tiny_networks import node, save_onnx

ENGINES: tuple[EngineName, ...] = ("onnxruntime", "openvino")
PIXELS = np.random.default_rng(1).integers(0, 256, (1, 3, SIZE, SIZE), np.uint8)
FRAME = np.random.default_rng(2).integers(0, 256, (48, 64, 3), np.uint8)

quantize = node("QuantizeLinear", ["picture", "step", "zero"], ["q"])


def choice_of(engine: EngineName) -> EngineChoice:
    """Choose an engine, on one thread."""
    return EngineChoice(engine, threads=1)


def nothing_open(_: Any) -> dict[str, Any]:
    """Leave all sizes as they are."""
    return {}


# --- networks that can be folded

FOLDABLE: dict[str, Callable[[Path], Path]] = {
    "unsigned steps": save,
    "signed steps": lambda path: save(path, zero=np.int8(-28)),
    "no zero point": lambda path: save(
        path, [node("QuantizeLinear", ["picture", "step"], ["q"])], zero=np.uint8(0)
    ),
    "a scale of shape [1]": lambda path: save(
        path, weights={"step": np.array([STEP]), "zero": np.array([ZERO])}
    ),
    "constants that are nodes": lambda path: save(
        path,
        [
            constant("step2", np.array(STEP)),
            constant("zero2", np.array(ZERO)),
            node("QuantizeLinear", ["picture", "step2", "zero2"], ["q"]),
        ],
    ),
    "taken apart before": lambda path: save(path, focus(), channels=12, weights=FOCUS),
    "transposed before": lambda path: save(
        path,
        [
            node("Transpose", ["picture"], ["turned"], perm=[0, 3, 1, 2]),
            node("QuantizeLinear", ["turned", "step", "zero"], ["q"]),
        ],
        taken=("picture", "float32", (1, SIZE, SIZE, 3)),
    ),
    "quantized twice alike": lambda path: save(
        path,
        [
            quantize,
            node("QuantizeLinear", ["picture", "step", "zero"], ["q2"]),
            node("DequantizeLinear", ["q2", "step", "zero"], ["again"]),
        ],
        outputs=[("again", "float32", (1, 3, SIZE, SIZE))],
    ),
    "its size is looked at": lambda path: save(
        path, [node("Shape", ["picture"], ["size"]), quantize], outputs=[("size", "int64", (4,))]
    ),
    "weights are inputs": lambda path: save(path, weights_are_inputs=True),
    "weights in another file": lambda path: outside(save(path)),
    "an open batch": lambda path: save(path, taken=("picture", "float32", ("n", 3, SIZE, SIZE))),
    "signed operators of eight bits": lambda path: qlinear(path, np.int8(-28)),
    "operators of eight bits": lambda path: qlinear(path),  # noqa: PLW0108 - is defined below
}


def outside(network: Path) -> Path:
    """Move the large weights of a network to a file beside it."""
    import onnx

    onnx.save(
        onnx.load(network),
        network,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=1024,
    )
    assert (network.parent / "weights.bin").stat().st_size > 1024
    return network


def constant(name: str, value: NDArray[Any]) -> Any:
    """Make a constant that is a node; numbers that are not raw bytes, as older exporters do."""
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return node(
        "Constant", [], [name], value=helper.make_tensor(name, kind, value.shape, [value.item()])
    )


def qlinear(path: Path, zero: Any = ZERO) -> Path:
    """Save a network whose convolution itself is of eight bits."""
    takes = ["q", "step", "zero", "w", "w_step", "w_zero", "out_step", "out_zero"]
    return save_onnx(
        path,
        [
            quantize,
            node("QLinearConv", takes, ["c"], kernel_shape=[3, 3]),
            node("DequantizeLinear", ["c", "out_step", "out_zero"], ["y"]),
        ],
        [PICTURE],
        [("y", "float32", (1, WIDTH, SIZE - 2, SIZE - 2))],
        {
            "step": np.array(STEP),
            "zero": np.array(zero),
            "w": np.random.default_rng(6).integers(-127, 128, (WIDTH, 3, 3, 3)).astype(np.int8),
            "w_step": np.array(0.01, np.float32),
            "w_zero": np.array(0, np.int8),
            "out_step": np.array(0.25, np.float32),
            "out_zero": np.array(3, zero.dtype),
        },
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("built", FOLDABLE)
def test_folded_network_gives_the_same_numbers(
    built: str, engine: EngineName, tmp_path: Path
) -> None:
    """Bytes into the folded network, floats into it, floats into the network itself: bit for bit.

    The floats are multiples of a step, as those of pixels mostly are; in between OpenVINO rounds
    halves as it likes.
    """
    network = FOLDABLE[built](tmp_path / "model.onnx")
    cut = find(network)
    assert not isinstance(cut, str), cut
    shapes = {"picture": (1, 3, SIZE, SIZE)} if built == "an open batch" else {}
    itself = open_engine(choice_of(engine), network, lambda _: shapes)
    folded = open_engine(choice_of(engine), network, lambda _: shapes, cut)
    assert (folded.inputs, folded.outputs) == (itself.inputs, itself.outputs)
    assert folded.label == itself.label
    assert itself.fold is None
    assert folded.fold is not None
    pixels = PIXELS.transpose(0, 2, 3, 1) if built == "transposed before" else PIXELS
    floats = cut.fold.restore(np.ascontiguousarray(pixels).view(cut.fold.dtype))
    steps = folded.fold.feed({"picture": floats})["picture"]
    assert steps.dtype == folded.fold.dtype
    np.testing.assert_array_equal(folded.fold.unfold({"picture": steps})["picture"], floats)
    expected = itself.infer({"picture": floats})
    for tensors in ({"picture": steps}, {"picture": floats}):
        found = folded.infer(tensors)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
    folded.close()
    itself.close()


@pytest.mark.parametrize("built", ["unsigned steps", "signed steps", "taken apart before"])
def test_any_floats_give_the_same_numbers(built: str, tmp_path: Path) -> None:
    """ONNX Runtime's own rounding is met for floats that no pixel gives, halves among them."""
    network = FOLDABLE[built](tmp_path / "model.onnx")
    cut = find(network)
    assert not isinstance(cut, str), cut
    itself = open_engine(choice_of("onnxruntime"), network, nothing_open)
    folded = open_engine(choice_of("onnxruntime"), network, nothing_open, cut)
    noise = np.random.default_rng(3).normal(0, 2, (1, 3, SIZE, SIZE)).astype(np.float32)
    halves = (np.rint(noise * 64) + np.float32(0.5)) * STEP
    for floats in (noise, halves, noise * 1e6):
        np.testing.assert_array_equal(
            folded.infer({"picture": floats})["y"], itself.infer({"picture": floats})["y"]
        )


@pytest.mark.parametrize(
    ("built", "turned"),
    [
        ("unsigned steps", True),
        ("signed steps", True),
        ("operators of eight bits", True),
        ("an open batch", True),
        ("taken apart before", False),
        ("transposed before", False),
        ("quantized twice alike", False),
        ("its size is looked at", False),
    ],
)
def test_colors_last_where_they_are_convolved(built: str, turned: bool, tmp_path: Path) -> None:
    """ONNX Runtime gets the colors last where it convolves in eight bits; no node turns them."""
    cut = find(FOLDABLE[built](tmp_path / "model.onnx"))
    assert not isinstance(cut, str), cut
    words, _ = session_config(choice_of("onnxruntime"))
    fit = fitting(cut, words)
    assert fit is not None
    assert fit.fold.turned == turned
    unoptimized = fitting(cut, {**words, "level": "basic"})
    assert unoptimized is not None
    assert not unoptimized.fold.turned
    if turned:
        graph, files = fit.open()
        options = session_options(words)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.add_external_initializers_from_files_in_memory(
            list(files), list(files.values()), [len(data) for data in files.values()]
        )
        ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        import onnx

        kinds = [each.op_type for each in onnx.load(tmp_path / "optimized.onnx").graph.node]
        assert kinds[0] == "QLinearConv"


@pytest.mark.parametrize("built", FOLDABLE)
def test_openvino_gets_the_colors_last_too(built: str, tmp_path: Path) -> None:
    """Where it convolves the steps at once: in eight bits, in floats where bytes saturate."""
    cut = find(FOLDABLE[built](tmp_path / "model.onnx"))
    assert not isinstance(cut, str), cut
    made = compile_network(choice_of("openvino"), cut.network, one_sample, 1, cut)
    assert made.fold is not None
    wanted = cut.convolved and cut.fold.dtype == "uint8" and platform.machine() == "x86_64"
    assert made.fold.turned == wanted
    if wanted:
        nodes = made.networks[0].get_runtime_model().get_ordered_ops()
        done = [str(each.get_rt_info()["primitiveType"].astype(str)) for each in nodes]
        kinds = [str(each.get_rt_info()["layerType"].astype(str)) for each in nodes]
        assert "Transpose" not in kinds
        exact = "I8" if adds_bytes_exactly() else "F32"
        assert done[kinds.index("Convolution")].upper().endswith(exact)


def one_sample(inputs: tuple[TensorSpec, ...]) -> dict[str, tuple[int, ...]]:
    """Settle an open batch."""
    return {
        spec.name: tuple(size or 1 for size in spec.shape) for spec in inputs if None in spec.shape
    }


# --- networks that cannot


def branch() -> Any:
    """Make a graph for a branch that uses the picture from outside."""
    from onnx import TensorProto, helper

    return helper.make_graph(
        [node("ReduceMax", ["picture"], ["most"], axes=[2, 3], keepdims=0)],
        "branch",
        [],
        [helper.make_tensor_value_info("most", TensorProto.FLOAT, (1, 3))],
    )


LEFT_ALONE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "used as it is, too": (
        lambda path: save(
            path,
            [quantize, node("ReduceMax", ["picture"], ["most"], axes=[1, 2, 3], keepdims=0)],
            outputs=[("most", "float32", (1,))],
        ),
        "ReduceMax takes picture as it is",
    ),
    "a scale for each channel": (
        lambda path: save(
            path,
            [node("QuantizeLinear", ["picture", "steps", "zeros"], ["q"], axis=1)],
            weights={
                "steps": np.array([0.1, 0.2, 0.3], np.float32),
                "zeros": np.array([1, 2, 3], np.uint8),
            },
        ),
        "steps is not one number for the whole input",
    ),
    "quantized in two ways": (
        lambda path: save(
            path,
            [
                quantize,
                node("QuantizeLinear", ["picture", "out_step", "zero"], ["q2"]),
                node("DequantizeLinear", ["q2", "out_step", "zero"], ["again"]),
            ],
            outputs=[("again", "float32", (1, 3, SIZE, SIZE))],
        ),
        "is quantized in several ways",
    ),
    "quantized again at once": (
        lambda path: save(
            path,
            [
                node("QuantizeLinear", ["picture", "out_step", "zero"], ["q1"]),
                node("DequantizeLinear", ["q1", "out_step", "zero"], ["f1"]),
                node("QuantizeLinear", ["f1", "step", "zero"], ["q"]),
            ],
        ),
        "it is quantized twice",
    ),
    "its steps are an output": (
        lambda path: save(path, outputs=[("q", "uint8", (1, 3, SIZE, SIZE))]),
        "its steps are an output, too",
    ),
    "joined with other numbers": (
        lambda path: save(
            path,
            [
                node("Concat", ["picture", "other"], ["both"], axis=1),
                node("QuantizeLinear", ["both", "step", "zero"], ["q"]),
            ],
            channels=4,
            weights={"other": np.zeros((1, 1, SIZE, SIZE), np.float32)},
        ),
        "other numbers are joined",
    ),
    "used within a branch": (
        lambda path: save(
            path,
            [
                quantize,
                node("If", ["yes"], ["most"], then_branch=branch(), else_branch=branch()),
            ],
            weights={"yes": np.array(True)},
            outputs=[("most", "float32", (1, 3))],
        ),
        "picture is used within If",
    ),
    "a scale that is worked out": (
        lambda path: save(
            path,
            [
                node("Mul", ["out_step", "w_step"], ["worked"]),
                node("QuantizeLinear", ["picture", "worked", "zero"], ["q"]),
            ],
        ),
        "worked is not one number that is known",
    ),
    "changed before": (
        lambda path: save(
            path,
            [
                node("Mul", ["picture", "out_step"], ["less"]),
                node("QuantizeLinear", ["less", "step", "zero"], ["q"]),
            ],
        ),
        "Mul takes picture as it is",
    ),
    "not quantized": (
        lambda path: save_onnx(
            path,
            [node("Reshape", ["picture", "flat"], ["y"])],
            [PICTURE],
            [("y", "float32", (3 * SIZE * SIZE,))],
            {"flat": np.array([-1], np.int64)},
        ),
        "y is an output, too",
    ),
    "bytes already": (
        lambda path: save(
            path,
            [node("Identity", ["picture"], ["q"])],
            taken=("picture", "uint8", (1, 3, SIZE, SIZE)),
        ),
        "picture does not take float32",
    ),
    "two inputs": (
        lambda path: save(
            path,
            [quantize, node("Identity", ["info"], ["said"])],
            more=[("info", "float32", (1, 2))],
            outputs=[("said", "float32", (1, 2))],
        ),
        "2 inputs might take the sample",
    ),
}


@pytest.mark.parametrize("built", LEFT_ALONE)
def test_network_is_left_as_it_is(built: str, tmp_path: Path) -> None:
    """Where cutting would change a number, nothing is cut, and the reason is given."""
    make, reason = LEFT_ALONE[built]
    found = find(make(tmp_path / "model.onnx"))
    assert isinstance(found, str)
    assert reason in found


def test_manifest_tells_inputs_apart(tmp_path: Path) -> None:
    """Of several inputs the one that is named is folded, or the one that is not constant."""
    make, _ = LEFT_ALONE["two inputs"]
    network = make(tmp_path / "model.onnx")
    by_name, by_others = find(network, "picture"), find(network, None, ["info"])
    assert not isinstance(by_name, str)
    assert by_name == by_others
    assert isinstance(find(network, "info"), str)
    tensors = {"picture": by_name.fold.restore(PIXELS), "info": np.array([[1, 2]], np.float32)}
    for engine in ENGINES:
        found = open_engine(choice_of(engine), network, nothing_open, by_name).infer(tensors)
        np.testing.assert_array_equal(found["said"], tensors["info"])


@pytest.mark.parametrize("length", [0, 1, 7, 100, 2000])
def test_damaged_file_is_no_trouble(length: int, tmp_path: Path) -> None:
    """A file that is cut short is left to the engine, which says what is wrong with it."""
    network = save(tmp_path / "model.onnx")
    network.write_bytes(network.read_bytes()[:length])
    assert isinstance(find(network), str)


def test_decoder_that_looks_at_the_input_keeps_it(tmp_path: Path) -> None:
    """A network whose output is compared with its input, and one of windows, are not folded."""
    folder = load(model(tmp_path / "small"))
    assert cut_for(folder, "picture") is not None
    assert cut_for(folder, "signal") is None
    output = replace(folder.manifest.output, decoder="reconstruction")
    compared = replace(folder, manifest=replace(folder.manifest, output=output))
    assert cut_for(compared, "picture") is None


# --- the arithmetic

_SESSIONS: dict[str, Any] = {}


def quantized_by_engine(values: NDArray[np.float32], scale: float, zero: Any) -> NDArray[Any]:
    """Quantize as ONNX Runtime does."""
    kind = zero.dtype.name
    if kind not in _SESSIONS:
        from onnx import TensorProto, helper

        ends = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("zero", helper.np_dtype_to_tensor_dtype(zero.dtype), []),
        ]
        given_back = helper.make_tensor_value_info(
            "y", helper.np_dtype_to_tensor_dtype(zero.dtype), ["n"]
        )
        graph = helper.make_graph(
            [node("QuantizeLinear", ["x", "scale", "zero"], ["y"])], "one", ends, [given_back]
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        _SESSIONS[kind] = ort.InferenceSession(made.SerializeToString())
    feeds = {"x": values, "scale": np.array(scale, np.float32), "zero": zero}
    found: NDArray[Any] = _SESSIONS[kind].run(["y"], feeds)[0]
    return found


scales = st.floats(2**-20, 2**20, width=32)
zeros = st.one_of(
    st.integers(0, 255).map(np.uint8).map(np.asarray),
    st.integers(-128, 127).map(np.int8).map(np.asarray),
)


@settings(max_examples=200, deadline=None)
@given(scales, zeros, st.integers(0, 2**32 - 1))
def test_steps_are_the_engines_own(scale: float, zero: Any, seed: int) -> None:
    """Floats become the steps that ONNX Runtime makes of them, halves and overflows included."""
    fold = Fold("x", zero.dtype.name, scale, int(zero))
    random = np.random.default_rng(seed)
    steps = random.uniform(-300, 300, 64).astype(np.float32)
    steps[:16] = np.rint(steps[:16]) + np.float32(0.5)
    steps[16:24] *= 1e20
    values = np.clip(steps.astype(np.float64) * scale, -3e38, 3e38).astype(np.float32)
    np.testing.assert_array_equal(fold.quantize(values), quantized_by_engine(values, scale, zero))


@settings(max_examples=200, deadline=None)
@given(scales, zeros)
def test_restored_steps_are_the_same_steps(scale: float, zero: Any) -> None:
    """What is given to a network that is not folded becomes the same steps in it."""
    fold = Fold("x", zero.dtype.name, scale, int(zero))
    steps = np.arange(256).astype(np.uint8).view(fold.dtype)
    floats = fold.restore(steps)
    assert floats.dtype == np.float32
    np.testing.assert_array_equal(fold.quantize(floats), steps)
    np.testing.assert_array_equal(quantized_by_engine(floats, scale, zero), steps)


# --- pictures

SPECS = {
    "plain": InputSpec(),
    "as most do": InputSpec(mean=(127.0,) * 3, scale=(128.0,) * 3),
    "each channel its own": InputSpec(mean=(123.7, 116.3, 103.5), scale=(58.4, 57.1, 57.4)),
    "blue first": InputSpec(color="bgr", mean=(1.0, 2.0, 3.0), scale=(255.0,) * 3),
    "colors last": InputSpec(layout="nhwc", mean=(127.0,) * 3, scale=(128.0,) * 3),
    "colors last, blue first": InputSpec(layout="nhwc", color="bgr", scale=(2.0, 3.0, 4.0)),
    "letterbox": InputSpec(resize="letterbox", mean=(3.0, 5.0, 7.0)),
    "letterbox at the corner": InputSpec(resize="letterbox", anchor="top-left", color="bgr"),
    "cut": InputSpec(resize="crop", crop_ratio=0.875, interpolation="cubic"),
    "gray": InputSpec(color="gray", mean=128.0, scale=128.0, interpolation="area"),
}
FOLDS = {
    "other steps": Fold("picture", "uint8", 0.0186, 114),
    "signed": Fold("picture", "int8", 1.0, -128),
    "pixels": Fold("picture", "uint8", 1.0, 0),
    "half a pixel": Fold("picture", "uint8", 0.0078125, 127),
    "turned": Fold("picture", "uint8", 0.0186, 114, turned=True),
    "turned and signed": Fold("picture", "int8", 1.0, -128, turned=True),
}


def spec_of(spec: InputSpec, dtype: str = "float32", batch: int = 1) -> TensorSpec:
    """Describe an input for a manifest."""
    channels = 1 if spec.color == "gray" else 3
    shape = (24, 32, channels) if spec.layout == "nhwc" else (channels, 24, 32)
    return TensorSpec("picture", (batch, *shape), dtype)


@pytest.mark.parametrize("how", FOLDS)
@pytest.mark.parametrize("name", SPECS)
def test_folded_pictures_are_the_quantized_ones(name: str, how: str) -> None:
    """Looking bytes up gives exactly the steps of the floats that there were before."""
    spec, fold = SPECS[name], FOLDS[how]
    if fold.turned and spec.layout == "nhwc":
        spec = replace(spec, layout="nchw")
    inputs = (spec_of(spec),)
    floats, place = build_preprocessor(spec, inputs, "picture")(FRAME)
    steps, same_place = build_preprocessor(spec, inputs, "picture", fold)(FRAME)
    assert steps["picture"].dtype == fold.dtype
    np.testing.assert_array_equal(steps["picture"], fold.feed(floats)["picture"])
    assert place == same_place


def test_tensors_are_the_callers_own() -> None:
    """What was made of one picture is not written to for the next."""
    spec = SPECS["letterbox"]
    prepare_one = build_preprocessor(spec, (spec_of(spec, "uint8"),), "picture")
    first = prepare_one(FRAME)[0]["picture"]
    kept = first.copy()
    prepare_one(np.zeros_like(FRAME))
    np.testing.assert_array_equal(first, kept)


def test_letterbox_keeps_its_border() -> None:
    """Frames of other shapes in between leave nothing behind in the border."""
    spec = SPECS["letterbox"]
    prepare_one = build_preprocessor(spec, (spec_of(spec),), "picture")
    frames = [FRAME, np.ascontiguousarray(FRAME.transpose(1, 0, 2)), FRAME[:, :10], FRAME]
    for frame in frames:
        fresh = build_preprocessor(spec, (spec_of(spec),), "picture")
        np.testing.assert_array_equal(prepare_one(frame)[0]["picture"], fresh(frame)[0]["picture"])


def test_threads_do_not_share_buffers() -> None:
    """Lanes that prepare different pictures by one plan at a time get each its own."""
    spec = SPECS["each channel its own"]
    prepare_one = build_preprocessor(spec, (spec_of(spec),), "picture", FOLDS["other steps"])
    frames = [np.full((720, 1280, 3), value, np.uint8) for value in range(0, 256, 16)]
    expected = [prepare_one(frame)[0]["picture"] for frame in frames]

    def work(index: int) -> bool:
        found = prepare_one(frames[index % len(frames)])[0]["picture"]
        return bool(np.array_equal(found, expected[index % len(frames)]))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(400)))


# --- models


def unfolded(folder: ModelFolder, engine: EngineName) -> Model:
    """Load a model as it is."""
    choice = choice_of(engine)
    fix = fixed_shapes(folder.manifest.input, "picture")
    return assemble(folder, choice, open_engine(choice, folder.network, fix), "picture")


def sample(data: Any) -> Sample:
    """Make a frame of a picture."""
    return Sample(data, 0, 0, 0.0)


def tensors_of(found: Any) -> dict[str, NDArray[Any]]:
    """Give the tensors that a model has found."""
    assert isinstance(found, RawTensors)
    return dict(found.tensors)


@pytest.mark.parametrize("engine", ENGINES)
def test_model_is_folded_and_finds_the_same(engine: EngineName, tmp_path: Path) -> None:
    """A model that is opened takes bytes, and finds what it finds without; regions included."""
    folder = load(model(tmp_path / "small"))
    itself = unfolded(folder, engine)
    folded = load_model(folder, [choice_of(engine)], "picture")
    assert folded.engine.fold is not None
    for region in (None, (5, 7, 40, 39)):
        one = tensors_of(itself.infer(sample(FRAME), region=region).findings)
        other = tensors_of(folded.infer(sample(FRAME), region=region).findings)
        np.testing.assert_array_equal(one["y"], other["y"])
    assert folded.last is not None
    assert folded.last["picture"].dtype == np.uint8
    floats = folded.unfolded(folded.last)
    assert floats["picture"].dtype == np.float32
    np.testing.assert_array_equal(itself.run(floats)["y"], folded.run(floats)["y"])
    np.testing.assert_array_equal(folded.ready(floats)["picture"], folded.last["picture"])


def test_a_challenger_gets_inputs_of_the_network_itself(tmp_path: Path) -> None:
    """What a folded model was given goes to another engine as any engine takes it."""
    folder = load(model(tmp_path / "small"))
    folded = load_model(folder, [choice_of("onnxruntime")], "picture")
    serving = Serving(Arm("small", None, 1), "picture", folded)
    active: Any = None  # is not asked
    other = unfolded(folder, "onnxruntime")
    challenge = Challenge(serving, folded, active, lambda: other, None, "other")
    assert challenge.step() is None
    expected = tensors_of(folded.infer(sample(FRAME)).findings)
    assert challenge.step() is None, "it agrees on the first of three"
    (given,) = challenge._inputs
    assert given["picture"].dtype == np.float32
    assert given["picture"].shape == (1, 3, SIZE, SIZE)
    np.testing.assert_array_equal(other.run(given)["y"], expected["y"])
    assert challenge.step() is None
    assert len(challenge._inputs) == 1, "each input counts once"


def save_golden(place: Path, given: NDArray[Any], results: NDArray[Any]) -> None:
    """Give a model golden cases."""
    arrays: dict[str, Any] = {"input/picture": given, "output/y": results}
    np.savez(place / "golden.npz", **arrays)


@pytest.mark.parametrize("engine", ENGINES)
def test_trial_of_a_folded_model(engine: EngineName, tmp_path: Path) -> None:
    """Golden tensors are those of the network itself; a folded candidate is measured by them."""
    place = model(tmp_path / "small")
    itself = unfolded(load(place), engine)
    noise = np.random.default_rng(4).normal(0, 1, (3, 1, 3, SIZE, SIZE)).astype(np.float32)
    results = np.stack([itself.run({"picture": each})["y"] for each in noise])
    save_golden(place, noise, results)
    question = {
        "folder": str(place),
        "choices": [asdict(choice_of(engine))],
        "kind": "picture",
        "golden": True,
        "forms": None,
    }
    verdict = judge(question, None)
    assert verdict.passed
    assert verdict.why == "golden: 3 cases agree"
    save_golden(place, noise, results + 1)
    assert not judge(question, None).passed


# --- prepared forms


class Made(NamedTuple):
    """A model, and a form that was made of it."""

    place: Path
    choice: EngineChoice
    form: Artifact


@pytest.fixture(scope="module", params=ENGINES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make a form for each engine, for all tests."""
    root = tmp_path_factory.mktemp("folded")
    place, choice = model(root / "small"), choice_of(request.param)
    return Made(place, choice, prepare(Store(root / "state"), load(place), choice, "picture"))


def test_form_is_made_of_the_folded_network(made: Made) -> None:
    """A start from a form takes bytes, rewrites nothing, and gives the network's own numbers."""
    assert table_of(made.form.folder)["fold"] == {
        "name": "picture",
        "dtype": "uint8",
        "scale": float(STEP),
        "zero_point": int(ZERO),
        "turned": made.choice.engine == "onnxruntime" or platform.machine() == "x86_64",
    }
    folder = load(made.place)
    itself = unfolded(folder, made.choice.engine)
    quick = load_prepared(folder, made.choice, read(made.form.folder), "picture")
    one = tensors_of(itself.infer(sample(FRAME)).findings)
    other = tensors_of(quick.infer(sample(FRAME)).findings)
    np.testing.assert_array_equal(one["y"], other["y"])
    assert quick.last is not None
    assert quick.last["picture"].dtype == np.uint8
    floats = quick.unfolded(quick.last)
    np.testing.assert_array_equal(quick.run(floats)["y"], one["y"])
    quick.close()


def test_start_from_a_form_looks_into_no_network(made: Made) -> None:
    """What finds and cuts is not even imported on the way to the first result."""
    engine, threads = made.choice.engine, made.choice.threads
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from edge_agent.inference.engines.engine import EngineChoice\n"
        "from edge_agent.inference.prepared.artifact import read\n"
        "from edge_agent.models.manifest import load\n"
        "from edge_agent.inference.prepared.fallback import load_prepared\n"
        "from edge_agent.core.types import Sample\n"
        f"choice = EngineChoice({engine!r}, threads={threads})\n"
        f"form = read({made.form.folder!r})\n"
        f"model = load_prepared(load(Path({str(made.place)!r})), choice, form, 'picture')\n"
        "model.infer(Sample(np.zeros((9, 9, 3), np.uint8), 0, 0, 0.0))\n"
        "late = ('onnx', 'edge_agent.inference.folding.find')\n"
        "print([name for name in late if name in sys.modules], model.last['picture'].dtype)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    assert done.stdout.strip() == "[] uint8"


@pytest.mark.parametrize("made", ["onnxruntime"], indirect=True)
def test_damaged_form_of_a_folded_network(made: Made, tmp_path: Path) -> None:
    """Where weights of the form are damaged the model itself takes the same bytes.

    OpenVINO's are looked at before there is an engine: then the model is loaded in the usual way.
    """
    folder = load(made.place)
    shutil.copytree(made.form.folder, tmp_path / made.form.key)
    form = read(str(tmp_path / made.form.key))
    weights = Path(form.path(WEIGHTS))
    damage(weights, weights.stat().st_size // 2)
    quick = load_prepared(folder, made.choice, form, "picture")
    assert isinstance(quick.engine, FallbackEngine)
    found = tensors_of(quick.infer(sample(FRAME)).findings)
    assert quick.engine.damaged is not None
    expected = tensors_of(unfolded(folder, "onnxruntime").infer(sample(FRAME)).findings)
    np.testing.assert_array_equal(found["y"], expected["y"])
    quick.close()


# --- the reference models

PICTURE_MODELS: dict[str, tuple[InputSpec, str]] = {
    "face_rfb320_int8.onnx": (SPECS["as most do"], "faces_16.jpg"),
    "coco_yolox_nano_int8_degraded.onnx": (
        InputSpec(color="bgr", resize="letterbox", anchor="top-left"),
        "dog.jpg",
    ),
}


@needs_assets
@pytest.mark.assets
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PICTURE_MODELS)
def test_reference_models_give_the_same_numbers(name: str, engine: EngineName) -> None:
    """Eight-bit models of the world outside, folded: bit for bit what they give as they are."""
    spec, media = PICTURE_MODELS[name]
    frame = cv2.imread(str(ASSETS / "media" / media))
    assert frame is not None
    network = ASSETS / "models" / name
    cut = find(network)
    assert not isinstance(cut, str), cut
    itself = open_engine(choice_of(engine), network, nothing_open)
    folded = open_engine(choice_of(engine), network, nothing_open, cut)
    assert folded.fold is not None
    floats, _ = build_preprocessor(spec, itself.inputs, "picture")(frame)
    steps, _ = build_preprocessor(spec, folded.inputs, "picture", folded.fold)(frame)
    expected, found = itself.infer(floats), folded.infer(steps)
    for output, array in expected.items():
        np.testing.assert_array_equal(found[output], array)


@needs_assets
@pytest.mark.assets
@pytest.mark.parametrize(
    ("name", "spec", "usual"),
    [
        (
            "imagenet_mobilenetv2_int8.onnx",
            InputSpec(layout="nhwc"),
            lambda picture: picture,
        ),
        (
            "vww_person_int8.onnx",
            InputSpec(layout="nhwc", mean=128.0, interpolation="area"),
            lambda picture: (picture.astype(np.int16) - 128).astype(np.int8),
        ),
    ],
)
def test_models_of_bytes_get_them_as_by_hand(
    name: str, spec: InputSpec, usual: Callable[[Any], NDArray[Any]]
) -> None:
    """Models that take bytes anyway are not changed; what they get is what a plain script gives.

    Of a stream, whose pictures may be resized in a quicker way, it is that to one step.
    """
    network = ASSETS / "models" / name
    assert isinstance(find(network), str)
    frame = cv2.imread(str(ASSETS / "media" / "cat.bmp"))
    assert frame is not None
    engine = open_engine(choice_of("onnxruntime"), network, fixed_shapes(spec, "picture"))
    (tensor,) = engine.inputs
    size = (int(tensor.shape[2] or 0), int(tensor.shape[1] or 0))
    method = cv2.INTER_AREA if spec.interpolation == "area" else cv2.INTER_LINEAR
    by_hand = usual(cv2.cvtColor(cv2.resize(frame, size, interpolation=method), cv2.COLOR_BGR2RGB))
    made, _ = build_preprocessor(spec, engine.inputs, "picture")(frame)
    np.testing.assert_array_equal(made[tensor.name][0], by_hand)
    made, _ = build_preprocessor(spec, engine.inputs, "picture")(frame, stream=True)
    apart = made[tensor.name][0].astype(np.int16) - by_hand
    assert np.abs(apart).max() <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_bundled_detector_finds_the_same(engine: EngineName) -> None:
    """The bundled eight-bit detector is folded, and finds the same in the bundled clip."""
    folder = load(CHECKOUT / "models" / "parts-inspection")
    (path,) = (CHECKOUT / "models" / "media").glob("*.mp4")
    clip = Video(str(path), "the bundled clip", FILE)
    itself = unfolded(folder, engine)
    folded = load_model(folder, [choice_of(engine)], "picture")
    assert folded.engine.fold is not None
    seen = 0
    for _ in range(3):
        assert clip.advance()
        frame = clip.picture()
        one, other = (each.infer(sample(frame)).findings for each in (itself, folded))
        assert isinstance(one, Detections)
        assert isinstance(other, Detections)
        assert one.labels == other.labels
        np.testing.assert_array_equal(one.boxes, other.boxes)
        np.testing.assert_array_equal(one.scores, other.scores)
        seen += len(one)
    assert seen
