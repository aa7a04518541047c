"""Models that must not be used, through every command that meets them.

Each gives one line on stderr, the right exit status, no traceback, and leaves nothing behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from tests.helpers.small_models import (
    blocks,
    brightness,
    color_classifier,
    detector,
    plain,
    write_manifest,
    write_pictures,
)
from tests.helpers.support import (
    CHECKOUT,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
)
from tests.helpers.tiny_networks import constant_outputs, to_ir

SCORES = np.array([[0.1, 0.7, 0.2]], np.float32)
PICTURE = np.zeros((1, 3, 32, 32), np.float32)


def whole(folder: Path) -> None:
    """Write a network that is fit to run."""
    constant_outputs(folder / "model.onnx", {"scores": SCORES})


def cut_short(folder: Path) -> None:
    """End the network's file before its end."""
    whole(folder)
    network = folder / "model.onnx"
    network.write_bytes(network.read_bytes()[:-40])


def with_nan(folder: Path) -> None:
    """Put a weight into the network that is not a number."""
    constant_outputs(folder / "model.onnx", {"scores": SCORES * np.float32("nan")})


def five_channels(folder: Path) -> None:
    """Let the network take pictures of five channels."""
    constant_outputs(folder / "model.onnx", {"scores": SCORES}, picture=(1, 5, 32, 32))


def too_large(folder: Path) -> None:
    """Let the network take pictures that no memory holds."""
    constant_outputs(folder / "model.onnx", {"scores": SCORES}, picture=(1, 3, 100_000, 100_000))


def data_outside(folder: Path) -> None:
    """Let a weight lie in a file outside the folder, which is there."""
    import onnx

    whole(folder)
    (folder.parent / "secret.bin").write_bytes(bytes(4096))
    model = onnx.load(folder / "model.onnx")
    tensor = next(each for each in model.graph.initializer if each.name == "scores.value")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../secret.bin"
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def as_ir(folder: Path) -> None:
    """Write the network as IR."""
    whole(folder)
    to_ir(folder / "model.onnx", folder / "model.xml")
    (folder / "model.onnx").unlink()


def with_doctype(folder: Path) -> None:
    """Let an IR define an entity that reads a file."""
    as_ir(folder)
    text = (folder / "model.xml").read_text()
    begin = text.index("<net")
    entity = '<!DOCTYPE net [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    (folder / "model.xml").write_text(text[:begin] + entity + text[begin:])


def without_bin(folder: Path) -> None:
    """Take the weights away from an IR."""
    as_ir(folder)
    (folder / "model.bin").unlink()


def with_short_bin(folder: Path) -> None:
    """End the weights of an IR before their end."""
    as_ir(folder)
    (folder / "model.bin").write_bytes(b"")


def link(folder: Path) -> None:
    """Let the network be a link to a file outside."""
    (folder / "model.onnx").symlink_to("/etc/passwd")


