"""What is written in a picture: alone, and in what a detector has found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.config.settings import SecondStage
from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.types import Detections, Outcome, Sample, Timing
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.describing import describe
from edge_agent.models.manifest import load
from edge_agent.mqtt import payloads
from edge_agent.runtime.pipelines.draw import annotate
from edge_agent.runtime.pipelines.second_stage import add
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx

ENGINES = ("onnxruntime", "openvino")
LEVELS = (0.5, 0.0, 1.0, 0.25, 0.75)
"""Gray of the blank, of A, B and C, and of the space that PaddleOCR adds."""
READER = """
name = "reader"
version = "1"
task = "text"
file = "model.onnx"
[input]
color = "gray"
resize = "letterbox"
anchor = "top-left"
pad = 128
scale = 255
[output]
labels = ["A", "B", "C"]
"""


def reader(
    folder: Path,
    *,
    logits: bool = False,
    order: tuple[int, int, int] = (0, 1, 2),
    levels: Sequence[float] = LEVELS,
    squeezed: bool = False,
    declared: bool = True,
) -> Path:
    """Make a recognizer whose 40 steps are of what gray 8 columns have; axes in an *order*.

    It may have no axis for the batch, or declare no shape of its output.
    """
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(READER)
    shape = tuple((1, 40, len(levels))[axis] for axis in order)
    end = ("Identity", {}) if logits else ("Softmax", {"axis": 2})
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["x"], ["columns"], axes=[1, 2], keepdims=0),
            node("Reshape", ["columns", "steps"], ["apart"]),
            node("ReduceMean", ["apart"], ["gray"], axes=[2], keepdims=1),
            node("Sub", ["gray", "levels"], ["away"]),
            node("Mul", ["away", "away"], ["far"]),
            node("Mul", ["far", "sharp"], ["logits"]),
            node(end[0], ["logits"], ["chances"], **end[1]),
            node("Transpose", ["chances"], ["turned"], perm=order),
            node("Squeeze", ["turned", "batch"], ["out"])
            if squeezed
            else node("Identity", ["turned"], ["out"]),
        ],
        [("x", "float32", (1, 1, 48, 320))],
        [("out", "float32", shape[squeezed:] if declared else ())],
        {
            "batch": np.array([0]),
            "steps": np.array([1, 40, 8]),
            "levels": np.array(levels, np.float32),
            "sharp": np.array(-400, np.float32),
        },
    )
    return folder


def written(*letters: int) -> NDArray[np.uint8]:
    """Draw stripes of the levels, 16 wide, on a line of 48 by 320."""
    line = np.full((48, 320, 3), 128, np.uint8)
    for place, letter in enumerate(letters):
        line[:, place * 16 : (place + 1) * 16] = round(LEVELS[letter] * 255)
    return line


def loaded(folder: Path, engine: str = "onnxruntime") -> Model:
    return load_model(load(folder), [EngineChoice(engine)], "picture")


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_is_read(tmp_path: Path, engine: str, logits: bool) -> None:
    """Blanks and repeats are left out, the space is added; nothing is nothing."""
    model = loaded(reader(tmp_path / "m", logits=logits), engine)
    picture = written(1, 2, 2, 0, 2, 4, 3)
    (found,) = model.infer(Sample(picture, 0, 0, 0.0)).findings.as_json()["detections"]
    assert found == {
        "label": "text",
        "score": pytest.approx(1, abs=0.05),
        "box": [0, 0, 320, 48],
        "text": "ABB C",
    }
    assert model.infer(Sample(written(), 0, 0, 0.0)).findings.as_json() == {"detections": []}
    model.close()


def test_the_captchas_of_mltu_have_their_blank_last(tmp_path: Path) -> None:
    """As of Keras. Read with the first class as blank they gave wrong text of score 1.00."""
    folder = reader(tmp_path / "m", levels=(*LEVELS[1:4], LEVELS[0]))
    sample = Sample(written(1, 2, 2, 0, 2, 3), 0, 0, 0.0)
    manifest = folder / "model.toml"
    model = loaded(folder)
    with pytest.raises(SampleError, match=r"the last.*: give layout = 'blank-last'"):
        model.infer(sample)
    model.close()
    manifest.write_text(f'{READER}decoder = "ctc"\nlayout = "blank-last"\n')
    model = loaded(folder)
    (found,) = model.infer(sample).findings.as_json()["detections"]
    assert found["text"] == "ABBC"
    assert model.infer(Sample(written(), 0, 0, 0.0)).findings.as_json() == {"detections": []}
    model.close()


def test_captcha_whisperer_has_its_steps_first(tmp_path: Path) -> None:
    """As PyTorch's loss takes them: [T, 1, C]."""
    folder = reader(tmp_path / "m", order=(1, 0, 2))
    model = loaded(folder)
    (found,) = model.infer(Sample(written(1, 2, 0, 2, 3), 0, 0, 0.0)).findings.as_json()[
        "detections"
    ]
    assert found["text"] == "ABBC"
    model.close()


