"""`convert` from outside: what it leaves, what it says, and what it refuses."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.types import Detections
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import ENGINES
from edge_agent.inference.golden import check_golden
from edge_agent.inference.model import load_model
from edge_agent.models.manifest import load
from tests.helpers.drafts import decided as without_questions
from tests.helpers.push import start_box
from tests.helpers.support import (
    ASSETS,
    CHECKOUT,
    PATIENCE,
    AgentProcess,
    Called,
    Listener,
    Mosquitto,
    call_cli,
    needs_assets,
    run_cli,
)
from tests.helpers.tiny_tflite import Tensor, save_ssd, save_teachable, save_tflite
from tests.models.test_reported_models import found
from tests.tools.color_model import LABELS, color_pictures
from tests.tools.pytorch_files import (
    SIDE,
    archive,
    exported,
    needs_litert,
    needs_torch,
    rewritten,
    scripted,
    trained,
)

PICTURE = (1, 3, SIDE, SIDE)
ONE = ",".join(map(str, PICTURE))


@pytest.fixture(scope="module")
def network() -> Any:
    """Train a network on colors."""
    return trained()


@pytest.fixture(scope="module")
def program(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export it by torch.export."""
    return exported(tmp_path_factory.mktemp("pt2") / "color.pt2", network, PICTURE)


def convert(file: Path, out: Path, *more: str) -> Called:
    """Run `convert`."""
    return call_cli("convert", str(file), "-o", str(out), *more)


def refused(file: Path, out: Path, *more: str, code: int = 1) -> str:
    """Run `convert`, which must refuse and leave nothing; give its one line."""
    out.parent.mkdir(exist_ok=True)
    before = sorted(out.parent.iterdir())
    said = convert(file, out, *more)
    assert said.code == code, said.err
    assert sorted(out.parent.iterdir()) == before
    last = said.err.splitlines()[-1]
    assert last.startswith("edge-agent")
    assert "Traceback" not in said.err
    return last


def decided(folder: Path) -> Path:
    """Decide what a draft leaves open, as its user does."""
    manifest = folder / "model.toml"
    text = manifest.read_text()
    assert "\n    'output.labels: " in text
    text = without_questions(text).replace("[input]", '[input]\ncolor = "rgb"\nscale = 255')
    manifest.write_text(text.replace("[output]", f"[output]\nlabels = {json.dumps(LABELS)}"))
    return folder