def content(data: bytes) -> Callable[[Path], None]:
    """Write something as the network."""

    def write(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(data)

    return write


@dataclass(frozen=True)
class Bad:
    """A model that is wrong in one way."""

    line: str
    """What the one line holds."""
    network: Callable[[Path], None] = whole
    tables: dict[str, Any] = field(default_factory=dict)
    """Changes to the manifest; None takes a key out."""


def output(**keys: Any) -> dict[str, Any]:
    """Change keys of [output]."""
    keys = {"decoder": "softmax", "labels": ["a", "b", "c"], **keys}
    return {"output": {key: value for key, value in keys.items() if value is not None}}


BAD = {
    "missing network": Bad("file: 'model.onnx' is missing from", lambda _: None),
    "network cut short": Bad("not a valid ONNX file: it is cut short", cut_short),
    "empty network": Bad("not a valid ONNX file", content(b"")),
    "text as network": Bad("not a valid ONNX file", content(b"hello " * 100)),
    "NaN among weights": Bad("tensor 'scores.value' holds NaN", with_nan),
    "input too large": Bad("114,441 MiB of inputs, and this device, which has", too_large),
    "data outside": Bad("'../secret.bin' must be a path inside the model folder", data_outside),
    "network linked to outside": Bad("leads outside the model folder", link),
    "network outside": Bad("must be a path inside", tables={"file": "../x/model.onnx"}),
    "wrong channel count": Bad("expected 3 channels (color 'rgb'", five_channels),
    "too few labels": Bad("expected 3 labels for the 3 classes", tables=output(labels=["a"])),
    "labels missing": Bad("'labels.txt' is missing", tables=output(labels="labels.txt")),
    "unknown decoder": Bad("did you mean 'softmax'?", tables=output(decoder="softmx")),
    "decoder of another task": Bad("does not fit task", tables=output(decoder="yolov8")),
    "decoder missing": Bad("output.decoder: is missing", tables=output(decoder=None)),
    "mean of wrong length": Bad(
        "input.mean: expected 1 or 3 numbers, found 2", tables={"input": {"mean": [1, 2]}}
    ),
    "layout that does not fit": Bad(
        "layout 'nchw' would fit", tables={"input": {"layout": "nhwc"}}
    ),
    "scale of 0": Bad("must not be 0, it divides", tables={"input": {"scale": [1, 0, 1]}}),
    "size that does not fit": Bad("input.width: expected 32", tables={"input": {"width": 64}}),
    "input that is not there": Bad("has no input 'x'", tables={"input": {"tensor": "x"}}),
    "output that is not there": Bad("'nope'", tables=output(names={"scores": "nope"})),
    "version that is none": Bad("'v1' is not a version", tables={"version": "v1"}),
    "name that is none": Bad("'a/b' is not a name", tables={"name": "a/b"}),
    "unknown key": Bad("did you mean 'output'?", tables={"ouput": {}}),
    "DOCTYPE": Bad("has a DOCTYPE", with_doctype, {"file": "model.xml"}),
    "IR without .bin": Bad("model.bin is missing beside", without_bin, {"file": "model.xml"}),
    "IR with a short .bin": Bad("it is cut short", with_short_bin, {"file": "model.xml"}),
}


@dataclass(frozen=True)
class Place:
    """Settings whose only pipeline uses a model of models_dirs, and a store beside."""

    root: Path
    pictures: str

    @property
    def model(self) -> Path:
        return self.root / "library" / "level"

    @property
    def config(self) -> str:
        return str(self.root / "config.toml")

    def put(self, bad: Bad) -> None:
        """Write the model."""
        self.model.mkdir(parents=True)
        table = {
            "name": "level",
            "version": "1",
            "task": "classification",
            "file": "model.onnx",
            **output(),
            **bad.tables,
        }
        (self.model / "model.toml").write_text(tomli_w.dumps(table))
        bad.network(self.model)

    def leftovers(self) -> list[Path]:
        """List what a model has left in the store or among temporary files."""
        found = [
            path
            for name in ("models", "staging", "incoming")
            for path in (self.root / "state" / name).rglob("*")
        ]
        return found + list((self.root / "tmp").glob("edge-agent*"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Give a place to put a bad model; temporary files go there too."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    made = Place(tmp_path, write_pictures(tmp_path / "pictures", [plain(90)]))
    table = {
        "device_id": "bad-input",
        "state_dir": "state",
        "models_dirs": ["library"],
        "broker": {"url": f"mqtt://127.0.0.1:{free_port()}"},
        "pipelines": [{"name": "door", "source": made.pictures, "model": "level"}],
    }
    Path(made.config).write_text(tomli_w.dumps(table))
    return made


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_model_is_one_line_and_leaves_nothing(kind: str, place: Place) -> None:
    """`add`, `try` and `check` say what is wrong and where, end with 1, and keep nothing."""
    bad = BAD[kind]
    place.put(bad)
    added = call_cli("add", str(place.model), "--config", place.config)
    tried = call_cli("try", place.pictures, str(place.model))
    checked = call_cli("check", "--config", place.config)
    assert (added.code, tried.code, checked.code) == (1, 1, 1)
    for ended in (added, tried):
        assert ended.error.startswith("edge-agent: ")
        assert bad.line in ended.error
        assert str(place.model) in ended.error
    assert checked.err == ""
    (said,) = [line for line in checked.out.splitlines() if "pipeline door model level" in line]
    assert said.startswith("FAIL")
    assert bad.line in said
    assert place.leftovers() == []
    assert not (place.root / "try.jpg").exists()


@pytest.mark.parametrize("kind", ["network cut short", "input too large", "unknown decoder"])
def test_an_agent_with_nothing_but_a_bad_model_ends(kind: str, place: Place) -> None:
    """`run` ends with 2 and the line about the model: waiting would not mend it."""
    place.put(BAD[kind])
    agent = AgentProcess(place.root, Path(place.config).read_text())
    try:
        assert agent.wait() == 2
    finally:
        agent.stop()
    words = agent.words()
    assert "Traceback" not in words
    last = words.strip().splitlines()[-1]
    assert last.startswith("edge-agent: ")
    assert BAD[kind].line in last


def test_a_golden_file_that_disagrees_rejects_the_model(place: Place) -> None:
    """`add` and `check` compare what comes out with golden.npz, and say what came instead."""
    place.put(Bad(""))
    other = np.array([[0.8, 0.1, 0.1]], np.float32)
    arrays: dict[str, Any] = {"input/images": PICTURE, "output/scores": other}
    np.savez(place.model / "golden.npz", **arrays)
    key = "[trial] tolerance = 0.05 in model.toml"
    line = f"level@1: golden: case 0: best class b, expected a ({key})"
    added = call_cli("add", str(place.model), "--config", place.config)
    assert (added.code, added.error) == (1, f"edge-agent: {line}")
    checked = call_cli("check", "--config", place.config)
    assert checked.code == 1
    assert f"FAIL  pipeline door model level: {line}" in checked.out.splitlines()
    assert place.leftovers() == []


@pytest.mark.parametrize("damage", ["pickled", "cut short", "another shape"])
def test_a_golden_file_that_is_damaged_rejects_the_model(damage: str, place: Place) -> None:
    """A golden.npz that cannot be believed is a reason to refuse, not to go without."""
    place.put(Bad(""))
    path = place.model / "golden.npz"
    arrays: dict[str, Any] = {"input/images": PICTURE, "output/scores": SCORES}
    if damage == "pickled":
        arrays["input/images"] = np.array([{"a": 1}], object)
    if damage == "another shape":
        arrays["input/images"] = PICTURE[..., :9]
    np.savez(path, **arrays)
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:200])
    added = call_cli("add", str(place.model), "--config", place.config)
    assert added.code == 1
    assert added.error.startswith("edge-agent: level@1: golden.npz: ")
    assert place.leftovers() == []


def test_two_of_a_bad_model_do_not_stop_a_good_one(place: Place) -> None:
    """`check` looks at every pipeline, also behind one whose model is broken."""
    place.put(BAD["NaN among weights"])
    good = Place(place.root / "more", place.pictures)
    good.put(Bad(""))
    table = Path(place.config).read_text().replace('"library"', '"library", "more/library"')
    Path(place.config).write_text(
        table + '\n[[pipelines]]\nname = "gate"\nsource = "dir:nowhere"\nmodel = "nope"\n'
    )
    checked = call_cli("check", "--config", place.config)
    assert checked.code == 1
    lines = {line.split(": ")[0][6:]: line for line in checked.out.splitlines()}
    assert lines["pipeline door model level"].startswith("FAIL")
    assert lines["pipeline gate source"].startswith("FAIL")
    assert "known: " in lines["pipeline gate model nope"]
    assert lines["pipeline door source"].startswith("ok")


def test_a_bad_model_of_models_dirs_costs_its_own_pipeline_only(
    place: Place,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """The agent says what is wrong with it, once, and the other pipelines give results."""
    place.put(BAD["input too large"])
    brightness(place.root / "library" / "light")
    # What TOML parsers do with it is not ours to know.
    strange = place.root / "library" / "strange"
    strange.mkdir()
    (strange / "model.toml").write_text(f"a = {'[' * 50_000}")
    source = f"{place.pictures}?loop=1&rate=10"
    pipelines = [
        {"name": name, "source": source, "model": model}
        for name, model in (("door", "level"), ("gate", "light"))
    ]
    listener = listen(broker.port)
    library = {"models_dirs": [str(place.root / "library")], "engine": "auto"}
    running = agent(agent_settings("box", broker.url, pipelines, **library))
    listener.wait_for(lambda _: len(listener.on("edge/box/result/gate")) > 3, "results")
    health = listener.wait_why("model level: ")
    assert any(BAD["input too large"].line in why for why in health["why"])
    assert running.stop() == 0
    words = running.words()
    assert "Traceback" not in words
    assert len([line for line in words.splitlines() if "is too large" in line]) == 1


def test_what_can_hardly_be_right_is_a_reason_of_degraded(
    place: Place,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """Such a model goes on giving results; health says by which key it is wrong."""
    detector(place.root / "library" / "odd", [(0, 0.9, 7, 7, 9, 9)] * 3, ["part"])
    pipelines = [{"name": "door", "source": f"{place.pictures}?loop=1&rate=10", "model": "odd"}]
    listener = listen(broker.port)
    library = {"models_dirs": [str(place.root / "library")], "engine": "auto"}
    running = agent(agent_settings("box", broker.url, pipelines, **library))
    health = listener.wait_why("model odd: none of the boxes so far is in the frame")
    assert health["state"] == "degraded"
    assert any("output.decoder" in why for why in health["why"])
    assert running.stop() == 0


def test_a_classifier_that_is_deaf_is_a_reason_of_degraded(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """Of two with the same network, only the one with the wrong scale; said once in the log."""
    source = write_pictures(tmp_path / "pictures", blocks(20, 0, 255)) + "?loop=1&rate=50"
    right = color_classifier(tmp_path / "library" / "right")
    wrong = color_classifier(tmp_path / "library" / "wrong")
    output = {"decoder": "logits", "labels": ["red", "green", "blue"]}
    write_manifest(wrong, "1", "classification", input={"scale": 65025}, output=output)
    pipelines = [
        {"name": name, "source": source, "model": model.name}
        for name, model in (("door", wrong), ("gate", right))
    ]
    library = {"models_dirs": [str(tmp_path / "library")], "engine": "auto"}
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, pipelines, **library))
    health = listener.wait_why("model wrong: its scores hardly depend on its input")
    (why,) = [one for one in health["why"] if "scores" in one]
    assert "input.scale, input.mean and input.layout" in why
    assert why.endswith("(pipeline door)")
    listener.wait_for(lambda _: len(listener.on("edge/box/result/gate")) > 300, "results")
    assert running.stop() == 0
    assert running.words().count("its scores hardly depend on its input") == 1
