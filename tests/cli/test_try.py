"""`edge-agent try`: a bare model on any source; what it shows, and what it leaves for `run`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.cli.saved import pipeline_name, save
from edge_agent.config.load import load
from edge_agent.core.bundled import bundled
from edge_agent.models.importing import import_model
from edge_agent.runtime.pipelines.draw import color_of
from edge_agent.sources.spec import parse_source
from tests.helpers.cameras import MjpegServer, free_port
from tests.helpers.push import endless, model_folder
from tests.helpers.small_models import (
    brightness,
    color_classifier,
    detector,
    encode_jpeg,
    loudness,
    plain,
    wrapping,
    write_pictures,
)
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
    wait_until,
)
from tests.helpers.terminal import Terminal
from tests.helpers.tiny_networks import constant_outputs, to_ir

Box = tuple[int, int, int, int]

# A frame of 768x432 in an input of 160x160: letterboxed to 160x90, 35 rows of gray above and below.
WIDTH, HEIGHT, SIDE = 768, 432, 160
PERSON: Box = (288, 168, 480, 264)
BOTTLE: Box = (48, 48, 144, 96)


def in_input(box: Box) -> list[float]:
    """Carry a box of the frame into the input."""
    scale = SIDE / WIDTH
    return [box[0] * scale, box[1] * scale + 35, box[2] * scale, box[3] * scale + 35]


def as_center(box: Box) -> list[float]:
    """Give center and size of a box, in the input."""
    x1, y1, x2, y2 = in_input(box)
    return [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]


def metadata(task: str = "detect", **more: str) -> dict[str, str]:
    """Give what Ultralytics' exporter writes."""
    return {
        "description": "Ultralytics YOLOv8n model trained on parts.yaml",
        "author": "Ultralytics",
        "version": "8.3.0",
        "license": "AGPL-3.0 License (https://ultralytics.com/license)",
        "stride": "32",
        "task": task,
        "batch": "1",
        "imgsz": f"[{SIDE}, {SIDE}]",
        "names": "{0: 'person', 1: 'bottle'}",
        **more,
    }


def yolov8(path: Path, **how: Any) -> Path:
    """Write a detector of v8's form that finds both, each by two neighboring anchors."""
    table = np.zeros((1, 6, 525), np.float32)
    table[0, :, 7] = [*as_center(PERSON), 0.9, 0.05]
    table[0, :, 8] = [*as_center(PERSON), 0.6, 0.0]
    table[0, :, 300] = [*as_center(BOTTLE), 0.1, 0.8]
    return constant_outputs(
        path,
        {"output0": table},
        picture=(1, 3, SIDE, SIDE),
        metadata={**metadata(), **how},
    )


def end_to_end(path: Path) -> Path:
    """Write a detector with suppression inside that finds both."""
    table = np.zeros((1, 300, 6), np.float32)
    table[0, 0] = [*in_input(PERSON), 0.9, 0]
    table[0, 1] = [*in_input(BOTTLE), 0.8, 1]
    return constant_outputs(
        path,
        {"output0": table},
        picture=(1, 3, SIDE, SIDE),
        metadata=metadata(end2end="True"),
    )


def ssd_ir(path: Path) -> Path:
    """Write an IR with Model API's model_info that finds both."""
    table = np.zeros((1, 1, 3, 7), np.float32)
    size = np.array([WIDTH, HEIGHT] * 2)
    table[0, 0, 0] = [0, 0, 0.9, *(np.array(PERSON) / size)]
    table[0, 0, 1] = [0, 1, 0.8, *(np.array(BOTTLE) / size)]
    table[0, 0, 2, 0] = -1
    source = constant_outputs(path.with_suffix(".onnx"), {"boxes": table}, picture=(1, 3, 90, 160))
    info = {
        "model_type": "ssd",
        "labels": "person bottle",
        "confidence_threshold": "0.5",
        "resize_type": "standard",
        "reverse_input_channels": "True",
        "mean_values": "127.5 127.5 127.5",
        "scale_values": "127.5",
    }
    return to_ir(source, path, info)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder: try.jpg is written where one is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def frames(count: int = 1) -> list[NDArray[np.uint8]]:
    """Give gray frames."""
    return [plain(90, WIDTH, HEIGHT) for _ in range(count)]


