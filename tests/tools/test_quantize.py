"""`quantize` from outside: what it leaves, what it says, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_agent.inference.drift import distribution, values
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import ENGINES
from edge_agent.inference.golden import check_golden
from edge_agent.inference.model import load_model
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.manifest import load
from tests.helpers.support import CHECKOUT, PATIENCE, Called, call_cli
from tests.helpers.tiny_networks import to_ir
from tests.tools.color_model import color_model, color_pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures to calibrate with."""
    return color_pictures(tmp_path_factory.mktemp("pictures") / "all")


@pytest.mark.slow
def test_a_model_in_eight_bits(tmp_path: Path, pictures: Path) -> None:
    """A complete folder comes out, whose golden outputs hold on every engine of this device."""
    model = color_model(tmp_path / "color")
    out = tmp_path / "out" / "color-int8"
    said = call_cli(
        *("quantize", str(model), "--calibration", str(pictures), "-o", str(out), "--json")
    )
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert report["passed"]
    assert report["drop"] <= 0.02
    assert report["engines"]["exact"]["int8"]["score_shift"] is not None
    assert any("the best score of a sample moves by" in note for note in report["notes"])
    assert {"exact", *(f"{name}:CPU" for name in ENGINES)} == set(report["engines"])
    assert {each["way"].partition(",")[0] for each in report["tried"]} >= {"ONNX Runtime"}
    folder = load(out)
    assert folder.manifest.id == "color@3.1"
    assert inspect(folder.network).quantized
    assert "Calibrated on 12 samples" in (out / "README.md").read_text()
    usual = folder.usual
    assert usual is not None
    assert usual.results == 12
    assert list(usual.inputs) == ["blue", "green", "red"]
    read = [cv2.imread(str(path)) for path in sorted(pictures.iterdir())]
    captured = np.concatenate([values(one, picture=True) for one in read if one is not None])
    for column, given in zip(captured.T, usual.inputs.values(), strict=True):
        assert given == distribution(column)
    assert usual.score is not None
    for engine in ENGINES:
        loaded = load_model(folder, [EngineChoice(engine)], "picture")
        agreement = check_golden(loaded)
        loaded.close()
        assert agreement is not None
        assert agreement.passed
    assert [path.name for path in out.parent.iterdir()] == ["color-int8"]


@pytest.mark.slow
def test_what_is_sensitive_stays_float(tmp_path: Path, pictures: Path) -> None:
    """Only the two operators around the loud channel are left float; then nothing is lost."""
    model = color_model(tmp_path / "color", loud=True)
    out = tmp_path / "out"
    said = call_cli(
        *("quantize", str(model), "--calibration", str(pictures), "-o", str(out), "--json")
    )
    assert said.code == 0, said.err
    report = json.loads(said.out)
    ways = {each["way"]: each["drop"] for each in report["tried"]}
    assert ways["ONNX Runtime, minmax"] > 0.3
    assert set(report["float_operators"]) == {"first", "second"}
    assert report["drop"] <= 0.02
    assert inspect(load(out).network).quantized


@pytest.mark.slow
def test_too_much_lost_leaves_nothing(tmp_path: Path, pictures: Path) -> None:
    """Where more is lost than may be, the report says so, and there is nothing to be pushed."""
    model = color_model(tmp_path / "color", loud=True, plain=0)
    out = tmp_path / "place" / "out"
    said = call_cli(
        *("quantize", str(model), "--calibration", str(pictures), "-o", str(out), "--json")
    )
    assert said.code == 1
    assert "is lost where 2.0% may be (--max-drop), by the row that loses most on" in said.err
    assert not json.loads(said.out)["passed"]
    assert list(out.parent.iterdir()) == []


