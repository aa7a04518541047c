"""One suite over both engines, and what each has of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import EngineError
from edge_agent.core.types import TensorSpec
from edge_agent.inference.engines.engine import Engine, EngineChoice, native_reason
from edge_agent.inference.engines.registry import EngineName, engine_words, open_engine
from edge_agent.inference.model import load_model
from edge_agent.models.manifest import load as load_manifest
from tests.helpers.small_models import write_manifest
from tests.helpers.support import ASSETS, CHECKOUT, needs_assets
from tests.helpers.tiny_networks import convolution, node, save_onnx, times_two, to_ir

ENGINES: tuple[EngineName, ...] = ("onnxruntime", "openvino")

Open = Callable[..., Engine]


def nothing_open(_: tuple[TensorSpec, ...]) -> Mapping[str, tuple[int, ...]]:
    """Fix no shapes."""
    return {}


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> EngineName:
    """Each engine in turn."""
    found: EngineName = request.param
    return found


@pytest.fixture
def load(name: EngineName) -> Open:
    """Open a network on that engine's CPU."""

    def opened(
        network: Path, shapes: Mapping[str, tuple[int, ...]] | None = None, **choice: Any
    ) -> Engine:
        return open_engine(EngineChoice(name, **choice), network, lambda _: shapes or {})

    return opened


def test_label_names_what_serves(load: Open, name: EngineName, tmp_path: Path) -> None:
    """The label is the engine and the device or provider that the session really has."""
    label = load(times_two(tmp_path / "n.onnx")).label
    assert (
        label
        == {"onnxruntime": "onnxruntime:CPUExecutionProvider", "openvino": "openvino:CPU"}[name]
    )


def test_convolution_gives_the_numbers(load: Open, tmp_path: Path) -> None:
    """A 1x1 convolution equals the matrix product that it is."""
    path, weight, bias = convolution(tmp_path / "n.onnx")
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8), np.float32)
    engine = load(path)
    assert [str(spec) for spec in engine.inputs] == ["x float32[1, 3, 8, 8]"]
    assert [str(spec) for spec in engine.outputs] == ["y float32[1, 4, 8, 8]"]
    expected = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], x) + bias[None, :, None, None]
    np.testing.assert_allclose(engine.infer({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shown", [(), ("padded",)], ids=["alone", "beside its padding"])
def test_zeros_before_a_pooling_are_numbers(
    load: Open, tmp_path: Path, shown: tuple[str, ...]
) -> None:
    """As YOLOv3-tiny has them; the padding of a MaxPool itself is less than any number."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [
            node("Pad", ["x", "sides", "nought"], ["padded"]),
            node("MaxPool", ["padded"], ["y"], kernel_shape=[2, 2], strides=[1, 1]),
        ],
        [("x", "float32", (1, 1, 3, 3))],
        [("y", "float32", (1, 1, 3, 3)), *((name, "float32", (1, 1, 4, 4)) for name in shown)],
        {
            "sides": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64),
            "nought": np.array(0, np.float32),
        },
    )
    below = np.full((1, 1, 3, 3), -1, np.float32)
    expected = [[-1, -1, 0], [-1, -1, 0], [0, 0, 0]]
    np.testing.assert_array_equal(load(path).infer({"x": below})["y"][0, 0], expected)


def test_external_data(load: Open, tmp_path: Path) -> None:
    """Weights in a file beside the network are found by the path it was loaded from."""
    plain, _, _ = convolution(tmp_path / "plain.onnx")
    split, _, _ = convolution(tmp_path / "split.onnx", external="split.data")
    assert (tmp_path / "split.data").stat().st_size >= 16 * 4
    x = np.ones((1, 3, 8, 8), np.float32)
    first, second = load(plain).infer({"x": x})["y"], load(split).infer({"x": x})["y"]
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
)
def test_types_go_in_and_out_as_they_are(load: Open, dtype: str, tmp_path: Path) -> None:
    """Inputs and outputs keep the network's own type, nothing is converted on the way."""
    engine = load(times_two(tmp_path / "n.onnx", dtype))
    assert engine.inputs[0].dtype == engine.outputs[0].dtype == dtype
    result = engine.infer({"x": np.array([[1, 2, 30]], dtype)})["y"]
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.array([[2, 4, 60]], dtype))


def test_several_inputs_and_outputs(load: Open, tmp_path: Path) -> None:
    """Inputs and outputs go by name, a scalar among them, whatever their order."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [
            node("Add", ["a", "b"], ["sum"]),
            node("Cast", ["factor"], ["wide"], to=1),
            node("Mul", ["sum", "wide"], ["scaled"]),
        ],
        [
            ("a", "float32", (2, 3)),
            ("b", "float32", (2, 3)),
            ("factor", "int64", ()),
        ],
        [("scaled", "float32", (2, 3)), ("sum", "float32", (2, 3))],
    )
    engine = load(path)
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    results = engine.infer({"factor": np.array(10, np.int64), "b": b, "a": a})
    assert [spec.name for spec in engine.outputs] == ["scaled", "sum"]
    np.testing.assert_array_equal(results["sum"], a + 1)
    np.testing.assert_array_equal(results["scaled"], (a + 1) * 10)


def test_pictures_with_channels_last(load: Open, tmp_path: Path) -> None:
    """A network that takes NHWC bytes is fed them without a copy in another order."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [
            node("Cast", ["x"], ["wide"], to=1),
            node("Transpose", ["wide"], ["first"], perm=[0, 3, 1, 2]),
            node("GlobalAveragePool", ["first"], ["y"]),
        ],
        [("x", "uint8", (1, 4, 6, 3))],
        [("y", "float32", (1, 3, 1, 1))],
    )
    x = np.zeros((1, 4, 6, 3), np.uint8)
    x[..., 1], x[..., 2] = 100, 200
    result = load(path).infer({"x": x})["y"]
    np.testing.assert_allclose(result.reshape(3), [0, 100, 200], atol=1e-4)