def check_picture(path: Path, *boxes: tuple[str, Box]) -> None:
    """See that boxes are drawn where they belong, in their labels' colors, and nowhere else."""
    picture = cv2.imread(str(path))
    assert picture is not None
    assert picture.shape == (HEIGHT, WIDTH, 3)
    elsewhere = picture.astype(int)
    for label, (x1, y1, x2, y2) in boxes:
        color = np.array(color_of(label), int)
        edges = {
            "left": (picture[(y1 + y2) // 2, x1 - 1 : x1 + 2]),
            "right": (picture[(y1 + y2) // 2, x2 - 1 : x2 + 2]),
            "bottom": (picture[y2 - 1 : y2 + 2, (x1 + x2) // 2]),
        }
        for side, pixels in edges.items():
            off = np.abs(pixels.astype(int) - color).sum(axis=1)
            drawn = off < np.abs(pixels.astype(int) - 90).sum(axis=1) / 2
            assert drawn.any(), f"{label}: the {side} edge is not drawn in {color}: {pixels}"
        inner = picture[y1 + 8 : y2 - 8, x1 + 8 : x2 - 8].astype(int)
        assert np.abs(inner - 90).max() < 25, f"{label}: its inside is drawn over"
        # The box, its edges and the label above it.
        elsewhere[max(0, y1 - 30) : y2 + 6, x1 - 6 : x2 + 40] = 90
    assert np.abs(elsewhere - 90).max() < 25, "something is drawn elsewhere"


def engines_of(said: Called, unit: str = "frames") -> list[str]:
    """List the engines whose speed was printed."""
    pattern = rf"engine {{3}}(\S+): ([0-9.]+) {unit} a second"
    rates = re.findall(pattern, said.out)
    assert all(float(rate) > 0 for _, rate in rates)
    return [name for name, _ in rates]


BOTH = ["openvino:CPU", "onnxruntime:CPU"]


@pytest.mark.parametrize(
    ("make", "name", "engines"),
    [
        (yolov8, "parts.onnx", BOTH),
        (end_to_end, "parts.onnx", BOTH),
        (ssd_ir, "parts.xml", ["openvino:CPU"]),
    ],
)
def test_a_bare_detector_is_shown_and_saved(
    make: Callable[[Path], Path],
    name: str,
    engines: list[str],
    here: Path,
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
) -> None:
    """One line: results, speed by engine, boxes where they belong, and a folder `run` takes."""
    source = write_pictures(here / "my pictures", frames(2))
    path = source.removeprefix("dir:").replace("%20", " ")
    said = call_cli("try", path, str(make(here / name)), "--save", "saved", "--seconds", "1")
    assert (said.code, said.err) == (0, "")
    assert "parts@1" in said.out
    assert "as the file itself tells" in said.out
    assert sorted(engines_of(said)) == sorted(engines)
    assert re.search(r"try #0 .*person 0\.90, bottle 0\.80", said.out)
    assert re.search(r"^try: 2 results", said.out, re.MULTILINE)
    check_picture(here / "try.jpg", ("person", PERSON), ("bottle", BOTTLE))

    settings = tomllib.loads((here / "saved" / "edge-agent.toml").read_text())
    assert [pipeline["model"] for pipeline in settings["pipelines"]] == ["parts"]
    heard = listen(shared_broker.port, f"edge/{make.__name__}/#")
    process = AgentProcess.__new__(AgentProcess)
    process.folder = here
    process.config = here / "saved" / "edge-agent.toml"
    process.log = here / "agent.log"
    process.environ = {
        "EDGE_AGENT_BROKER__URL": shared_broker.url,
        "EDGE_AGENT_DEVICE_ID": make.__name__,
        "PYTHONPATH": str(CHECKOUT),
    }
    process.restart()
    try:
        topic = f"edge/{make.__name__}/result/my-pictures"
        heard.wait_for(lambda _: len(heard.on(topic)) == 2, "both pictures' results")
    finally:
        assert process.stop() == 0, process.words()
    for result in heard.on(topic):
        found = {entry["label"]: entry["box"] for entry in result["detections"]}
        assert found["person"] == pytest.approx(PERSON, abs=1)
        assert found["bottle"] == pytest.approx(BOTTLE, abs=1)


IMPLAUSIBLE: dict[str, tuple[list[tuple[float, ...]], str]] = {
    "logits for chances": ([(0, 9.8, 0.1, 0.1, 0.5, 0.5)], "a score is 9.8, which is no chance: "),
    "tiny boxes": ([(0, 0.9, 0.2, 0.2, 0.21, 0.21)] * 3, "none of the boxes so far is in the "),
    "boxes outside": ([(0, 0.9, 7, 7, 9, 9)] * 3, "none of the boxes so far is in the "),
    "some outside, one right": (
        [*[(0, 0.9, 7, 7, 9, 9)] * 3, (0, 0.8, 0.1, 0.1, 0.5, 0.5)],
        "",
    ),
}


@pytest.mark.parametrize("kind", IMPLAUSIBLE)
def test_what_can_hardly_be_right_is_said(kind: str, here: Path) -> None:
    """Once, however many results are so."""
    rows, doubt = IMPLAUSIBLE[kind]
    detector(here / "odd", rows, ["part"])
    write_pictures(here / "pictures", frames(3))
    said = call_cli("try", "pictures", "odd")
    assert (said.code, said.err) == (0, "")
    assert said.out.count("doubtful: ") == bool(doubt)
    assert f"doubtful: {doubt}" in said.out or not doubt


@pytest.mark.parametrize(("colors", "doubtful"), [(1, True), (2, False)])
def test_a_folder_of_one_class_only_is_doubtful(here: Path, colors: int, doubtful: bool) -> None:
    """Numbers unlike those of its training had a classifier find the same in every picture.

    Of a camera that is no wonder: a door is closed for days.
    """
    color_classifier(here / "color")
    seen = [plain(0) for _ in range(12)]
    for number, picture in enumerate(seen):
        picture[..., number % colors] = 200
    write_pictures(here / "pictures", seen)
    said = call_cli("try", "pictures", "color")
    assert (said.code, said.err) == (0, "")
    words = "doubtful all 12 pictures are blue: if they show other things, too, the network is "
    assert (words in said.out) == doubtful


def saved(folder: Path, source: str) -> Path:
    """Try a source with --save; give the settings."""
    said = call_cli("try", source, str(folder / "light"), "--save", "saved", "--seconds", "0.2")
    assert (said.code, said.err) == (0, "")
    return folder / "saved" / "edge-agent.toml"


def test_what_is_saved_is_readable_by_its_owner_only(here: Path) -> None:
    """A camera's password stands in the settings: the file is 0600, its folder 0700, and said."""
    brightness(here / "light")
    (here / "saved").mkdir(0o755)
    with MjpegServer([encode_jpeg(plain(90))], login="me:geheim") as camera:
        settings = saved(here, camera.url("me:geheim"))
    assert "me:geheim@" in settings.read_text()
    assert settings.stat().st_mode & 0o777 == 0o600
    assert settings.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("there", [False, True])
def test_a_try_that_fails_leaves_no_folder_to_save_to(here: Path, *, there: bool) -> None:
    """What was made for --save goes again; an empty folder of the user's own stays."""
    brightness(here / "light")
    folder = here / "new" / "saved"
    if there:
        folder.mkdir(parents=True)
    nobody = f"http://127.0.0.1:{free_port()}/stream.mjpg"
    said = call_cli("try", nobody, str(here / "light"), "--save", "new/saved", "--seconds", "0.2")
    assert said.code == 1
    assert "Connection refused" in said.err
    assert folder.is_dir() == there
    assert (here / "new").is_dir() == there
    assert not there or not list(folder.iterdir())


def test_saved_settings_can_be_gone_on_from(here: Path) -> None:
    """Another [[pipelines]] table can be added, and every commented key holds as it stands."""
    brightness(here / "light")
    source = write_pictures(here / "p", frames())
    settings = saved(here, source)
    text = settings.read_text()
    settings.write_text(
        f'{text}\n[[pipelines]]\nname = "b"\nsource = "{source}"\nmodel = "light"\n'
    )
    assert [each.name for each in load(settings, {}).pipelines] == ["p", "b"]
    # All but the explanations, which have no key.
    bare = re.sub(r"^# (?=\w+ = |\[\[)", "", text, flags=re.MULTILINE)
    settings.write_text(bare)
    first, second = load(settings, {}).pipelines
    assert (first.name, first.rate, first.qos, first.snapshot) == ("p", 5.0, 1, True)
    assert (second.name, second.model) == ("second", "light")


@pytest.mark.parametrize(
    ("task", "output", "rule"),
    [
        ("detection", 'decoder = "yolox"', "count"),
        ("classification", 'decoder = "softmax"\nlabels = ["a", "it\\"s"]', "class"),
        ("anomaly", 'decoder = "score"\nthreshold = 1', "anomaly"),
        ("segmentation", 'decoder = "semantic"\nlabels = ["floor", "water"]', "class"),
        ("embedding", 'decoder = "pooled"', None),
        ("regression", 'labels = ["level"]', "value"),
        ("raw", 'decoder = "raw"', None),
    ],
)
def test_saved_settings_hold_a_rule_that_suits_the_model(
    here: Path, task: str, output: str, rule: str | None
) -> None:
    """Without its marks it is a rule; a model whose results cause no events has none."""
    made = here / "m"
    made.mkdir()
    constant_outputs(made / "m.onnx", {"y": np.zeros((1, 1), np.float32)})
    text = f'name = "m"\nversion = "1"\ntask = "{task}"\nfile = "m.onnx"\n[output]\n{output}\n'
    (made / "model.toml").write_text(text)
    place = here / "kept"
    place.mkdir()
    with import_model(made) as imported:
        settings = save(place, imported, parse_source("dir:p", here))
    bare = re.sub(r"^# (?=\w+ = |\[\[)", "", settings.read_text(), flags=re.MULTILINE)
    settings.write_text(bare)
    found = [each.when for each in load(settings, {}).pipelines[0].rules]
    assert found == ([rule] if rule else [])
    # A share of the frame, not only the largest area, is what one asks of a segmentation.
    assert ("\nabove = " in bare) == (task in {"segmentation", "regression"})


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("file:clips/Hall 3.mp4", "Hall-3"),
        ("rtsp://me:geheim@gate.lan:554/h264", "gate"),
        ("rtsp://192.168.1.10/1", "camera-192.168.1.10"),
        ("http://[fe80::1]/mjpg", "camera-fe80-1"),
        ("v4l2:/dev/video0", "video0"),
        ("csv:%E6%8C%AF.csv", "source"),
    ],
)
def test_a_pipeline_is_named_after_its_source(source: str, name: str) -> None:
    """Not after the model, which many pipelines may share."""
    assert pipeline_name(parse_source(source, Path("/"))) == name


@pytest.mark.parametrize("task", ["segment", "pose", "obb"])
def test_rows_of_boxes_are_no_other_task(task: str, here: Path) -> None:
    """What is called a model of masks, points or turned boxes, and gives none, is refused."""
    network = yolov8(here / "x.onnx", task=task)
    said = call_cli("try", write_pictures(here / "p", frames()), str(network))
    assert said.code == 1
    assert said.error.startswith(f"edge-agent: {network}: ")


@needs_assets
def test_a_clip_is_shown_until_the_time_is_over(here: Path) -> None:
    """A bare detector on a real clip: results come, and --seconds ends it with 0."""
    clip = ASSETS / "media" / "one-by-one-person-detection.mp4"
    said = call_cli("try", str(clip), str(yolov8(here / "yolo.onnx")), "--seconds", "0.5")
    assert (said.code, said.err) == (0, "")
    assert "person 0.90, bottle 0.80" in said.out
    picture = cv2.imread("try.jpg")
    assert picture is not None
    assert picture.shape == (HEIGHT, WIDTH, 3)


def test_an_engine_that_is_wrong_does_not_serve(here: Path) -> None:
    """It is compared on the first picture, and named with the reason."""
    source = write_pictures(here / "p", [plain(200, 16, 16)])
    said = call_cli("try", source, str(wrapping(here / "wrapping")))
    assert said.code == 0
    wrong, right, *_ = [line for line in said.out.splitlines() if line.startswith("engine ")]
    assert wrong.startswith("engine   openvino:CPU: is wrong here, and does not serve: beside ")
    assert "frames a second" in right
    assert "on onnxruntime:CPU" in said.out


def test_golden_outputs_are_looked_at(here: Path) -> None:
    """A file that cannot be read, or that an engine does not give, is said before a push is."""
    folder = here / "parts"
    shutil.copytree(bundled("models") / "parts-inspection", folder)
    source = write_pictures(here / "p", [plain(200, 640, 384)])
    assert golden_lines(source, folder) == []
    golden = folder / "golden.npz"
    with np.load(golden) as file:
        arrays = dict(file)
    (name,) = [name for name in arrays if name.startswith("output/")]
    np.savez(golden, **{**arrays, name: arrays[name][:, :, ::-1]})
    said = golden_lines(source, folder)
    assert [line.partition(": case 0: ")[0] for line in said] == [
        f"golden   {engine}" for engine in BOTH
    ]
    golden.write_bytes(b"nothing")
    assert golden_lines(source, folder) == [
        "golden   golden.npz: cannot be read: File is not a zip file; devices refuse the model so"
    ]


def golden_lines(source: str, folder: Path) -> list[str]:
    """List what `try` says of the golden outputs of a model."""
    said = call_cli("try", source, str(folder))
    assert said.code == 0
    return [line for line in said.out.splitlines() if line.startswith("golden ")]


def test_an_engine_that_turns_out_wrong_is_answered_for(here: Path) -> None:
    """Both agree on the first picture, so that the quicker one serves; on the next one is wrong."""
    source = write_pictures(here / "p", [plain(gray, 16, 16) for gray in (20, 200, 201)])
    said = call_cli("try", source, str(wrapping(here / "wrapping")))
    assert said.code == 0
    assert re.findall(r"try #\d .* light (\d+)", said.out) == ["120", "44", "45"]


def test_a_signal_is_shown(here: Path) -> None:
    """A recorded signal through the bundled model: windows are judged, and no picture is drawn."""
    models = bundled("models")
    source = f"{models}/media/bearing.csv?loop=1"
    said = call_cli("try", source, str(models / "bearing-vibration"), "--seconds", "1")
    assert (said.code, said.err) == (0, "")
    assert re.search(r"try #0 +(normal|ANOMALY)", said.out)
    assert sorted(engines_of(said, "windows")) == sorted(BOTH)
    assert not (here / "try.jpg").exists()


def test_of_many_readings_that_are_skipped_a_few_are_shown(here: Path) -> None:
    """Each has a reason; a file of nothing else does not fill the terminal."""
    (here / "bad.csv").write_text("\n".join(["accel", *["1_000"] * 3000]))
    said = call_cli("try", "csv:bad.csv", str(bundled("models") / "bearing-vibration"))
    assert said.code == 1
    skipped = [line for line in said.out.splitlines() if line.startswith("skipped ")]
    assert len(skipped) == 7
    assert "line 2, column 'accel': expected a number, found '1_000'" in skipped[0]
    assert skipped[5] == "skipped  2995 more"


def test_a_threshold_that_is_to_be_learned_is_said(here: Path) -> None:
    """Scores are shown without a verdict until it is learned, as `run` publishes them."""
    loudness(here / "loud", window=4, threshold="p99", learn=20)
    (here / "x.csv").write_text("x\n" + "7\n" * 8)
    said = call_cli("try", "x.csv", "loud", "--seconds", "5")
    assert (said.code, said.err) == (0, "")
    assert re.search(r"try #0 +score 7 \(learns its threshold, 5%\)", said.out)


@pytest.mark.parametrize("channel", [0, "x"])
def test_columns_that_are_not_read_are_said(channel: int | str, here: Path) -> None:
    """Of a table with more columns than the model reads by number; by name, that is meant so."""
    manifest = loudness(here / "loud", window=4) / "model.toml"
    table = manifest.read_text().replace("[input]", f"[input]\nchannels = {json.dumps([channel])}")
    manifest.write_text(table)
    (here / "x.csv").write_text("x,y,z\n" + "7,8,9\n" * 8)
    said = call_cli("try", "x.csv", "loud")
    assert (said.code, said.err) == (0, "")
    note = "note     1 of the source's 3 columns are read, by number: x;"
    assert (note in said.out) == (channel == 0)


def test_each_window_of_a_recording_has_its_line_and_verdicts_are_counted(here: Path) -> None:
    """However soon one comes after the other."""
    loudness(here / "loud", window=4)
    (here / "x.csv").write_text("x\n" + "7\n" * 12 + "700\n" * 8)
    said = call_cli("try", "x.csv", "loud")
    assert (said.code, said.err) == (0, "")
    assert re.findall(r"try #(\d+) +(\w+)", said.out) == [
        *((str(seq), "normal") for seq in range(3)),
        ("3", "ANOMALY"),
        ("4", "ANOMALY"),
    ]
    assert "\ntry: normal ×3, ANOMALY ×2\n" in said.out


def test_seconds_also_bound_the_wait_for_the_first_reading(here: Path, broker: Mosquitto) -> None:
    """A topic that nobody publishes on ends in one line."""
    loudness(here / "loud", window=4)
    said = call_cli("try", "mqtt:plant/x", "loud", "--seconds", "1", "--broker", broker.url)
    assert (said.code, said.error) == (
        1,
        "edge-agent: no result: mqtt:plant/x gave nothing in the time that there was",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(number: int, here: Path) -> None:
    """Ctrl-C, or being told to end, gives the summary and 0, and leaves no temporary files."""
    (here / "tmp").mkdir()
    source = write_pictures(here / "p", frames())
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "edge_agent", "try"),
            *(f"{source}?loop=1&rate=20", str(yolov8(here / "yolo.onnx"))),
        ],
        stdout=(here / "out").open("wb"),
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(here / "tmp")},
    )
    try:
        wait_until(lambda: "try #" in (here / "out").read_text(), "the first result")
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    words = (here / "out").read_text()
    assert "Traceback" not in words
    assert re.search(r"^try: \d+ results?", words, re.MULTILINE)
    assert not list((here / "tmp").glob("edge-agent*"))
    assert cv2.imread("try.jpg") is not None


def start_endless(folder: Path, *more: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Try a model that never comes back from its first inference; what it says goes to a file."""
    (folder / "tmp").mkdir()
    model_folder(folder / "endless", "2")
    endless(folder / "endless")
    program = (
        "import sys; from edge_agent.cli.commands import try_; try_.HANG_SECONDS = 0.5; "
        "from edge_agent.__main__ import main; sys.exit(main())"
    )
    words = folder / "err"
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", program, "try"),
            *(write_pictures(folder / "p", frames()), str(folder / "endless"), *more),
        ],
        stdout=subprocess.DEVNULL,
        stderr=words.open("wb"),
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(folder / "tmp")},
    )
    return process, words


def test_a_model_that_computes_for_ever_is_said_and_interrupted(here: Path) -> None:
    """What is waited for is said, and Ctrl-C ends it though a thread never returns."""
    process, words = start_endless(here)
    try:
        wait_until(lambda: "has not come back" in words.read_text(), "what it waits for")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 1
    finally:
        process.kill()
        process.wait()
    first, *_, last = words.read_text().splitlines()
    assert re.match(r"waiting  the first inference on \S+, loading included, has not come", first)
    assert re.match(r"edge-agent: interrupted; the first inference on \S+, ", last)
    assert "Traceback" not in words.read_text()
    assert not list((here / "tmp").glob("edge-agent*"))


def test_a_model_that_computes_for_ever_does_not_outlast_its_time(here: Path) -> None:
    """With --seconds it ends by itself, with 1 and the reason."""
    process, words = start_endless(here, "--seconds", "0.5")
    try:
        assert process.wait(PATIENCE) == 1
    finally:
        process.kill()
        process.wait()
    late = r"\S+: the first inference on \S+, loading included, has not come back for \d+ s"
    assert re.fullmatch(rf"edge-agent: no engine can run it: {late}; {late}\n", words.read_text())


def test_an_engine_that_hangs_is_left_for_the_next_one(here: Path) -> None:
    """As with a driver that never returns: the other engine shows its results, and it is said."""
    program = (
        "import sys, threading; from edge_agent.cli.commands import try_; try_.HANG_SECONDS = 0.5; "
        "from edge_agent.inference.engines import ov; "
        "ov.open_network = lambda *_: threading.Event().wait(); "
        "from edge_agent.__main__ import main; sys.exit(main())"
    )
    source = write_pictures(here / "p", frames())
    tried = subprocess.run(
        [
            *(sys.executable, "-c", program, "try"),
            *(source, str(brightness(here / "light")), "--seconds", "2"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        timeout=PATIENCE,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
    assert re.search(r"engine   openvino:CPU: is left: the first inference on .* for", tried.stdout)
    assert "light 90" in tried.stdout


def test_a_picture_that_cannot_be_written_is_said_and_done_without(here: Path) -> None:
    """Where try.jpg cannot be written the results are shown all the same."""
    (here / ".try.jpg.part").mkdir()
    source = write_pictures(here / "p", frames())
    said = call_cli("try", source, str(brightness(here / "light")), "--seconds", "1")
    assert (said.code, said.err) == (0, "")
    assert "try.jpg cannot be written here: Is a directory" in said.out
    assert "light 90" in said.out


def test_a_time_too_short_for_a_result_is_no_error_of_frames(here: Path) -> None:
    """Nothing was dropped where the recording, at its rate, has given nothing yet."""
    rows = "".join(f"{n % 7}\n" for n in range(40))
    (here / "slow.csv").write_text(rows)
    model = str(loudness(here / "loud", 20))
    said = call_cli("try", "slow.csv?rate=20", model, "--seconds", "0.1")
    assert said.code == 1
    assert said.error == (
        "edge-agent: no result: csv:slow.csv?rate=20 gave nothing in the time that there was"
    )


def test_a_picture_of_your_own_is_kept(here: Path) -> None:
    """What `try` did not write stays, and it says so; what it wrote is written again."""
    own = here / "try.jpg"
    (here / "try-2.jpg").symlink_to(own)
    own.write_bytes(encode_jpeg(frames()[0]))
    before = own.read_bytes()
    source = write_pictures(here / "p", frames())
    model = str(brightness(here / "light"))
    for _ in range(2):
        said = call_cli("try", source, model, "--seconds", "1")
        assert said.code == 0
        kept = "try-3.jpg, kept fresh; try.jpg is a file of your own, and stays"
        assert f"annotated picture: {kept}" in said.out
        assert f"picture  {here / 'try-3.jpg'}" in said.out
    assert own.read_bytes() == before
    assert cv2.imread(str(here / "try-3.jpg")) is not None
    assert not (here / "try-4.jpg").exists()


def test_each_picture_of_a_folder_has_its_line(here: Path) -> None:
    """Where there is no terminal, however fast they come."""
    source = write_pictures(here / "p", frames(40))
    said = call_cli("try", source, str(brightness(here / "light")))
    assert [f" try #{n} " in said.out for n in range(40)] == [True] * 40


USAGE: dict[str, tuple[list[str], str]] = {
    "no such model": (["p", "nope.onnx"], "MODEL: 'nope.onnx': no such file or folder"),
    "no such clip": (["nope.mp4", "light"], "nope.mp4: no such file or folder"),
    "no source": (["", "light"], "SOURCE: is empty"),
    "no model": (["p", ""], "MODEL: ''"),
    "unknown form": (["rtps://camera/1", "light"], "unknown form 'rtps:'"),
    "unknown option": (["dir:p?lop=1", "light"], "'lop'; did you mean 'loop'?"),
    "a bundled model by its name": (["dir:p", "parts-inspection"], "; the bundled one is /"),
    "no time": (["p", "light", "--seconds", "0"], "expected a number above 0, found '0'"),
    "time without end": (["p", "light", "--seconds", "inf"], "found 'inf'"),
    "a folder that is full": (["p", "light", "--save", "p"], "p is there already and not empty"),
    "a file for a folder": (["p", "light", "--save", "light/model.toml"], "--save: light/model"),
    "no arguments": ([], "the following arguments are required: SOURCE, MODEL"),
}


@pytest.mark.parametrize("kind", USAGE)
def test_wrong_usage_ends_with_2(kind: str, here: Path) -> None:
    """A slip on the command line is one line with the mend, before any time is spent."""
    arguments, line = USAGE[kind]
    write_pictures(here / "p", frames())
    brightness(here / "light")
    said = call_cli("try", *arguments)
    assert said.code == 2
    assert line in said.error
    assert "engine" not in said.out


FAILURES: dict[str, tuple[list[str], str]] = {
    "a camera that is off": (["rtsp://127.0.0.1:9/x", "light"], "nothing answers at 127.0.0.1"),
    "a camera that is not there": (["/dev/video77", "light"], "/dev/video77: No such file"),
    "a folder without pictures": (["light", "light"], "holds no pictures"),
    "something that is no video": (["light/model.toml", "light"], "is not a video"),
    "something that is no model": (
        ["p", "p"],
        "p: neither model.toml nor an .onnx, .xml or .tflite in it",
    ),
    "a signal's model on pictures": (["p", "loud"], "the source gives pictures"),
    "a picture's model on rows": (["csv:rows.csv", "colored"], "the source gives rows of numbers"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_what_cannot_be_tried_ends_with_1(kind: str, here: Path) -> None:
    """A source or model that does not work is one line that names it."""
    arguments, line = FAILURES[kind]
    write_pictures(here / "p", frames())
    brightness(here / "light")
    (here / "loud").mkdir()
    manifest = (here / "light" / "model.toml").read_text()
    (here / "loud" / "model.toml").write_text(manifest.replace("[input]", "[input]\nwindow = 8"))
    (here / "loud" / "model.onnx").hardlink_to(here / "light" / "model.onnx")
    (here / "rows.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    (here / "colored").mkdir()
    mean = "[input]\nmean = [127, 127, 127]"
    (here / "colored" / "model.toml").write_text(manifest.replace("[input]", mean))
    (here / "colored" / "model.onnx").hardlink_to(here / "light" / "model.onnx")
    said = call_cli("try", *arguments)
    assert said.code == 1
    assert line in said.error


# A camera that goes away


LOST = r"source lost, trying again: http://127\.0\.0\.1:\d+/stream\.mjpg: "


@contextmanager
def trying(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run `try` in the background; gives it and the file of what it says."""
    words = folder / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", "try", *arguments],
        stdout=words.open("wb"),
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        yield process, words
    finally:
        process.kill()
        process.wait()


def test_a_camera_that_comes_back_is_opened_again(here: Path) -> None:
    """It is said that it is lost, with the whole reason, and that it is back; the end is 0."""
    camera = MjpegServer([encode_jpeg(plain(90))])
    model = str(brightness(here / "light"))
    with trying(here, camera.url(), model) as (process, words):
        wait_until(lambda: "try #" in words.read_text(), "the first result")
        camera.cut()
        wait_until(lambda: "source lost" in words.read_text(), "the loss to be said")
        with MjpegServer([encode_jpeg(plain(30))], port=camera.port):
            wait_until(lambda: "light 30" in words.read_text(), "results of the new one")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
    said = words.read_text()
    assert re.search(rf"^{LOST}.*\S$", said, re.MULTILINE), said
    assert "…" not in said
    assert "\nsource is back\n" in said


def test_a_camera_that_stays_away_makes_it_1(here: Path) -> None:
    """Who ends it while the source is lost is told so again, with 1, after the summary."""
    camera = MjpegServer([encode_jpeg(plain(90))])
    model = str(brightness(here / "light"))
    with trying(here, camera.url(), model) as (process, words):
        wait_until(lambda: "try #" in words.read_text(), "the first result")
        camera.cut()
        wait_until(lambda: "source lost" in words.read_text(), "the loss to be said")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 1
    summary, picture, last = words.read_text().splitlines()[-3:]
    assert re.match(r"try: \d+ results?", summary)
    assert picture == f"picture  {here / 'try.jpg'}"
    assert re.match(r"edge-agent: http://127\.0\.0\.1:\d+/stream\.mjpg: ", last)


def test_a_camera_that_stalls_is_seen_to(here: Path) -> None:
    """In a terminal of 80 columns the rate goes to 0, and the reason stands there in full."""
    camera = MjpegServer([encode_jpeg(plain(90))])
    model = str(brightness(here / "light"))
    with Terminal("try", camera.url(), model, columns=80, lines=24, cwd=here) as terminal:
        terminal.wait_for(lambda seen: re.search(r"│ try +[1-9]", "\n".join(seen)), "a rate")
        camera.cut()
        terminal.wait_for(
            lambda seen: (
                re.search(r"│ try +0\.0 ", "\n".join(seen))
                and re.search(r"source lost \d+ s ago, trying again: http", "\n".join(seen))
            ),
            "the loss to be seen",
        )
        assert terminal.scrolled == 0
        terminal.press("\x03")
        assert terminal.wait() == 1


def test_a_sensor_on_a_broker_is_tried_live(here: Path, broker: Mosquitto, tmp_path: Path) -> None:
    """Readings of a topic are seen as they come: levels, scores and threshold, a plot."""
    model = loudness(tmp_path / "models" / "loud", window=4)
    listener = Listener(broker.port)
    publishing = threading.Event()

    def publish() -> None:
        count = 0
        while not publishing.wait(0.02):
            count += 1
            listener.publish("plant/press", json.dumps([[100.0 + count]] * 4))

    source = threading.Thread(target=publish)
    source.start()
    arguments = ("try", "mqtt:plant/press", str(model), "--broker", broker.url)
    try:
        with Terminal(*arguments, columns=100, lines=30, cwd=here) as terminal:
            terminal.wait_for(
                lambda seen: any("▄ is the threshold 100" in line for line in seen), "the score"
            )
            levels = re.compile(r"│ 0 .*▁.*  \d+ to \d+")
            terminal.wait_for(lambda seen: any(map(levels.search, seen)), "the levels")
            assert terminal.scrolled == 0
            wait_until((here / "try.png").is_file, "the plot")
            terminal.press("\x03")
            assert terminal.wait() == 0
    finally:
        publishing.set()
        source.join()
        listener.close()
    picture = cv2.imread(str(here / "try.png"))
    assert picture is not None
    assert picture.shape[1] == 900


def test_a_topic_without_a_broker_is_one_line(tmp_path: Path) -> None:
    """It is said which broker was tried."""
    model = loudness(tmp_path / "models" / "loud", window=4)
    called = call_cli("try", "mqtt:a/b", str(model), "--broker", "mqtt://127.0.0.1:9")
    assert called.code == 1
    assert "127.0.0.1:9" in called.error