@pytest.mark.parametrize("named", [True, False])
def test_lprnet_has_characters_before_steps(tmp_path: Path, named: bool) -> None:
    """With the blank last; its own list of characters has a name for it."""
    levels = (*LEVELS[1:4], LEVELS[0])
    folder = reader(tmp_path / "m", levels=levels, order=(0, 2, 1))
    text = READER.replace('"C"]', '"C", "-"]') if named else READER
    (folder / "model.toml").write_text(f'{text}decoder = "ctc"\nlayout = "lprnet"\n')
    model = loaded(folder)
    findings = model.infer(Sample(written(1, 2, 2, 0, 2, 3), 0, 0, 0.0)).findings
    assert findings.as_json()["detections"][0]["text"] == "ABBC"
    model.close()


@pytest.mark.parametrize("layout", ["lprnet", None])
@pytest.mark.parametrize("engine", ENGINES)
def test_license_plate_opencv_has_no_axis_for_the_batch(
    tmp_path: Path, engine: str, layout: str | None
) -> None:
    """Its own code squeezes what comes out: [C, T], and [T, C] as captchas have it."""
    if layout:
        levels = (*LEVELS[1:4], LEVELS[0])
        folder = reader(tmp_path / "m", levels=levels, order=(0, 2, 1), squeezed=True)
    else:
        folder = reader(tmp_path / "m", squeezed=True)
    told = f'layout = "{layout}"\n' if layout else ""
    (folder / "model.toml").write_text(f'{READER}decoder = "ctc"\n{told}')
    model = loaded(folder, engine)
    findings = model.infer(Sample(written(1, 2, 2, 0, 2, 3), 0, 0, 0.0)).findings
    assert findings.as_json()["detections"][0]["text"] == "ABBC"
    model.close()


def test_cas_captcha_a_character_for_each_place_is_no_ctc(tmp_path: Path) -> None:
    """Its last character was taken for the blank, and a doubled one was read once."""
    folder = reader(tmp_path / "m", levels=LEVELS[:4])
    text = READER.replace('["A", "B", "C"]', '["A", "B", "C", "9"]')
    (folder / "model.toml").write_text(f'{text}decoder = "ctc"\nlayout = "blank-last"\n')
    with pytest.raises(ModelError, match="'9' in the place of the blank"):
        loaded(folder)


@pytest.mark.parametrize("name", ["blank", "<blank>", "[PAD]", None])
@pytest.mark.parametrize("engine", ENGINES)
def test_ocrspine_names_its_blank_first(tmp_path: Path, engine: str, name: str | None) -> None:
    """Its dictionary begins with "blank", which shifted all letters by one; no space is lost."""
    for space in (True, False):
        folder = reader(tmp_path / f"m{space}", levels=LEVELS if space else LEVELS[:4])
        text = READER.replace('["A"', f'["{name}", "A"') if name else READER
        (folder / "model.toml").write_text(text)
        model = loaded(folder, engine)
        line = written(1, 2, 2, 0, 2, 4, 3) if space else written(1, 2, 2, 0, 2, 3)
        findings = model.infer(Sample(line, 0, 0, 0.0)).findings
        assert findings.as_json()["detections"][0]["text"] == ("ABB C" if space else "ABBC")
        model.close()