def test_open_sizes_are_fixed(load: Open, tmp_path: Path) -> None:
    """Sizes that the network leaves open are those that the caller fixes."""
    path = times_two(tmp_path / "n.onnx", shape=("batch", 3))
    engine = load(path, {"x": (4, 3)})
    assert engine.inputs[0].shape == (4, 3)
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(engine.infer({"x": x})["y"], 2 * x)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({}, ["x float32[?, 3]", "leaves sizes open", "[input]"]),
        ({"x": (2, 4)}, ["x float32[?, 3]", "[2, 4]"]),
        ({"x": (2,)}, ["x float32[?, 3]", "[2]"]),
    ],
)
def test_open_sizes_that_stay_open_or_do_not_fit(
    load: Open, shapes: Mapping[str, tuple[int, ...]], words: list[str], tmp_path: Path
) -> None:
    """An input that stays open, or gets a shape it cannot have, is an error by name."""
    path = times_two(tmp_path / "n.onnx", shape=("batch", 3))
    with pytest.raises(EngineError) as caught:
        load(path, shapes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_initializers_are_not_inputs(
    load: Open, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A network that lists its weights as inputs needs only the others, and nothing is printed."""
    path, _, _ = convolution(tmp_path / "n.onnx", weights_are_inputs=True)
    engine = load(path)
    assert [spec.name for spec in engine.inputs] == ["x"]
    engine.infer({"x": np.ones((1, 3, 8, 8), np.float32)})
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_output_keeps_its_declared_name(load: Open, tmp_path: Path) -> None:
    """An output that optimization makes one with another tensor keeps the name it was given."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [node("Relu", ["x"], ["a_hidden"]), node("Identity", ["a_hidden"], ["the_output"])],
        [("x", "float32", (1, 3))],
        [("the_output", "float32", (1, 3))],
    )
    engine = load(path)
    assert [spec.name for spec in engine.outputs] == ["the_output"]
    assert list(engine.infer({"x": np.ones((1, 3), np.float32)})) == ["the_output"]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, ["['x']", "[]"]),
        ({"z": np.ones((1, 3), np.float32)}, ["['x']", "['z']"]),
        ({n: np.ones((1, 3), np.float32) for n in "xz"}, ["['x']", "['x', 'z']"]),
        ({"x": np.ones((1, 4), np.float32)}, ["x float32[1, 3]", "float32[1, 4]"]),
        ({"x": np.ones(3, np.float32)}, ["x float32[1, 3]", "float32[3]"]),
        ({"x": np.ones((1, 3), np.uint8)}, ["x float32[1, 3]", "uint8[1, 3]"]),
    ],
)
def test_wrong_inputs(
    load: Open, tensors: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    """A missing, unknown, misshapen or mistyped input is an error that says expected and found."""
    engine = load(times_two(tmp_path / "n.onnx"))
    with pytest.raises(EngineError) as caught:
        engine.infer(tensors)
    assert all(word in str(caught.value) for word in words), caught.value


def test_results_belong_to_the_caller(load: Open, tmp_path: Path) -> None:
    """The next inference does not write over what the last one returned."""
    engine = load(times_two(tmp_path / "n.onnx"))
    first = engine.infer({"x": np.ones((1, 3), np.float32)})["y"]
    engine.infer({"x": np.full((1, 3), 9, np.float32)})
    np.testing.assert_array_equal(first, np.full((1, 3), 2, np.float32))
    assert first.flags.writeable


def test_input_may_be_read_only(load: Open, tmp_path: Path) -> None:
    """Arrays in records are never written to, so an engine takes them locked too."""
    x = np.ones((1, 3), np.float32)
    x.flags.writeable = False
    result = load(times_two(tmp_path / "n.onnx")).infer({"x": x})["y"]
    np.testing.assert_array_equal(result, np.full((1, 3), 2, np.float32))


def test_close_twice_and_infer_after(load: Open, tmp_path: Path) -> None:
    """Closing is idempotent; inferring after it is an error, not a crash."""
    engine = load(times_two(tmp_path / "n.onnx"))
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.infer({"x": np.ones((1, 3), np.float32)})


def test_two_threads_at_once(load: Open, tmp_path: Path) -> None:
    """Two lanes on one network each get the results of their own inputs."""
    engine = load(convolution(tmp_path / "n.onnx")[0], lanes=2)
    inputs = [np.full((1, 3, 8, 8), value, np.float32) for value in (1, -5)]
    expected = [engine.infer({"x": x})["y"] for x in inputs]
    together = threading.Barrier(2, timeout=30)

    def work(lane: int) -> int:
        together.wait()
        return sum(
            np.array_equal(engine.infer({"x": inputs[lane]})["y"], expected[lane])
            for _ in range(500)
        )

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [500, 500]


def test_one_is_built_while_another_infers(load: Open, tmp_path: Path) -> None:
    """Building a network, as for a new model, does not disturb one that serves."""
    path = convolution(tmp_path / "n.onnx")[0]
    serving = load(path)
    x = np.ones((1, 3, 8, 8), np.float32)
    expected = serving.infer({"x": x})["y"]
    built = threading.Event()

    def serve() -> int:
        wrong = 0
        while not built.is_set():
            wrong += not np.array_equal(serving.infer({"x": x})["y"], expected)
        return wrong

    with ThreadPoolExecutor(1) as pool:
        wrong = pool.submit(serve)
        try:
            others = [load(path).infer({"x": x})["y"] for _ in range(3)]
        finally:
            built.set()
        assert wrong.result(timeout=30) == 0
    for other in others:
        np.testing.assert_array_equal(other, expected)


def test_closing_while_another_thread_infers(load: Open, tmp_path: Path) -> None:
    """A call that runs while the engine is closed ends with a result or an error, not a crash."""
    engine = load(convolution(tmp_path / "n.onnx")[0])
    x = np.ones((1, 3, 8, 8), np.float32)
    expected = engine.infer({"x": x})["y"]
    started = threading.Event()

    def serve() -> bool:
        right = True
        try:
            while right:
                right = np.array_equal(engine.infer({"x": x})["y"], expected)
                started.set()
        except EngineError as problem:
            return "closed" in str(problem)
        return right

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(serve)
        assert started.wait(30)
        engine.close()
        assert ended.result(timeout=30)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing"])
def test_file_that_cannot_be_read(load: Open, damage: str, tmp_path: Path) -> None:
    """A damaged or missing file is one line with the file's name, without its folders."""
    path = convolution(tmp_path / "n.onnx")[0]
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-40], "garbage": b"\xff" * 500, "missing": b""}[damage])
    if damage == "missing":
        path.unlink()
    with pytest.raises(EngineError) as caught:
        load(path)
    message = str(caught.value)
    assert "n.onnx" in message
    assert "\n" not in message
    assert str(tmp_path) not in message
    assert "Exception from" not in message