@pytest.mark.slow
def test_labels_are_judged_by(tmp_path: Path, pictures: Path) -> None:
    """With labeled pictures what counts is the share that is right; the picture is drawn."""
    model = color_model(tmp_path / "color")
    truth = color_pictures(tmp_path / "truth", apart=True)
    picture = tmp_path / "report.png"
    said = call_cli(
        *("quantize", str(model), "--calibration", str(pictures), "-o", str(tmp_path / "out")),
        *("--eval", str(truth), "--picture", str(picture), "--json"),
    )
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert report["metric"] == "top-1"
    assert report["engines"]["exact"]["float"]["metric"] == 1.0
    usual = load(tmp_path / "out").usual
    assert usual is not None
    assert usual.results == report["calibrated_on"]  # not of what it was judged on
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_quantizer_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: ONNX Runtime's errors, which NNCF passes on, have no class of Python."""
    package = tmp_path / "packages" / "nncf"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "class Fail(Exception): pass\nraise Fail('Duplicate definition-site for (695).')\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    model = color_model(tmp_path / "color")
    said = call_cli(
        *("quantize", str(model), "--calibration", str(pictures), "-o", str(tmp_path / "out")),
        "--json",
    )
    assert said.code == 0, said.err
    report = json.loads(said.out)
    told = [note for note in report["notes"] if "Fail: Duplicate definition-site" in note]
    assert len(told) == 2, report["notes"]
    assert all(each["way"].startswith("ONNX Runtime") for each in report["tried"])


@pytest.mark.slow
def test_several_sources(tmp_path: Path, pictures: Path) -> None:
    """Samples of all sources are calibrated with; of each, as of one alone."""
    model = color_model(tmp_path / "color")
    more = color_pictures(tmp_path / "more", 9)
    said = call_cli(
        *("quantize", str(model), "--calibration", str(pictures), "--calibration", str(more)),
        *("-o", str(tmp_path / "out"), "--json"),
    )
    assert said.code == 0, said.err
    assert json.loads(said.out)["calibrated_on"] == 21


def judged(model: Path, other: Path, *how: str) -> Called:
    """Judge a model beside the float one."""
    return call_cli("quantize", str(model), "--judge", str(other), *how)


def test_a_model_that_is_there_is_judged(tmp_path: Path, pictures: Path) -> None:
    """A bare network is read as the float one is; a bad one ends with 1 and a line that says so."""
    model = color_model(tmp_path / "color")
    on = ("--calibration", str(pictures))
    bad = color_model(tmp_path / "other")
    break_weights(bad / "model.onnx")
    said = judged(model, bad / "model.onnx", *on, "--json", "--picture", str(tmp_path / "r.png"))
    assert said.code == 1
    report = json.loads(said.out)
    assert not report["passed"]
    assert report["judged_on"] == 12
    assert report["calibrated_on"] == 0
    assert report["tried"] == []
    for engine in report["engines"].values():
        assert engine["float"]["agreement"] == 1.0
        assert engine["int8"]["agreement"] == pytest.approx(1 / 3, abs=0.001)
    line = said.err.splitlines()[-1]
    assert f"{bad / 'model.onnx'} is bad: 66.7% is lost where 2.0% may be" in line
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    said = judged(model, bad, *on, "--max-drop", "0.7")
    assert said.code == 0
    assert "is good: 66.7% is lost where 70.0% may be" in said.err
    assert "judged   on 12 samples\n" in said.out
    truth = color_pictures(tmp_path / "truth", apart=True)
    said = judged(model, bad, "--eval", str(truth), "--json")
    assert said.code == 1
    assert json.loads(said.out)["metric"] == "top-1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["color", "other", "r.png", "truth"]


def test_labels_that_the_float_model_never_meets_are_no_measure(tmp_path: Path) -> None:
    """Labels off by one had let any eight-bit model pass: what is never right loses nothing.

    Where they are wrong in part, and hide what is lost, a note says how little it agrees.
    """
    model = color_model(tmp_path / "color")
    bad = color_model(tmp_path / "bad")
    break_weights(bad / "model.onnx")
    truth = color_pictures(tmp_path / "truth", apart=True)
    for label, name in (("red", "0"), ("green", "red"), ("blue", "green"), ("0", "blue")):
        (truth / label).rename(truth / name)
    said = judged(model, bad, "--eval", str(truth))
    assert said.code == 1
    assert "top-1 of the float network is 0.000, which is no better than chance" in said.err
    truth = color_pictures(tmp_path / "in part", apart=True)
    for picture in (truth / "blue").iterdir():
        picture.rename(truth / "red" / picture.name)
    (truth / "blue").rmdir()
    said = judged(model, bad, "--eval", str(truth), "--json")
    assert said.code == 0, said.err
    assert "agrees with the float network in 33.3% only" in json.loads(said.out)["notes"][0]


