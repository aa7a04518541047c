"""What a model says of itself, and what becomes of one that says it wrongly."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.core.errors import ModelError
from edge_agent.models.decoders import DECODERS, DecoderName, Task
from edge_agent.models.idle_keys import idle_keys
from edge_agent.models.importing import write_manifest
from edge_agent.models.manifest import InputSpec, Manifest, load, parse

GOOD: dict[str, Any] = {
    "name": "face",
    "version": "3",
    "task": "detection",
    "file": "model.onnx",
    "output": {"decoder": "ultraface", "labels": ["face"]},
}


def merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Lay changes over a table; None takes a key out."""
    made = dict(table)
    for key, value in changes.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = merged(made[key], value)
        else:
            made[key] = value
    return made


def folder(place: Path, /, **changes: Any) -> Path:
    """Make a model folder whose network nobody looks at."""
    (place / "model.toml").write_text(tomli_w.dumps(merged(GOOD, changes)))
    (place / "model.onnx").write_bytes(b"weights")
    return place


def test_a_manifest_of_a_picture_model_is_read(tmp_path: Path) -> None:
    """What the documented example says is what the record holds, defaults included."""
    made = folder(
        tmp_path,
        input={"layout": "nhwc", "resize": "letterbox", "mean": [127, 127, 127], "scale": 128},
        output={"threshold": 0.7, "iou": 0.3},
    )
    found = load(made).manifest
    assert (found.id, found.task, found.decoder) == ("face@3", "detection", "ultraface")
    assert (found.input.color, found.input.layout, found.input.anchor) == ("rgb", "nhwc", "center")
    assert found.input.per_channel("mean", 3) == (127, 127, 127)
    assert found.input.per_channel("scale", 3) == (128, 128, 128)
    assert (found.output.threshold, found.output.iou, found.output.top_k) == (0.7, 0.3, 5)
    assert not found.input.is_signal


def test_a_manifest_of_a_sensor_model_is_read(tmp_path: Path) -> None:
    """Channels and windows make it a signal's; channels are names or numbers."""
    made = folder(
        tmp_path,
        task="anomaly",
        input={"channels": ["ax", 2], "window": 128, "hop": 64, "layout": "tc"},
        output={"decoder": "score", "threshold": 2, "labels": None},
    )
    found = load(made).manifest
    assert found.input.is_signal
    assert found.input.channels == ("ax", 2)
    assert (found.input.window, found.input.hop, found.input.every) == (128, 64, 1)


def test_mean_and_scale_are_given_once_or_for_each_channel() -> None:
    """One number counts for all channels, none means 0 and 1, another count is refused."""
    assert InputSpec().per_channel("mean", 2) == (0, 0)
    assert InputSpec().per_channel("scale", 2) == (1, 1)
    assert InputSpec(mean=5.0).per_channel("mean", 3) == (5, 5, 5)
    with pytest.raises(ModelError, match=r"input\.mean: expected 1 or 3 numbers, found 2"):
        InputSpec(mean=(1.0, 2.0)).per_channel("mean", 3)
    with pytest.raises(ModelError, match="must not be 0, it divides"):
        InputSpec(scale=(1.0, 0.0, 1.0)).per_channel("scale", 3)


def test_labels_are_read_one_a_line(tmp_path: Path) -> None:
    """Space around labels and empty lines at the end go; an empty line between is a label."""
    made = folder(tmp_path, output={"labels": "labels.txt"})
    (made / "labels.txt").write_bytes("  face \r\n\r\nkötbullar\n\n\n".encode())
    assert load(made).labels == ("face", "", "kötbullar")


def test_every_decoder_has_a_task_a_name_and_a_function() -> None:
    """What a manifest may name and what the program can decode are the same."""
    assert set(get_args(DecoderName)) == set(DECODERS)
    assert {task for each in DECODERS.values() for task in each.tasks} == set(get_args(Task))
    for each in DECODERS.values():
        module, _, function = each.function.rpartition(".")
        assert callable(getattr(import_module(module, "edge_agent.inference.decode"), function))