def test_the_reason_of_openvino_may_end_in_a_colon() -> None:
    """An IR without the set of an operation had been refused with a line of OpenVINO's sources."""
    words = "Exception from src/core.cpp:84:\nException from src/xml.cpp:1316:\nNo such opset: \n\n"
    assert native_reason(RuntimeError(words), Path("n.xml")) == "No such opset"


def test_custom_operator(load: Open, tmp_path: Path) -> None:
    """A network with an operator of no known library is refused by the engine too."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [node("Magic", ["x"], ["y"], domain="com.example")],
        [("x", "float32", (1, 3))],
        [("y", "float32", (1, 3))],
        domains=["com.example"],
    )
    with pytest.raises(EngineError, match="Magic"):
        load(path)


def test_an_engine_that_refuses_is_named_once(name: EngineName, tmp_path: Path) -> None:
    """Why no engine can run a model begins with each engine's name, and does not repeat it."""
    save_onnx(
        tmp_path / "model.onnx",
        [node("Conv", ["x", "w"], ["y"])],
        [("x", "float32", (1, 3, 8, 8))],
        [("y", "float32", (1, 4, 6, 6))],
        {"w": np.zeros((4, 7, 3, 3), np.float32)},
    )
    write_manifest(tmp_path, "1", "raw")
    with pytest.raises(EngineError, match="no engine can run it: ") as caught:
        load_model(load_manifest(tmp_path), [EngineChoice(name)], "picture", checked=True)
    assert str(caught.value).count(f"{name}:CPU") == 1


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ({"device": "XYZ"}, "XYZ"),
        ({"options": {"NO_SUCH_OPTION": 1}}, "NO_SUCH_OPTION"),
        ({"options": {"session.no_such_option": 1}}, "session.no_such_option"),
        ({"precision": "f17"}, "f17"),
    ],
)
def test_profile_that_does_not_fit_the_engine(
    load: Open, choice: dict[str, Any], word: str, tmp_path: Path
) -> None:
    """A device, option or precision that the engine does not have is an error that names it."""
    with pytest.raises(EngineError, match=word) as caught:
        load(times_two(tmp_path / "n.onnx"), **choice)
    assert "\n" not in str(caught.value)