def break_weights(network: Path) -> None:
    """Have a network of colors find the first in every picture."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(network)
    (scores,) = (each for each in model.graph.initializer if each.name == "scores")
    wrong = numpy_helper.to_array(scores).copy()
    wrong[:, 0] += 100
    scores.CopyFrom(numpy_helper.from_array(wrong, "scores"))
    onnx.save(model, network)


def test_what_cannot_be_judged(tmp_path: Path, pictures: Path) -> None:
    """Wrong options, and a model of another kind, are one line each."""
    model, on = color_model(tmp_path / "color"), ("--calibration", str(pictures))
    out = str(tmp_path / "out")
    for how, code, words in (
        ((*on, "-o", out), 2, "-o: with --judge nothing is made"),
        ((), 2, "required: --calibration or --eval"),
        ((*on, "--eval", str(pictures)), 2, "of --calibration or of --eval, not of both"),
    ):
        said = judged(model, model, *how)
        assert (said.code, words in said.error) == (code, True), said.err
    said = judged(model, CHECKOUT / "models" / "parts-inspection", *on)
    assert said.code == 1
    assert "its task is detection of a picture, that of color@3 classification" in said.error
    said = judged(CHECKOUT / "models" / "parts-inspection", model, *on)
    assert "is quantized already; give the float model" in said.error
    for given, words in ((on, "required: -o"), (("-o", out), "required: --calibration")):
        said = call_cli("quantize", str(model), *given)
        assert (said.code, words in said.error) == (2, True), said.err


def refused(model: Path, calibration: Path | str, out: Path, *more: str) -> str:
    """Run `quantize`, which must refuse; give its one line."""
    said = call_cli(
        *("quantize", str(model), "--calibration", str(calibration), "-o", str(out), *more)
    )
    assert said.code in {1, 2}
    assert not out.exists()
    assert not [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")]
    return said.err.splitlines()[-1]


def test_calibration_must_be_enough(tmp_path: Path) -> None:
    """No picture at all, and one alone, are refused with what is expected."""
    model, out = color_model(tmp_path / "color"), tmp_path / "out"
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(model, tmp_path / "empty", out)
    one = color_pictures(tmp_path / "one", 1)
    assert "1 sample, expected at least 8" in refused(model, one, out)
    assert "no such file" in refused(model, tmp_path / "nowhere", out)
    for number in range(1, 20):
        shutil.copy(one / "00.png", one / f"{number:02}.png")
    capped = "of 20 samples all but 1 are copies, expected at least 8 that differ"
    assert capped in refused(model, one, out), "a lens cap agreed with itself in 100.0 %"
    for number in range(1, 20):
        (one / f"{number:02}.png").unlink()
    (one / "cut.png").write_bytes((one / "00.png").read_bytes()[:40])
    said = call_cli(*("quantize", str(model), "--calibration", str(one), "-o", str(out), "--json"))
    assert said.out == ""  # of results alone
    assert "cut.png: cannot be decoded" in said.err
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    assert "is a signal, but color@3 takes a picture" in refused(model, tmp_path / "data.csv", out)


def test_a_model_that_cannot_be_quantized(tmp_path: Path, pictures: Path) -> None:
    """An eight-bit model, an IR and an old opset are each refused in one line."""
    out = tmp_path / "out"
    bundled = CHECKOUT / "models" / "parts-inspection"
    assert "is quantized already" in refused(bundled, pictures, out)
    model = color_model(tmp_path / "color")
    import onnx

    network = onnx.load(model / "model.onnx")
    network.opset_import[0].version = 6
    onnx.save(network, model / "model.onnx")
    assert "opset 6 is too old; export it with opset 13" in refused(model, pictures, out)
    ir = color_model(tmp_path / "other")
    to_ir(ir / "model.onnx", ir / "model.xml")
    text = (ir / "model.toml").read_text().replace("model.onnx", "model.xml")
    (ir / "model.toml").write_text(text)
    assert "quantize takes .onnx" in refused(ir, pictures, out)


@pytest.mark.slow
def test_scikit_learn_an_engine_that_cannot_run_the_network_is_left_out(tmp_path: Path) -> None:
    """A classifier that ends in a ZipMap: OpenVINO takes none, and ONNX Runtime serves it."""
    model = tmp_path / "table"
    model.mkdir()
    save_with_maps(model / "model.onnx")
    (model / "model.toml").write_text(TABLE)
    rows = np.random.default_rng(0).normal(size=(40, 16))
    lines = [",".join(f"{x:.4f}" for x in row) for row in rows]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    said = call_cli(
        *("quantize", str(model), "--calibration", str(tmp_path / "data.csv")),
        *("-o", str(tmp_path / "out"), "--json"),
    )
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert set(report["engines"]) == {"onnxruntime:CPU", "exact"}
    notes = [note for note in report["notes"] if note.startswith("left out, as it does not run")]
    assert ["openvino:CPU" in note for note in notes] == [True]
    said = call_cli(
        *("quantize", str(model), "--calibration", str(tmp_path / "data.csv")),
        *("-o", str(tmp_path / "arm"), "--target", "arm", "--json"),
    )
    assert said.code == 0, said.err
    assert set(json.loads(said.out)["engines"]) == {"onnxruntime:CPU", "exact"}


TABLE = """
name = "table"
version = "1"
file = "model.onnx"
task = "classification"
[input]
channels = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
window = 1
layout = "flat-tc"
[output]
decoder = "softmax"
labels = ["0", "1", "2"]
[output.names]
scores = "maps"
"""


def save_with_maps(path: Path) -> None:
    """Save a small network for rows of 16 columns, whose output is a list of maps."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(1)
    sides = {"a": (16, 32), "b": (32, 3)}
    weights = {name: rng.normal(size=side).astype(np.float32) for name, side in sides.items()}
    ml = "ai.onnx.ml"
    nodes = [
        helper.make_node("MatMul", ["X", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["o"]),
        helper.make_node("Softmax", ["o"], ["chances"], axis=1),
        helper.make_node("ZipMap", ["chances"], ["maps"], domain=ml, classlabels_int64s=[0, 1, 2]),
    ]
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_map_type_proto(TensorProto.INT64, value)
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 16])],
        [helper.make_value_info("maps", helper.make_sequence_type_proto(maps))],
        [numpy_helper.from_array(each, name) for name, each in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ml, 3)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def test_numbers_that_are_not_finite(tmp_path: Path, pictures: Path) -> None:
    """A network that gives NaN on a sample is named with that sample."""
    from tests.helpers.tiny_networks import node, save_onnx

    model = color_model(tmp_path / "color")
    save_onnx(
        model / "model.onnx",
        [
            node("Conv", ["picture", "w"], ["c"]),
            node("ReduceMean", ["c"], ["m"], axes=[2, 3], keepdims=0),
            node("Sub", ["m", "m"], ["zero"]),
            node("Div", ["zero", "zero"], ["logits"]),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("logits", "float32", (1, 3))],
        {"w": np.ones((3, 3, 1, 1), np.float32)},
    )
    line = refused(model, pictures, tmp_path / "out")
    assert line.startswith("edge-agent: 00.png: ")
    assert "not finite" in line