@needs_torch
@pytest.mark.slow
def test_from_pytorch_to_a_device_in_eight_bits(
    tmp_path: Path,
    network: Any,
    program: Path,
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """A network of PyTorch, converted, quantized and pushed, finds what PyTorch finds."""
    import cv2
    import torch

    pictures = color_pictures(tmp_path / "pictures", 24)
    model, small = tmp_path / "color", tmp_path / "color-int8"
    said = convert(program, model)
    assert said.code == 0, said.err
    decided(model)
    call = ("quantize", str(model), "--calibration", str(pictures), "-o", str(small))
    done = call_cli(*call)
    assert done.code == 0, done.err
    listener = listen(shared_broker.port)
    box = start_box(
        *(tmp_path, shared_broker, listener, agent, "converted"),
        version=None,
        pipelines=[{"name": "door", "model": "color", "rate": 20}],
        source=f"dir:{pictures}?loop=1",
        trust={"allow_unsigned": True},
    )
    pushed = run_cli("push", str(small), "--device", box.device, "--broker", box.url, "--wait")
    assert pushed.returncode == 0, pushed.stderr
    expected = {}
    for path in sorted(pictures.iterdir()):
        picture = cv2.imread(str(path))
        assert picture is not None
        rgb = cv2.resize(picture, (SIDE, SIDE))[:, :, ::-1]
        ready = torch.from_numpy(rgb.transpose(2, 0, 1)[None].astype(np.float32) / 255)
        with torch.no_grad():
            expected[path.name] = network(ready).softmax(1)[0].numpy()

    def all_seen(_heard: Any) -> dict[str, Any] | None:
        results = listener.on(box.topic("result", "door"))
        seen = {each["file"]: each["classes"] for each in results if each["model"] == "color@1.1"}
        return seen if seen.keys() == expected.keys() else None

    found = listener.wait_for(all_seen, "a result of every picture")
    for name, scores in expected.items():
        by_label = {each["label"]: each["score"] for each in found[name]}
        assert found[name][0]["label"] == LABELS[int(scores.argmax())], name
        # What --max-drop allows: scores may be off by a tenth.
        assert by_label[LABELS[int(scores.argmax())]] == pytest.approx(scores.max(), abs=0.1)


@needs_torch
@pytest.mark.slow
def test_what_is_left(
    tmp_path: Path, network: Any, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden outputs are PyTorch's own, every engine gives them, and nothing else is left."""
    import torch

    out, temporary = tmp_path / "out" / "color", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    said = convert(program, out)
    assert said.code == 0, said.err
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in out.iterdir()) == ["golden.npz", "model.onnx", "model.toml"]
    assert [path.name for path in out.parent.iterdir()] == ["color"]
    for engine in ENGINES:
        assert f"on {engine}:CPU: the worst output is" in said.out
        model = load_model(load(out), [EngineChoice(engine)], "picture")
        agreement = check_golden(model)
        model.close()
        assert agreement is not None
        assert agreement.passed
    with np.load(out / "golden.npz") as golden, torch.no_grad():
        own = network(torch.from_numpy(golden["input/input"][:, 0])).numpy()
        (name,) = (name for name in golden.files if name.startswith("output/"))
        np.testing.assert_allclose(golden[name][:, 0], own, rtol=1e-4, atol=1e-5)
        assert len(own) == 4
    # Where its author's files lie is nobody's business.
    assert str(Path(torch.__file__).parent).encode() not in (out / "model.onnx").read_bytes()


@needs_torch
@pytest.mark.slow
def test_torchscript(tmp_path: Path, network: Any) -> None:
    """TorchScript, traced and compiled, is converted with the shape that is given."""
    for file in (
        scripted(tmp_path / "traced.pt", network, PICTURE),
        scripted(tmp_path / "compiled.pt", network),
    ):
        out = tmp_path / file.stem
        said = convert(file, out, "--input", ONE)
        assert said.code == 0, said.err
        assert "output   output float32[1, 3]" in said.out
        assert "decide   output.labels" in said.out
        assert load(out).golden.is_file()
    line = refused(tmp_path / "traced.pt", tmp_path / "a" / "out", code=2)
    assert "--input: is missing" in line
    line = refused(tmp_path / "traced.pt", tmp_path / "a" / "out", "--input", "1,3,16")
    assert "does not run on the --input given (float32[1, 3, 16])" in line
    line = refused(tmp_path / "traced.pt", tmp_path / "a" / "out", *["--input", ONE] * 2, code=2)
    assert "given 2 times" in line


@needs_torch
@pytest.mark.slow
def test_what_ultralytics_notes(tmp_path: Path) -> None:
    """TorchScript of Ultralytics brings its size and labels; what is no detector is refused."""
    import torch

    class Columns(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 6, 8, 8)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            strides = [y, y[:, :, ::2, ::2], y[:, :, ::4, ::4]]
            return torch.cat([each.flatten(2) for each in strides], 2).sigmoid()

    said = {
        "description": "Ultralytics YOLO11n model",
        "author": "Ultralytics",
        "stride": 32,
        "task": "detect",
        "batch": 1,
        "imgsz": [64, 96],
        "names": {"0": "cat", "1": "dog"},
    }
    file = scripted(tmp_path / "yolo.torchscript", Columns(), (1, 3, 64, 96), said=said)
    done = convert(file, tmp_path / "out")
    assert done.code == 0, done.err
    assert "input    x float32[1, 3, 64, 96]" in done.out
    assert "decide" not in done.out
    assert load(tmp_path / "out").labels == ("cat", "dog")
    said["task"] = "pose"
    file = scripted(tmp_path / "pose.torchscript", Columns(), (1, 3, 64, 96), said=said)
    assert "kpt_shape: not in the metadata" in refused(file, tmp_path / "place" / "out")


@needs_torch
@pytest.mark.slow
def test_an_open_batch_and_several_tensors(tmp_path: Path) -> None:
    """An open batch becomes one; several inputs keep their order, and the draft asks which."""
    import torch

    class Two(torch.nn.Module):  # type: ignore[misc]
        def forward(self, left: Any, right: Any) -> dict[str, Any]:
            return {"sum": left + right, "twice": (left * 2, right.sum(1))}

    batch = torch.export.Dim("batch")
    file = exported(
        *(tmp_path / "two.pt2", Two(), (2, 6), (2, 6)),
        dynamic_shapes=({0: batch}, {0: batch}),
    )
    said = convert(file, tmp_path / "out")
    assert said.code == 0, said.err
    assert "draft" in said.out
    assert "input.tensor: expected 1 input" in said.out
    with np.load(tmp_path / "out" / "golden.npz") as golden:
        assert golden["input/left"].shape == (4, 1, 6)
        outputs = [golden[name] for name in golden.files if name.startswith("output/")]
        assert len(outputs) == 3
        assert np.allclose(outputs[0], golden["input/left"] + golden["input/right"])


@needs_torch
@pytest.mark.slow
def test_a_fixed_batch_and_a_small_vocabulary(tmp_path: Path, network: Any) -> None:
    """One sample was given where four are stated, and numbers of tokens that are not there."""
    import torch

    four = exported(tmp_path / "four.pt2", network, (4, 3, SIDE, SIDE))
    said = convert(four, tmp_path / "four")
    assert said.code == 0, said.err
    with np.load(tmp_path / "four" / "golden.npz") as golden:
        (given,) = (golden[name] for name in golden.files if name.startswith("input/"))
    assert given.shape == (4, 4, 3, SIDE, SIDE)
    assert (given == given[:, :1]).all()

    class Words(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, count: int) -> None:
            super().__init__()
            self.vectors = torch.nn.Embedding(count, 3)

        def forward(self, x: Any) -> Any:
            return self.vectors(x.long()).mean(1)

    def words(count: int) -> Path:
        example = (torch.zeros(1, 5, dtype=torch.long),)
        path = tmp_path / f"words{count}.pt2"
        torch.export.save(torch.export.export(Words(count).eval(), example), path)
        return path

    said = convert(words(2), tmp_path / "words")
    assert said.code == 0, said.err
    line = refused(words(1), tmp_path / "place" / "out")
    assert line.endswith("words1.pt2: cannot be run on seeded noise: index out of range in self")


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_numbers_that_are_not_served_are_refused(tmp_path: Path, dtype: str) -> None:
    """A double was written, and could never serve; of bfloat16 an exception's name was said."""
    import torch

    kind = getattr(torch, dtype)
    program = torch.export.export(
        torch.nn.Conv2d(3, 2, 3).to(kind).eval(), (torch.zeros(PICTURE, dtype=kind),)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    line = refused(tmp_path / "net.pt2", tmp_path / "place" / "out")
    assert line.endswith(f"takes {dtype}, which is not served; export it with .float()")


@needs_torch
@pytest.mark.slow
def test_what_does_not_compute_the_same_is_refused(tmp_path: Path) -> None:
    """Random numbers, training mode and operators that ONNX has not are told; nothing is left."""
    import torch

    class Noise(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x + torch.rand_like(x)

    class Eigen(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.linalg.eigvals(x).real

    out = tmp_path / "place" / "out"
    noise = exported(tmp_path / "noise.pt2", Noise(), (1, 4))
    assert "off what the original gives" in refused(noise, out)
    eigen = exported(tmp_path / "eigen.pt2", Eigen(), (4, 4))
    assert "linalg_eig" in refused(eigen, out)
    training = exported(tmp_path / "training.pt2", torch.nn.Dropout(), (1, 4))
    assert "exported in training mode (dropout)" in refused(training, out)


class Harm:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@needs_torch
@pytest.mark.slow
def test_nothing_in_a_file_is_run(tmp_path: Path, program: Path) -> None:
    """Pickled example inputs are refused, and checks of inputs, which are Python, left out."""
    import torch

    mark = tmp_path / "harmed"
    with (tmp_path / "pickled").open("wb") as file:
        torch.save(Harm(mark), file)
    pickled = (tmp_path / "pickled").read_bytes()

    def samples(name: str, data: bytes) -> bytes:
        return pickled if name == "data/sample_inputs/model.pt" else data

    def guards(name: str, data: bytes) -> bytes:
        if name != "models/model.json":
            return data
        call = f"__import__('pathlib').Path({str(mark)!r}).touch()"
        return json.dumps({**json.loads(data), "guards_code": [call]}).encode()

    bad = rewritten(program, tmp_path / "bad.pt2", samples)
    assert "is pickled Python" in refused(bad, tmp_path / "place" / "out")
    said = convert(rewritten(program, tmp_path / "guards.pt2", guards), tmp_path / "out")
    assert said.code == 0, said.err
    assert not mark.exists()


@needs_torch
def test_damaged_files(tmp_path: Path, program: Path) -> None:
    """Cut short at any place, or with a byte changed, a file is told as damaged."""
    data = program.read_bytes()
    bad = tmp_path / "bad.pt2"
    for length in (10, 100, len(data) // 2, len(data) - 30):
        bad.write_bytes(data[:length])
        assert "is damaged or cut short" in refused(bad, tmp_path / "place" / "out")
    at = data.index(b"data/weights/weight_0") + 200
    bad.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
    assert "is not what was written" in refused(bad, tmp_path / "place" / "out")


def test_checkpoints_are_named_and_not_loaded(tmp_path: Path) -> None:
    """Weights, a pickled network and Ultralytics' are refused, with how to export them."""
    out = tmp_path / "place" / "out"
    mark = tmp_path / "harmed"
    harm = archive(tmp_path / "harm.pt", data__pkl=pickle.dumps(Harm(mark)), version=b"3")
    line = refused(harm, out)
    assert "is a checkpoint" in line
    assert "torch.export.save(" in line
    weights = b"\x80\x02ccollections\nOrderedDict\n)Rctorch._utils\n_rebuild_tensor_v2\n0."
    line = refused(archive(tmp_path / "weights.pth", data__pkl=weights), out)
    assert "load it into its network" in line
    yolo = b"\x80\x02cultralytics.nn.tasks\nDetectionModel\n)\x81."
    line = refused(archive(tmp_path / "yolo11n.pt", data__pkl=yolo), out)
    assert "yolo export model=yolo11n.pt format=onnx" in line
    old = tmp_path / "old.pth"
    old.write_bytes(b"\x80\x02cmy.nets\nNet\n)\x81.")
    assert "so it is not loaded here" in refused(old, out)
    assert not mark.exists()


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    """Other formats, what needs no conversion, and what is not there: each in one line."""
    out = tmp_path / "place" / "out"
    assert "no such file" in refused(tmp_path / "nowhere.pt2", out, code=2)
    assert "is a folder" in refused(tmp_path, out, code=2)
    for name, words in (
        ("notes.txt", "is no file of PyTorch"),
        ("model.onnx", "needs no conversion"),
        ("model.engine", "compiled for other hardware"),
        ("model.tflite", "model.tflite"),
    ):
        (tmp_path / name).write_bytes(b"words, words, words")
        assert words in refused(tmp_path / name, out)
    assert "none of PyTorch's" in refused(archive(tmp_path / "other.pt2", words=b"x"), out)
    other = archive(tmp_path / "early.pt2", data___aotinductor___model___a__so=b"x")
    assert "is compiled for one machine" in refused(other, out)
    for shape in ("", "0,3", "1,-3", "1,3,x", "1,3:float8", "99999,99999,99999"):
        line = refused(other, out, f"--input={shape}", code=2)
        assert "--input" in line


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_the_mend_is_told(tmp_path: Path) -> None:
    """Where PyTorch is not installed, the error is the command that installs it."""
    file = archive(tmp_path / "net.pt2", models___model__json=b"{}")
    line = refused(file, tmp_path / "place" / "out", code=2)
    assert "pip install torch onnxscript --extra-index-url" in line


def test_the_place_must_be_new(tmp_path: Path) -> None:
    """What is there already is left alone."""
    (tmp_path / "mine").write_text("mine")
    said = convert(tmp_path / "net.pt2", tmp_path)
    assert said.code == 2
    assert "is there already and not empty" in said.error
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@needs_torch
@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path, program: Path) -> None:
    """Ctrl-C while PyTorch works ends it at once, and its folders are gone."""
    out = tmp_path / "place" / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", "convert", str(program), "-o", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=CHECKOUT,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("converting"):
            process.send_signal(signal.SIGINT)
            break
    _, words = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "interrupted" in words
    assert list(out.parent.iterdir()) == []


@needs_assets
@needs_litert
@pytest.mark.slow
def test_a_tflite_is_compared_with_its_own_interpreter(tmp_path: Path) -> None:
    """The folder holds the file itself, its labels, and what LiteRT computes."""
    out = tmp_path / "out"
    said = convert(ASSETS / "models" / "imagenet_mobilenetv2_int8.tflite", out)
    assert said.code == 0, said.err
    assert "4 cases by LiteRT" in said.out
    assert "compared on openvino:CPU" in said.out
    folder = load(out)
    assert len(folder.labels) == 1001
    model = load_model(folder, [EngineChoice("openvino")], "picture")
    agreement = check_golden(model)
    model.close()
    assert agreement is not None
    assert agreement.passed
    assert agreement.why == "4 cases agree"


@needs_litert
@pytest.mark.slow
@pytest.mark.parametrize("integers", [False, True])
def test_google_coco_ssd_mobilenet_v1_is_converted(tmp_path: Path, *, integers: bool) -> None:
    """Its file omits the shapes of its outputs: "expected 0 axes, found 4", it was said.

    Of the boxes that nearly tie, rounding decides the order.
    """
    out = tmp_path / "out"
    network = save_ssd(tmp_path / "detect.tflite", sharp=True, integers=integers, shaped=False)
    said = convert(network, out)
    assert said.code == 0, said.err
    assert "compared on openvino:CPU" in said.out
    manifest = out / "model.toml"
    manifest.write_text(without_questions(manifest.read_text()))
    boxes = found(out, "openvino")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("1",)
    model = load_model(load(out), [EngineChoice("openvino")], "picture")
    agreement = check_golden(model)
    model.close()
    assert agreement is not None
    assert agreement.passed


@needs_litert
@pytest.mark.slow
def test_ml_gearbox_fault_diagnosis_without_a_threshold_is_a_draft(tmp_path: Path) -> None:
    """An autoencoder cannot serve before its threshold is decided; its golden outputs are made."""
    weights = np.eye(16, dtype=np.float32) / 2
    tensors = [Tensor("x", (1, 16)), Tensor("w", (16, 16), values=weights), Tensor("y", (1, 16))]
    network = save_tflite(tmp_path / "autoencoder.tflite", tensors, [(9, 8, (0, 1, -1), (2,))])
    out = tmp_path / "out"
    said = convert(network, out)
    assert said.code == 0, said.err
    lacks = "does not serve before that is decided: model.toml: output.threshold: is missing"
    assert f"draft    {out}/model.toml: {lacks}" in said.out
    manifest = out / "model.toml"
    text = without_questions(manifest.read_text())
    manifest.write_text(text.replace("[output]", "[output]\nthreshold = 0.01"))
    model = load_model(load(out), [EngineChoice("openvino")], "signal")
    agreement = check_golden(model)
    model.close()
    assert agreement is not None
    assert agreement.why == "4 cases agree"


@needs_litert
@pytest.mark.slow
def test_a_teachable_machine_is_converted_with_the_labels_beside_it(tmp_path: Path) -> None:
    """`convert` asked for all that `describe` of the same file knew."""
    path = save_teachable(tmp_path / "model.tflite", 2)
    (tmp_path / "labels.txt").write_text("0 mug\n1 Bottle\n")
    said = convert(path, tmp_path / "out")
    assert said.code == 0, said.err
    assert load(tmp_path / "out").labels == ("mug", "Bottle")
    assert not (tmp_path / "out" / "labels.txt").exists()  # they are in the manifest