def test_ir_on_openvino_equals_onnx(tmp_path: Path) -> None:
    """An IR gives the numbers of the ONNX file it was made of, under the same names."""
    path, _, _ = convolution(tmp_path / "n.onnx")
    xml = to_ir(path, tmp_path / "n.xml")
    x = np.random.default_rng(2).standard_normal((1, 3, 8, 8), np.float32)
    engines = [open_engine(EngineChoice("openvino"), file, nothing_open) for file in (path, xml)]
    assert engines[0].inputs == engines[1].inputs
    assert engines[0].outputs == engines[1].outputs
    results = [engine.infer({"x": x})["y"] for engine in engines]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6, atol=1e-6)


def test_ir_is_refused_by_onnx_runtime(tmp_path: Path) -> None:
    """ONNX Runtime says that it does not read IR, instead of failing to parse it."""
    xml = to_ir(convolution(tmp_path / "n.onnx")[0], tmp_path / "n.xml")
    with pytest.raises(EngineError, match=r"reads \.onnx files only, found n\.xml"):
        open_engine(EngineChoice("onnxruntime"), xml, nothing_open)


def test_openvino_gets_streams_and_threads_of_the_choice(tmp_path: Path) -> None:
    """Two lanes of one thread are two networks of one stream each, in full precision."""
    choice = EngineChoice("openvino", lanes=2, threads=1)
    engine: Any = open_engine(choice, times_two(tmp_path / "n.onnx"), nothing_open)
    one, other = next(engine._compiled), next(engine._compiled)
    assert one is not other
    for compiled in (one, other):
        assert compiled.get_property("NUM_STREAMS") == 1
        assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"


