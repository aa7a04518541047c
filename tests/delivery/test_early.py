"""A model that runs while it is still arriving: cut into stages, built as its weights come."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import EngineError, ModelError
from edge_agent.core.types import Tensors, TensorSpec
from edge_agent.delivery.early.follow import unpack_early
from edge_agent.delivery.early.onnx_stream import PROGRESS, GrowingFile, OnnxFile, UnfitError
from edge_agent.delivery.early.stages import Cutter, StagedNetwork
from edge_agent.delivery.trial.process import TrialProcess, run_trial
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.models.files.protobuf import DamagedError
from edge_agent.models.manifest import load
from edge_agent.models.packages.build import Package, make
from edge_agent.models.store.incoming import Incoming
from edge_agent.models.store.store import Store
from tests.helpers.push import LABELS, PICTURE, golden, manifest
from tests.helpers.tiny_networks import node, save_onnx

ORT = EngineChoice("onnxruntime", threads=1)
PATIENCE = 60.0


def residual(path: Path, *, quantized: bool = False, blocks: int = 6, seed: int = 1) -> Path:
    """Save a classifier of pictures: 3 by 3 convolutions of 128 channels, in residual pairs.

    A float32 block has 1.2 MB of weights, one in eight bits a quarter of that.
    """
    random = np.random.default_rng(seed)
    nodes: list[Any] = []
    weights: dict[str, NDArray[Any]] = {
        "scale": np.array(0.05, np.float32),
        "zero": np.array(128, np.uint8),
    }

    def eight_bits(name: str) -> str:
        """Pass a tensor through eight bits, where the network is quantized."""
        if not quantized:
            return name
        nodes.append(node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]))
        nodes.append(node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [f"{name}_d"]))
        return f"{name}_d"

    def convolution(name: str, takes: str, channels: int = 128) -> str:
        shape = (128, channels, 3, 3)
        weight = f"{name}_w"
        if quantized:
            weights[weight] = random.integers(-63, 63, shape, np.int8)
            weights[f"{name}_s"] = np.full(128, 4e-4, np.float32)
            weights[f"{name}_z"] = np.zeros(128, np.int8)
            names = [weight, f"{name}_s", f"{name}_z"]
            weight = f"{name}_wd"
            nodes.append(node("DequantizeLinear", names, [weight], axis=0))
        else:
            weights[weight] = random.standard_normal(shape, np.float32) * np.float32(0.02)
        nodes.append(node("Conv", [takes, weight], [name], pads=[1, 1, 1, 1]))
        return name

    at = eight_bits(convolution("stem", eight_bits("images"), 3))
    for block in range(blocks):
        nodes.append(node("Relu", [convolution(f"one{block}", at)], [f"half{block}"]))
        other = eight_bits(convolution(f"two{block}", eight_bits(f"half{block}")))
        nodes.append(node("Add", [other, at], [f"sum{block}"]))
        nodes.append(node("Relu", [f"sum{block}"], [f"out{block}"]))
        at = eight_bits(f"out{block}")
    nodes.append(node("GlobalAveragePool", [at], ["pooled"]))
    nodes.append(node("Flatten", ["pooled"], ["flat"]))
    weights["head"] = random.standard_normal((128, 3), np.float32)
    nodes.append(node("MatMul", ["flat", "head"], ["logits"]))
    nodes.append(node("Softmax", ["logits"], ["scores"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_onnx(
        path, nodes, [("images", "float32", PICTURE)], [("scores", "float32", (1, 3))], weights
    )


def plain(path: Path, count: int = 6) -> Path:
    """Save a chain of products with an activation between each two: a network without branches."""
    random = np.random.default_rng(3)
    nodes, weights = [], {}
    for index in range(count):
        weights[f"w{index}"] = random.standard_normal((512, 512), np.float32) * np.float32(0.04)
        nodes.append(node("MatMul", [f"x{index}", f"w{index}"], [f"m{index}"]))
        nodes.append(node("Relu", [f"m{index}"], [f"x{index + 1}"]))
    return save_onnx(
        path,
        nodes,
        [("x0", "float32", (1, 512))],
        [(f"x{count}", "float32", (1, 512))],
        weights,
    )


class Filling:
    """A file that comes into being piece by piece, as a transfer's does."""

    def __init__(self, content: bytes, place: Path) -> None:
        self.content = content
        self._file = os.open(place, os.O_RDWR | os.O_CREAT)
        os.truncate(self._file, len(content))
        self._progress, self._reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(self._progress, [PROGRESS.pack(0, False)], [self._file])
        self.data = GrowingFile(self._reader)
        self._at = 0

    def bring(self, stop: int, *, tail: int | None = None) -> None:
        """Write the bytes up to here, perhaps those at the end, and say so."""
        os.pwrite(self._file, self.content[self._at : stop], self._at)
        self._at = max(self._at, stop)
        if tail is not None:
            os.pwrite(self._file, self.content[tail:], tail)
        self._progress.send(PROGRESS.pack(self._at, tail is not None))

    def close(self) -> None:
        os.close(self._file)
        self._progress.close()
        self._reader.close()