@pytest.mark.parametrize("task", ["regression", "raw"])
def test_a_task_that_has_one_usual_decoder_need_not_name_it(task: str, tmp_path: Path) -> None:
    """Regression and raw outputs are read as they are where no decoder is named."""
    made = folder(tmp_path, task=task, output={"decoder": None, "labels": None})
    assert load(made).manifest.decoder == "raw"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    # what is wrong: the changes, and how the error goes on after the file's name
    "no name": ({"name": None}, "name: is missing"),
    "no file": ({"file": None}, "file: is missing"),
    "a path as name": ({"name": "../face"}, "name: '../face' is not a name"),
    "a number as version": ({"version": 3}, "version: expected a text in quotes, found 3"),
    "a word as version": ({"version": "v3"}, "version: 'v3' is not a version"),
    "unknown task": (
        {"task": "detektion"},
        "task: expected 'detection', 'classification', 'anomaly', 'regression', 'raw', 'instance-",
    ),
    "unknown key": ({"flie": "x"}, "flie: unknown key; did you mean 'file'?"),
    "unknown key in a table": (
        {"output": {"treshold": 1}},
        "output.treshold: unknown key; did you mean 'threshold'?",
    ),
    "a key of another table": ({"mean": [1.0]}, "mean: unknown key here; it goes below [input]"),
    "a picture's key among those of the spectrum": (
        {"input": {"logmel": {"mean": [1.0]}}},
        "input.logmel.mean: unknown key here; it goes below [input]",
    ),
    "a spectrum's key among those of the input": (
        {"input": {"window": 5, "bins": 40}},
        "input.bins: unknown key here; it goes below [input.logmel]",
    ),
    "unknown decoder": ({"output": {"decoder": "yolo8"}}, "output.decoder: expected 'ultraface'"),
    "decoder of another task": (
        {"output": {"decoder": "softmax"}},
        "output.decoder: 'softmax' does not fit task detection; it takes one of ultraface",
    ),
    "no decoder": ({"output": {"decoder": None}}, "output.decoder: is missing; task detection"),
    "anomaly without threshold": (
        {"task": "anomaly", "output": {"decoder": "score"}},
        "output.threshold: is missing",
    ),
    "a picture's layout for a signal": (
        {"input": {"window": 5, "layout": "nchw"}},
        "input.layout: 'nchw' is for pictures, but input has channels or a window",
    ),
    "sound without a window": ({"input": {"transform": "logmel"}}, "input.transform: 'logmel' is"),
    "features of sound by their own name": (
        {"input": {"window": 5, "mfcc": {"bins": 20}}},
        'input.mfcc: unknown key; the parameters of transform = "mfcc" go below [input.logmel]',
    ),
    "a deviation": (
        {"input": {"std": 58}},
        "input.std: unknown key; what is divided by is `scale`",
    ),
    "unknown layout": ({"input": {"layout": "chw"}}, "input.layout: expected 'nchw'"),
    "crop above 1": ({"input": {"crop_ratio": 1.5}}, "input.crop_ratio: expected a number of at"),
    "mean of words": (
        {"input": {"mean": "x"}},
        "input.mean: expected a number or a list, found 'x'",
    ),
    "mean with a word": ({"input": {"mean": [1, "x", 3]}}, "input.mean[1]: expected a number"),
    "mean of NaN": ({"input": {"mean": [float("nan")]}}, "input.mean[0]: expected a number"),
    "scale of infinity": ({"input": {"scale": float("inf")}}, "input.scale: expected a number"),
    "window of 0": ({"input": {"window": 0}}, "input.window: expected a number of at least 1"),
    "channel of half": (
        {"input": {"channels": [0.5]}},
        "input.channels[0]: expected a whole number or a text in quotes, found 0.5",
    ),
    "iou of 0": ({"output": {"iou": 0}}, "output.iou: expected a number above 0, found 0"),
    "threshold of NaN": ({"output": {"threshold": float("nan")}}, "output.threshold: expected"),
    "output scale of 0": ({"output": {"scale": 0}}, "output.scale: must not be 0"),
    "top_k of 0": ({"output": {"top_k": 0}}, "output.top_k: expected a number of at least 1"),
    "negative tolerance": ({"trial": {"tolerance": -1}}, "trial.tolerance: expected a number of"),
    "a network that is not there": ({"file": "other.onnx"}, "file: 'other.onnx' is missing from"),
    "a network outside": (
        {"file": "../model.onnx"},
        "file: '../model.onnx' must be a path inside the model folder",
    ),
    "an absolute network": (
        {"file": "/etc/passwd"},
        "file: '/etc/passwd' must be a path inside the model folder",
    ),
    "a linked network": ({"file": "link.onnx"}, "file: 'link.onnx' leads outside the model folder"),
    "an unknown network": (
        {"file": "model.toml"},
        "file: 'model.toml' is neither .onnx nor .xml nor .tflite",
    ),
    "an IR without weights": ({"file": "model.xml"}, "file: model.bin is missing beside model.xml"),
    "labels outside": (
        {"output": {"labels": "../../labels.txt"}},
        "output.labels: '../../labels.txt' must be a path inside the model folder",
    ),
    "labels that are not there": (
        {"output": {"labels": "labels.txt"}},
        "output.labels: 'labels.txt' is missing from",
    ),
}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"window": 5, "mean": 3, "scale": [2.0], "hop": 2, "lead": 1}, None),
        ({"resize": "crop", "color": "bgr", "mean": 3}, None),
        (
            {"window": 5, "resize": "letterbox", "color": "bgr"},
            "input.color, input.resize: no effect: the model takes windows of sensor data",
        ),
        ({"hop": 2, "every": 3}, "input.every, input.hop: no effect: the model takes pictures"),
        (
            {"window": 5, "logmel": {"bins": 8}},
            'input.logmel: no effect without input.transform = "logmel" or "mfcc"',
        ),
    ],
)
def test_keys_of_another_kind_of_sample_are_said(keys: dict[str, Any], words: str | None) -> None:
    """Keys of pictures for a sensor, and the other way round, are looked at by nobody."""
    said = idle_keys(parse(merged(GOOD, {"input": keys}), "model.toml"))
    if words is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(words)


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_manifest_is_one_line(kind: str, tmp_path: Path) -> None:
    """File, key, what was expected and what was found: in one line, at load."""
    changes, line = WRONG[kind]
    made = folder(tmp_path, **changes)
    (made / "link.onnx").symlink_to("/etc/passwd")
    (made / "model.xml").touch()
    with pytest.raises(ModelError) as caught:
        load(made)
    assert str(caught.value).startswith(f"{made / 'model.toml'}: {line}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"x = = 1", "not valid TOML"),
        (b"\xff", "is not UTF-8 text"),
        (b"#" * 300_000, "larger than 256 KiB"),
        (None, "no such file"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_line(
    content: bytes | None, line: str, tmp_path: Path
) -> None:
    """A missing, damaged or far too large model.toml is named."""
    if content is not None:
        (tmp_path / "model.toml").write_bytes(content)
    with pytest.raises(ModelError, match=line):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_a_file_of_labels_without_any_is_refused(content: str, tmp_path: Path) -> None:
    """A labels file with nothing in it is a mistake, not a model without labels."""
    made = folder(tmp_path, output={"labels": "labels.txt"})
    (made / "labels.txt").write_text(content)
    with pytest.raises(
        ModelError, match=r"labels\.txt: 0 labels, expected 1 to 100000, one a line"
    ):
        load(made)


def test_labels_that_are_not_text_are_refused(tmp_path: Path) -> None:
    """A labels file in another encoding is named, rather than shown as garbage in results."""
    made = folder(tmp_path, output={"labels": "labels.txt"})
    (made / "labels.txt").write_bytes("käse".encode("latin-1"))
    with pytest.raises(ModelError, match=r"labels\.txt: is not UTF-8 text"):
        load(made)


def test_a_manifest_that_is_written_reads_back_the_same(tmp_path: Path) -> None:
    """What `try --save` and `add` write is what they meant, without keys that are defaults."""
    table = merged(
        GOOD,
        {
            "description": 'it\'s "quoted"\tand ünïcode',
            "input": {"mean": [1, 2, 3], "scale": 2, "fixed": {"size": [[480.0, 640.0]]}},
            "output": {"labels": ["a b", "ü", ""], "names": {"boxes": "out 1"}},
            "trial": {"tolerance": 0.2, "golden": False},
        },
    )
    meant = parse(table, "here")
    write_manifest(meant, tmp_path)
    written = tomllib.loads((tmp_path / "model.toml").read_text())
    assert parse(written, "here") == meant
    assert "iou" not in written["output"]


# Any manifest at all

KEYS = st.sampled_from(
    [
        "name", "version", "task", "file", "input", "output", "trial", "description", "mean",
        "scale", "channels", "window", "layout", "decoder", "threshold", "labels", "names",
        "fixed", "logmel", "transform", "x",
    ]
)  # fmt: skip
TEXTS = st.text(max_size=10) | st.sampled_from(
    ["face", "1", "1.2", "detection", "raw", "model.onnx", "../x", "ct", "nchw", "yolov8", "score"]
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.dictionaries(KEYS, VALUES, max_size=4), whole=st.booleans())
def test_any_manifest_is_read_or_refused_in_one_line(changes: dict[str, Any], whole: bool) -> None:
    """No manifest, however mad, ends in anything but a manifest or the one error."""
    table = changes if whole else merged(GOOD, changes)
    made: Manifest | None = None
    line = ""
    try:
        made = parse(table, "here")
    except ModelError as problem:
        line = str(problem)
    assert (made is None) == line.startswith("here: ")


def test_labels_of_windows_begin_with_no_mark(tmp_path: Path) -> None:
    """An editor's byte order mark is no part of the first label."""
    made = folder(tmp_path, output={**GOOD["output"], "labels": "labels.txt"})
    (made / "labels.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n")
    assert load(made).labels == ("cat", "dog")


def test_keys_of_another_task_are_said_to_be_idle() -> None:
    """A mask that a detector cannot give is not asked for in silence."""
    said = idle_keys(parse(merged(GOOD, {"output": {"mask": True}}), "model.toml"))
    assert said is not None
    assert said.startswith("output.mask: no effect")