def test_en_dict_ends_in_a_space(tmp_path: Path) -> None:
    """PaddleOCR's own has it as the last line, which was cut off: the count was wrong by one."""
    folder = reader(tmp_path / "m", levels=(*LEVELS, 0.125))
    (folder / "model.toml").write_text(READER.replace('["A", "B", "C"]', '"en_dict.txt"'))
    (folder / "en_dict.txt").write_text("A\nB\nC\n \n\n")
    model = loaded(folder)
    findings = model.infer(Sample(written(1, 2, 2, 0, 2, 4, 3), 0, 0, 0.0)).findings
    assert findings.as_json()["detections"][0]["text"] == "ABB C"
    model.close()


def test_a_letter_that_is_first_stays_one(tmp_path: Path) -> None:
    """Only what can be no character is the blank's name."""
    folder = reader(tmp_path / "m")
    (folder / "model.toml").write_text(READER.replace('"A"', '"_"'))
    model = loaded(folder)
    findings = model.infer(Sample(written(1, 2), 0, 0, 0.0)).findings
    assert findings.as_json()["detections"][0]["text"] == "_B"
    model.close()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_ocrspine_declares_no_shape_of_its_output(tmp_path: Path, engine: str, named: bool) -> None:
    """As paddle2onnx 2 writes it: what comes has three axes, whatever the file declares."""
    folder = reader(tmp_path / "m", declared=False)
    (folder / "model.toml").write_text(
        READER + ('[output.names]\nsteps = "out"\n' if named else "")
    )
    model = loaded(folder, engine)
    findings = model.infer(Sample(written(1, 2, 2, 0, 2, 3), 0, 0, 0.0)).findings
    assert findings.as_json()["detections"][0]["text"] == "ABBC"
    model.close()


def test_a_blank_that_is_first_is_not_read_as_the_last(tmp_path: Path) -> None:
    """The other way round the error names the key, too."""
    folder = reader(tmp_path / "m", levels=LEVELS[:4])
    (folder / "model.toml").write_text(f'{READER}decoder = "ctc"\nlayout = "blank-last"\n')
    model = loaded(folder)
    with pytest.raises(SampleError, match=r"class 0.*: take out layout"):
        model.infer(Sample(written(1, 2, 2, 0, 2), 0, 0, 0.0))
    model.close()


def test_what_is_read_in_a_detection_is_its_text(tmp_path: Path) -> None:
    """As a second stage: nested as always, and on the detection itself, drawn and published."""
    frame = np.full((200, 400, 3), 90, np.uint8)
    frame[100:148, 40:360] = written(3, 1, 2)
    boxes = np.array([[40, 100, 360, 148], [0, 0, 30, 30]], np.float32)
    found = Detections(boxes, np.array([0.9, 0.8], np.float32), ("plate", "sign"))
    sample = Sample(frame, 0, 0, 0.0)
    outcome = Outcome("finder@1", "onnxruntime:CPU", found, Timing(0, 0, 0))
    model = loaded(reader(tmp_path / "m"))
    stage = SecondStage(name="read", model="reader", labels=("plate",))
    outcome = add(outcome, sample, model, [(stage, model)])
    model.close()
    plate, sign = payloads.result("d", "s", "p", sample, outcome, 0.0)["detections"]
    assert plate["text"] == "CAB"
    assert plate["then"]["read"]["detections"][0]["text"] == "CAB"
    assert "text" not in sign
    assert (annotate(frame, outcome.findings) != annotate(frame, found)).any()


@pytest.mark.parametrize("labels", ['["A"]', "[]", '["A", "B", "C", "D", "E"]'])
def test_a_dictionary_that_does_not_fit_is_refused(tmp_path: Path, labels: str) -> None:
    """Another dictionary would read other characters without a word."""
    folder = reader(tmp_path / "m")
    text = READER.replace('["A", "B", "C"]', labels)
    (folder / "model.toml").write_text(text)
    with pytest.raises(
        ModelError, match="expected the characters in the order of the dictionary, 3 or 4"
    ):
        loaded(folder)