@pytest.fixture
def filling(tmp_path: Path) -> Iterator[Callable[[bytes], Filling]]:
    """Give files that fill; the descriptors are closed afterward."""
    made: list[Filling] = []

    def start(content: bytes) -> Filling:
        made.append(Filling(content, tmp_path / f"filling-{len(made)}"))
        return made[-1]

    yield start
    for each in made:
        each.close()


def wait(look: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, f"never: {what}"
        os.sched_yield()


def whole(path: Path, tensors: Tensors) -> list[NDArray[Any]]:
    """Run the whole network, with the same options."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    found: list[NDArray[Any]] = ort.InferenceSession(path, options).run(None, dict(tensors))
    return found


def inputs_of(specs: tuple[TensorSpec, ...]) -> dict[str, NDArray[Any]]:
    """Make inputs of noise."""
    random = np.random.default_rng(5)
    return {
        spec.name: random.standard_normal([n or 1 for n in spec.shape]).astype(spec.dtype)
        for spec in specs
    }


# The network


@pytest.mark.parametrize("kind", ["residual in eight bits", "residual", "plain"])
def test_stages_run_before_the_last_byte_is_there(
    tmp_path: Path, filling: Callable[[bytes], Filling], kind: str
) -> None:
    """Stages are built while a fifth is missing, and give the whole network's bits at the end.

    What is missing is zeros in the file until the moment it is said to be there.
    """
    path = tmp_path / "model.onnx"
    if kind == "plain":
        plain(path)
    else:
        residual(path, quantized="eight" in kind, blocks=10 if "eight" in kind else 3)
    content = path.read_bytes()
    file = filling(content)
    network: list[OnnxFile] = []
    engines: list[StagedNetwork] = []
    outputs: list[dict[str, NDArray[Any]]] = []

    def follow() -> None:
        network.append(OnnxFile(file.data, 0, len(content)))
        file.data.wish(*network[0].tail)
        engines.append(StagedNetwork(file.data, network[0], ORT))
        outputs.append(engines[0].infer(inputs_of)[1])

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    file.bring(len(content) // 4)
    wait(lambda: network, "the beginning")
    assert not engines, "what goes in and out stands at the end"
    file.bring(len(content) // 4, tail=network[0].tail[0])
    wait(lambda: engines, "the graph")
    file.bring(len(content) * 4 // 5, tail=network[0].tail[0])
    # A residual network in float32 is cut only where convolutions do not take a sum in.
    if kind != "residual":
        wait(lambda: engines[0].built >= 1, "a stage")
    assert not outputs
    file.bring(len(content), tail=network[0].tail[0])
    follower.join(PATIENCE)
    (found,) = outputs
    (engine,) = engines
    assert engine.built >= (1 if kind == "residual" else 3)
    (expected,) = whole(path, inputs_of(engine.inputs))
    assert found[engine.outputs[0].name].tobytes() == expected.tobytes()


def test_cuts_do_not_part_what_belongs_together(
    tmp_path: Path, filling: Callable[[bytes], Filling]
) -> None:
    """In eight bits every tensor that is handed over is one of eight bits."""
    content = residual(tmp_path / "model.onnx", quantized=True, blocks=10).read_bytes()
    file = filling(content)
    file.bring(len(content), tail=0)
    network = OnnxFile(file.data, 0, len(content))
    nodes, ends = network.nodes(), network.ends()
    cutter = Cutter(nodes, ends.inputs, ends.outputs)
    here: dict[str, int] = {}
    stages = []
    for tensor in network.tensors(ends):
        here[tensor.name] = tensor.span[1] - tensor.span[0]
        while (stage := cutter.next(here, 0, len(content))) is not None:
            stages.append(stage)
    assert cutter.done
    assert len(stages) >= 3
    for stage in stages[:-1]:
        assert all(name.endswith("_q") for name in stage.outputs)
    assert stages[-1].outputs == ("scores",)
    # Each operation is in one stage; what undoes eight bits goes with whoever needs it.
    own = [n for stage in stages for n in stage.nodes if nodes[n].operator != "DequantizeLinear"]
    assert sorted(own) == [n for n, each in enumerate(nodes) if each.operator != "DequantizeLinear"]


def unfit(tmp_path: Path, kind: str) -> bytes:
    """Make a file that cannot be run while it arrives."""
    path = tmp_path / "model.onnx"
    weights = {"w": np.ones((4, 4), np.float32)}
    how: dict[str, Any] = {}
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    if kind == "external data":
        how["external"] = "weights.bin"
    elif kind == "weights among the inputs":
        how["weights_are_inputs"] = True
    elif kind == "an operator of its own":
        nodes.append(node("Magic", ["y"], ["z"], domain="mine"))
        how["domains"] = ["mine"]
    elif kind == "no weights":
        nodes, weights = [node("Relu", ["x"], ["y"])], {}
    elif kind == "a branch":
        from onnx import helper

        inner = helper.make_graph(
            [node("Identity", ["w"], ["inner"])],
            "branch",
            [],
            [helper.make_tensor_value_info("inner", 1, [4, 4])],
        )
        nodes.insert(0, node("If", ["yes"], ["b"], then_branch=inner, else_branch=inner))
        weights["yes"] = np.array(True)
    save_onnx(path, nodes, [("x", "float32", (1, 4))], [("y", "float32", (1, 4))], weights, **how)
    content = path.read_bytes()
    if kind == "the beginning of a file":
        return content[: len(content) // 2]
    return b"\x07" * 5000 if kind == "something else" else content


@pytest.mark.parametrize(
    "kind",
    [
        "external data",
        "weights among the inputs",
        "an operator of its own",
        "no weights",
        "a branch",
        "the beginning of a file",
        "something else",
    ],
)
def test_what_does_not_fit_is_named_and_waits(
    tmp_path: Path, filling: Callable[[bytes], Filling], kind: str
) -> None:
    """A network that cannot be run while it arrives is told apart, whatever is the reason."""
    content = unfit(tmp_path, kind)
    file = filling(content)
    file.bring(len(content), tail=0)

    def run() -> None:
        network = OnnxFile(file.data, 0, len(content))
        StagedNetwork(file.data, network, ORT).infer(inputs_of)

    with pytest.raises((UnfitError, EngineError, DamagedError)):
        run()


def test_weights_that_look_like_an_end_are_found_out(
    tmp_path: Path, filling: Callable[[bytes], Filling]
) -> None:
    """Bytes among the weights that pass for what the network takes do not count as that."""
    from onnx import TensorProto, helper

    false = helper.make_tensor_value_info("false", TensorProto.FLOAT, [1, 9]).SerializeToString()
    start = bytes([11 << 3 | 2, len(false)]) + false
    fill = 4096 - len(start) - 3
    # A remark that reaches from there to the end of the weights.
    disguise = start + bytes([10 << 3 | 2, fill & 0x7F | 0x80, fill >> 7]) + bytes(fill)
    assert len(disguise) == 4096
    weights = {"w": np.frombuffer(disguise, np.int8).reshape(64, 64)}
    path = save_onnx(
        tmp_path / "model.onnx",
        [node("Cast", ["w"], ["f"], to=1), node("MatMul", ["x", "f"], ["y"])],
        [("x", "float32", (1, 64))],
        [("y", "float32", (1, 64))],
        weights,
    )
    content = path.read_bytes()
    file = filling(content)
    file.bring(len(content), tail=0)
    network = OnnxFile(file.data, 0, len(content))
    network.nodes()
    ends = network.ends()
    assert list(ends.inputs) == ["false", "x"], "the disguise has worked so far"
    with pytest.raises(UnfitError, match="another order"):
        list(network.tensors(ends))


# The package


def folder_of(path: Path, version: str = "2", **how: Any) -> Path:
    """Make a model folder of a residual network."""
    residual(path / "model.onnx", **how)
    (path / "model.toml").write_text(manifest(version))
    return path


def stream_of(package: Package) -> bytes:
    """Give all that is sent of a package."""
    return b"".join(package.block(index) for index in range(len(package.blocks)))


def test_what_comes_before_the_network_is_unpacked(
    tmp_path: Path, filling: Callable[[bytes], Filling]
) -> None:
    """Manifest and labels are there when the network begins, and where it lies is known."""
    model = folder_of(tmp_path / "model")
    content = stream_of(make(load(model)))
    file = filling(content)
    begin = content.index((model / "model.onnx").read_bytes()[:100])
    file.bring(begin)
    early = tmp_path / "early"
    early.mkdir()
    first, last = unpack_early(file.data, early)
    assert content[first:last] == (model / "model.onnx").read_bytes()
    assert load(early).labels == tuple(LABELS)


def test_only_what_was_checked_counts_as_there(tmp_path: Path) -> None:
    """A transfer reaches as far as its blocks are there without a gap and have their digests."""
    package = make(load(folder_of(tmp_path / "model", blocks=1)))
    store = Store(tmp_path / "state")
    with Incoming(store, package.front, package.header, package.blocks) as incoming:
        offsets, total = package.blocks.offsets, package.blocks.total
        assert incoming.reach == 0
        incoming.put(0, package.block(0))
        incoming.put(2, package.block(2))
        assert incoming.reach == offsets[1]
        damaged = bytearray(package.block(1))
        damaged[0] ^= 1
        with pytest.raises(ModelError, match="SHA-256"):
            incoming.put(1, bytes(damaged))
        assert incoming.reach == offsets[1]
        incoming.put(1, package.block(1))
        assert incoming.reach == offsets[3]
        incoming.request_first(total - 1000, total)
        wanted = incoming.missing(4)
        assert wanted[0] > 3, "the end comes first"
        assert not incoming.has_requested
        for index in incoming.missing():
            incoming.put(index, package.block(index))
        assert incoming.has_requested
        assert incoming.reach == total


# The child


def following(
    tmp_path: Path, frame: Tensors | None, *, memory_mb: int = 0, golden_outputs: bool = False
) -> tuple[TrialProcess, Path, Callable[[int], None]]:
    """Start a child that follows a model; gives it, the folder, and what tells it of bytes."""
    model = folder_of(tmp_path / "model", quantized=True, blocks=8)
    if golden_outputs:
        # Of a picture of zeros nothing comes out, so all classes are alike.
        golden(model, {"scores": np.array([[0.1, 0.1, 0.8]], np.float32)})
    package = make(load(model))
    data = tmp_path / "data"
    data.write_bytes(stream_of(package))
    early = tmp_path / "early"
    early.mkdir()
    process = TrialProcess(["onnxruntime"], memory_mb, lambda _specs: frame)
    descriptor = os.open(data, os.O_RDONLY)
    question = {"folder": str(early), "choice": asdict(ORT)}
    process.follow(question, descriptor)
    os.close(descriptor)
    data.unlink()  # as when the package is unpacked before the child has looked

    def arrive(have: int) -> None:
        process.send_progress(
            PROGRESS.pack(min(have, package.blocks.total), have >= package.blocks.total)
        )

    return process, model, arrive


HOW: dict[str, Any] = {"golden": True, "timeout_s": PATIENCE, "memory_mb": 0}
FRAME = {"images": np.random.default_rng(2).random(PICTURE, np.float32)}


def test_child_takes_a_live_frame_through_what_arrives(tmp_path: Path) -> None:
    """A frame's first inference counts if the whole network gives the same bits; a moment is named.

    The file has lost its name before the child looks, as when the package is unpacked meanwhile.
    """
    before = time.monotonic()
    process, model, arrive = following(tmp_path, FRAME)
    arrive(10_000)
    wait(lambda: process.wish or process.ended, "a wish")
    assert process.wish is not None
    arrive(2**40)
    verdict = run_trial(model, [ORT], "picture", process=process, **HOW)
    assert verdict.passed, verdict.why
    assert "stages, bit for bit as the whole" in verdict.streamed
    assert verdict.first_at is not None
    assert before < verdict.first_at < time.monotonic()
    assert process.ended


def test_numbers_of_another_network_do_not_count(tmp_path: Path) -> None:
    """Stages that give other numbers than the whole network name no moment; the trial decides."""
    process, _, arrive = following(tmp_path, FRAME)
    arrive(2**40)
    other = folder_of(tmp_path / "other", quantized=True, blocks=8, seed=9)
    verdict = run_trial(other, [ORT], "picture", process=process, **HOW)
    assert verdict.passed, verdict.why
    assert "other numbers" in verdict.streamed
    assert verdict.first_at is None


def test_golden_inputs_decide_all_the_same(tmp_path: Path) -> None:
    """Golden outputs that the network does not give reject it, though it was run in stages."""
    process, model, arrive = following(tmp_path, FRAME, golden_outputs=True)
    arrive(2**40)
    verdict = run_trial(model, [ORT], "picture", process=process, **HOW)
    assert "bit for bit" in verdict.streamed
    assert not verdict.passed
    assert verdict.why.startswith("golden")


def test_without_a_frame_there_is_no_moment(tmp_path: Path) -> None:
    """Where no pipeline has a frame, the trial goes its usual way and says so."""
    process, model, arrive = following(tmp_path, None)
    arrive(2**40)
    verdict = run_trial(model, [ORT], "picture", process=process, **HOW)
    assert verdict.passed, verdict.why
    assert verdict.first_at is None


def test_other_engine_has_to_agree(tmp_path: Path) -> None:
    """Where another engine serves, the stages count if it finds the same as they do."""
    process, model, arrive = following(tmp_path, FRAME)
    arrive(2**40)
    choices = [EngineChoice("openvino", threads=1), ORT]
    verdict = run_trial(model, choices, "picture", process=process, **HOW)
    assert verdict.passed, verdict.why
    assert verdict.engine.startswith("openvino")
    assert verdict.first_at is not None or "best class" in verdict.streamed


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_death_while_it_arrives_is_a_verdict(tmp_path: Path, number: signal.Signals) -> None:
    """A child that dies while it follows a model is a crash of its trial; the caller lives."""
    process, model, arrive = following(tmp_path, FRAME)
    arrive(200_000)
    wait(lambda: process.wish or process.ended, "a wish")
    os.kill(process.pid, number)
    wait(lambda: process.ended, "the end")
    arrive(2**40)
    verdict = run_trial(model, [ORT], "picture", process=process, **HOW)
    assert not verdict.passed
    assert verdict.why == f"crashes the engine ({number.name})"


def test_too_much_memory_while_it_arrives_says_nothing(tmp_path: Path) -> None:
    """A child that is ended for its memory while the model arrives is followed by a fresh one."""
    process, model, arrive = following(tmp_path, FRAME, memory_mb=1)
    arrive(2**40)
    wait(lambda: process.why is not None, "the reason")  # it may not have ended yet
    assert "takes more than the 1 MB" in (process.why or "")
    verdict = run_trial(model, [ORT], "picture", process=process, **HOW)
    assert verdict.passed, verdict.why
    assert verdict.streamed == ""


def test_child_that_is_not_needed_ends(tmp_path: Path) -> None:
    """A child whose model will not come is ended, also while it waits for bytes."""
    process, _, arrive = following(tmp_path, FRAME)
    arrive(10_000)
    wait(lambda: process.wish or process.ended, "a wish")
    process.close()
    assert process.ended
    process.close()