def test_the_place_must_be_new(tmp_path: Path, pictures: Path) -> None:
    """What is there already is left alone."""
    model = color_model(tmp_path / "color")
    said = call_cli(*("quantize", str(model), "--calibration", str(pictures), "-o", str(model)))
    assert said.code == 2
    assert "is there already and not empty" in said.error
    assert (model / "model.onnx").is_file()
    assert "is within" in refused(model, pictures, model / "int8"), (
        "it was copied into itself for ever"
    )
    assert not (model / "int8").exists()


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path, pictures: Path) -> None:
    """Ctrl-C in the middle of the search ends it at once, and its folders are gone."""
    model = color_model(tmp_path / "color")
    out = tmp_path / "place" / "out"
    command = ["quantize", str(model), "--calibration", str(pictures), "-o", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=CHECKOUT,
    )
    assert process.stderr is not None
    words = ""
    for line in process.stderr:
        words += line
        if line.startswith("calibrating"):
            process.send_signal(signal.SIGINT)
            break
    words += process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1, words
    assert words.endswith("edge-agent: interrupted\n")
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("drop", ["2", "-0.1", "nan", "much"])
def test_a_drop_that_is_no_share_is_refused(drop: str, tmp_path: Path) -> None:
    """2 would allow everything; whoever means percent hears of it before any work."""
    model, pictures, out = (str(tmp_path / name) for name in ("model", "pictures", "out"))
    done = call_cli("quantize", model, "--calibration", pictures, "-o", out, "--max-drop", drop)
    assert done.code == 2
    assert f"--max-drop: expected a number from 0 to 1, found {drop!r}" in done.error