def test_openvino_auto_names_the_device_that_serves(tmp_path: Path) -> None:
    """Behind AUTO the label is the device that it chose."""
    choice = EngineChoice("openvino", device="AUTO:CPU")
    engine = open_engine(choice, times_two(tmp_path / "n.onnx"), nothing_open)
    assert engine.label == "openvino:CPU"


def test_onnx_runtime_takes_its_options(tmp_path: Path) -> None:
    """The options that a profile may give are taken by the session."""
    choice = EngineChoice(
        "onnxruntime",
        options={
            "graph_optimization_level": "basic",
            "enable_cpu_mem_arena": False,
            "session.intra_op.allow_spinning": False,
        },
    )
    engine: Any = open_engine(choice, times_two(tmp_path / "n.onnx"), nothing_open)
    options = engine._session.get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert not options.enable_cpu_mem_arena


def test_engines_report_to_nobody(tmp_path: Path) -> None:
    """An engine that is imported and used leaves no trace in the user's home and starts nothing.

    OpenVINO's package for telemetry, which does both, is not loaded by any way in.
    """
    network = times_two(tmp_path / "model.onnx")
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from edge_agent.inference.engines.engine import EngineChoice\n"
        "from edge_agent.inference.engines.registry import open_engine\n"
        "engine = open_engine(EngineChoice('openvino'), Path(sys.argv[1]), lambda _: {})\n"
        "assert sys.modules['openvino_telemetry'] is None\n"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry.')]\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'])\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    said = subprocess.run(
        [sys.executable, "-c", program, str(network)],
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stdout) == (0, "1\n"), said.stderr
    assert list(home.iterdir()) == []


def test_engines_are_not_imported_before_they_are_used() -> None:
    """Looking at profiles, facts and model files loads no engine and no parser of models."""
    code = (
        "import sys, edge_agent.inference.engines.registry, edge_agent.inference.engines.probe, "
        "edge_agent.config.device_profile, edge_agent.device.hardware, "
        "edge_agent.models.files.check_onnx, edge_agent.models.files.metadata; "
        "print([m for m in ('onnxruntime', 'openvino', 'onnx', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@needs_assets
@pytest.mark.parametrize(
    ("file", "tolerance"),
    [
        ("face_rfb320_fp32", 1e-4),
        ("coco_yolox_nano_fp32", 1e-2),
        ("imagenet_mobilenetv2_fp32", 1e-4),
        ("imagenet_mobilenetv2_int8", 2),
        ("kws_dscnn_int8", 2),
        ("anomaly_toycar_ae_fp32", 1e-2),
        ("vad_silero_16k_openvino", 1e-4),
    ],
)
def test_reference_tensors(load: Open, file: str, tolerance: float) -> None:
    """Real networks, FP32 and INT8, give their reference outputs on each engine."""
    with np.load(ASSETS / "refs" / f"{file}.npz") as arrays:
        given = {key[4:]: arrays[key] for key in arrays if key.startswith("in::")}
        expected = {key[5:]: arrays[key] for key in arrays if key.startswith("out::")}
    shapes = {key: array.shape for key, array in given.items()}
    results = load(ASSETS / "models" / f"{file}.onnx", shapes).infer(given)
    assert set(results) == set(expected)
    for key, array in expected.items():
        difference = np.abs(results[key].astype(np.float64) - array.astype(np.float64))
        assert difference.max() <= tolerance, key


def test_words_for_people_have_the_short_name_of_an_engine() -> None:
    """Payloads keep the label; a sentence has it as settings and profiles write it."""
    said = "0.04 ms beside 0.05 ms of onnxruntime:CPUExecutionProvider, openvino:CPU failed"
    assert engine_words(said) == "0.04 ms beside 0.05 ms of onnxruntime:CPU, openvino:CPU failed"
    assert engine_words("onnxruntime:CUDAExecutionProvider") == "onnxruntime:CUDA"