@pytest.mark.parametrize("task", ["detection", "obb"])
@pytest.mark.parametrize("engine", ENGINES)
def test_lines_are_found_where_they_are(tmp_path: Path, engine: str, task: str) -> None:
    """A map of chances becomes rectangles, grown by what the training has shrunk them."""
    save_onnx(
        tmp_path / "model.onnx",
        [node("ReduceMean", ["x"], ["out"], axes=[1], keepdims=1)],
        [("x", "float32", (1, 3, 160, 320))],
        [("out", "float32", (1, 1, 160, 320))],
    )
    (tmp_path / "model.toml").write_text(
        f'name = "lines"\nversion = "1"\ntask = "{task}"\nfile = "model.onnx"\n'
        '[input]\nscale = 255\n[output]\ndecoder = "db"\nthreshold = 0.6\n'
    )
    frame = np.zeros((320, 640, 3), np.uint8)
    quad = cv2.boxPoints(((200.0, 160.0), (160.0, 20.0), 30.0))
    cv2.fillPoly(frame, [quad.astype(np.int32)], (250, 250, 250))
    cv2.rectangle(frame, (400, 40), (599, 79), (130, 130, 130), -1)  # not sure enough
    model = loaded(tmp_path, engine)
    found = model.infer(Sample(frame, 0, 0, 0.0)).findings
    model.close()
    assert isinstance(found, Detections)
    assert found.labels == ("text",)
    grown = 160 * 20 * 1.5 / 180
    wanted = cv2.boxPoints(((200.0, 160.0), (160 + grown, 20 + grown), 30.0))
    assert np.abs(found.boxes[0] - [*wanted.min(axis=0), *wanted.max(axis=0)]).max() < 4
    if task == "obb":
        assert found.corners is not None
        away = np.linalg.norm(found.corners[0][:, None] - wanted, axis=2)
        assert away.min(axis=1).max() < 4


def test_a_slanted_line_that_leaves_the_picture_is_as_sure_as_it_looks(tmp_path: Path) -> None:
    """What lies beside it, where its corners are beyond the border, is no part of it."""
    save_onnx(
        tmp_path / "model.onnx",
        [node("ReduceMean", ["x"], ["out"], axes=[1], keepdims=1)],
        [("x", "float32", (1, 3, 160, 320))],
        [("out", "float32", (1, 1, 160, 320))],
    )
    (tmp_path / "model.toml").write_text(
        'name = "lines"\nversion = "1"\ntask = "obb"\nfile = "model.onnx"\n'
        '[input]\nscale = 255\n[output]\ndecoder = "db"\nthreshold = 0.6\n'
    )
    frame = np.zeros((160, 320, 3), np.uint8)
    quad = cv2.boxPoints(((20.0, 20.0), (120.0, 30.0), -45.0))
    cv2.fillPoly(frame, [quad.astype(np.int32)], (242, 242, 242))
    model = loaded(tmp_path)
    (found,) = model.infer(Sample(frame, 0, 0, 0.0)).findings.as_json()["detections"]
    model.close()
    assert found["score"] == pytest.approx(242 / 255, abs=0.03)


@pytest.mark.parametrize(("wide", "columns"), [(640, 79), (641, 80), (800, 99)])
def test_a_line_is_as_wide_as_paddleocr_makes_it(tmp_path: Path, wide: int, columns: int) -> None:
    """Of 640 x 389, 48 high, there are 78.97 columns: its code rounds up."""
    model = loaded(reader(tmp_path / "m"))
    sample = Sample(np.zeros((389, wide, 3), np.uint8), 0, 0, 0.0)
    placement = model.prepare_data(sample.data, None).placement
    model.close()
    assert placement is not None
    assert placement.scale_x == columns / wide


@pytest.mark.parametrize(
    ("shape", "picture", "words"),
    [
        ((1, 40, 97), (1, 3, 48, 320), 'decoder = "ctc"'),
        ((1, 1, 64, 96), (1, 3, 64, 96), "detection with db"),
        ((1, 21, 64, 96), (1, 3, 64, 96), 'decoder = "semantic"'),
        ((1, 512), (1, 3, 112, 112), "embedding with decoder pooled"),
    ],
)
def test_drafts_of_bare_files_name_the_task(
    tmp_path: Path, shape: tuple[int, ...], picture: tuple[int, ...], words: str
) -> None:
    """What the shapes tell is drafted, and what they do not tell is asked."""
    path = constant_outputs(
        tmp_path / "m.onnx", {"out": np.zeros(shape, np.float32)}, picture=picture
    )
    draft = describe(path).draft
    assert words in draft
    assert "\nto_decide = [" in draft
