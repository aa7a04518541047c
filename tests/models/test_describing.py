"""What `describe` says of model folders and bare files."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError, UsageError
from edge_agent.models.describing import describe
from tests.helpers.drafts import decided
from tests.helpers.small_models import (
    brightness,
    detector,
    loudness,
    plain,
    write_manifest,
    write_pictures,
)
from tests.helpers.support import ASSETS, CHECKOUT, call_cli, needs_assets
from tests.helpers.text_models import embedder
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx, times_two
from tests.models.test_huggingface import LABELS, export

MODELS = CHECKOUT / "models"


def test_a_complete_folder_lacks_nothing() -> None:
    """Nothing is guessed or missing of a bundled model; its facts are those of the network."""
    described = describe(MODELS / "parts-inspection")
    assert described.guessed == described.missing == ()
    assert described.facts.quantized
    assert [str(spec) for spec in described.facts.outputs] == ["output0 float32[1, 9, 960]"]
    assert described.labels == 5


def test_a_folder_without_golden_outputs_lacks_them(tmp_path: Path) -> None:
    """What a model runs without, and is worse for, is named."""
    described = describe(brightness(tmp_path / "light"))
    assert [line.partition(":")[0] for line in described.missing][-1] == "golden.npz"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Make a model whose golden.npz is cut short."""
    folder = tmp_path / "parts"
    shutil.copytree(MODELS / "parts-inspection", folder)
    golden = folder / "golden.npz"
    golden.write_bytes(golden.read_bytes()[:2000])
    return folder


def test_a_golden_file_that_is_damaged_is_wrong(damaged: Path) -> None:
    """`describe` says it and ends with 1, after all the rest."""
    said = call_cli("describe", str(damaged))
    assert said.code == 1
    *rest, last = said.out.splitlines()
    assert last == (
        f"wrong    {damaged}/golden.npz: cannot be read: File is not a zip file; devices refuse "
        "the model: make the file again, or take it out"
    )
    assert not any(line.startswith("missing") for line in rest)
    assert json.loads(call_cli("describe", str(damaged), "--json").out)["wrong"] == [last[9:]]


def test_golden_arrays_of_another_network_are_wrong(tmp_path: Path) -> None:
    """Names of inputs and outputs, and shapes of inputs, are looked at without an engine."""
    folder = brightness(tmp_path / "light")
    facts = describe(folder).facts
    (given,), (found,) = facts.inputs, facts.outputs
    shape = tuple(size or 1 for size in given.shape)
    right = {f"input/{given.name}": np.zeros((3, *shape), given.dtype)}
    numbers = {f"output/{found.name}": np.zeros((3, 7), np.float32)}
    np.savez(folder / "golden.npz", **right, **numbers)  # type: ignore[arg-type]
    assert describe(folder).wrong == ()  # what shape outputs have, engines tell
    np.savez(folder / "golden.npz", **right, **{"output/x": np.zeros(3)})  # type: ignore[arg-type]
    assert "unknown: output/x" in describe(folder).wrong[0]
    short = {name: array[..., :1] for name, array in right.items()}
    np.savez(folder / "golden.npz", **short, **numbers)  # type: ignore[arg-type]
    assert f"input/{given.name}: expected {given}, found" in describe(folder).wrong[0]


@needs_assets
def test_golden_inputs_of_half_floats_may_be_floats(tmp_path: Path) -> None:
    """OpenVINO takes floats for an IR of half floats, and so does its golden file."""
    folder = tmp_path / "pose"
    folder.mkdir()
    for suffix in ("xml", "bin"):
        name = f"head-pose-estimation-adas-0001.{suffix}"
        shutil.copy(ASSETS / "models" / "ir" / name, folder / name)
    tables: dict[str, Any] = {
        "input": {"color": "bgr"},
        "file": "head-pose-estimation-adas-0001.xml",
    }
    write_manifest(folder, "1", "raw", name="pose", **tables)
    arrays = {
        "input/data": np.zeros((1, 3, 60, 60), np.float32),
        "output/angle_p_fc": np.zeros((1, 1), np.float32),
    }
    np.savez(folder / "golden.npz", **arrays)  # type: ignore[arg-type]
    described = describe(folder)
    assert described.facts.inputs[0].dtype == "float16"
    assert described.wrong == ()


def test_keys_in_vain_are_noted(tmp_path: Path) -> None:
    """Those of pictures in the manifest of a sensor, by `describe`, `pack` and `try`."""
    folder = loudness(tmp_path / "loud", 8)
    manifest = folder / "model.toml"
    manifest.write_text(manifest.read_text().replace("[input]", '[input]\nresize = "letterbox"'))
    note = "note     input.resize: no effect: the model takes windows of sensor data"
    samples = tmp_path / "samples.csv"
    samples.write_text("\n".join(["level", *map(str, range(64))]))
    for command in (
        ["describe", str(folder)],
        ["pack", str(folder), "-o", str(tmp_path / "loud.tar")],
        ["try", str(samples), str(folder), "--seconds", "5"],
    ):
        said = call_cli(*command)
        assert said.code == 0, said
        assert any(line.startswith(note) for line in said.out.splitlines()), said.out


def test_a_detector_without_labels_says_how_it_gets_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also `try`, which shows their numbers."""
    row = (0, 0.9, 0.0, 0.0, 0.5, 0.5)
    folder = detector(tmp_path / "finder", [row], ["box"])
    manifest = folder / "model.toml"
    manifest.write_text(re.sub(r"labels = \[[^]]*\]", "", manifest.read_text()))
    (lack,) = [line for line in describe(folder).missing if line.startswith("labels: ")]
    assert "write a labels.txt, one a line, and in model.toml, below [output]" in lack
    monkeypatch.chdir(tmp_path)
    said = call_cli("try", write_pictures(tmp_path / "p", [plain(90)]), str(folder))
    assert f"missing  {lack}\n" in said.out


def test_a_bare_file_that_says_enough(tmp_path: Path) -> None:
    """Its manifest follows, with what was guessed."""
    described = describe(export(tmp_path))
    assert described.manifest is not None
    assert described.manifest.output.labels == LABELS
    assert described.guessed


def test_a_bare_file_that_does_not(tmp_path: Path) -> None:
    """What is known becomes a draft, the rest is listed."""
    path = constant_outputs(
        tmp_path / "net.onnx",
        {"out": np.zeros((1, 1000), np.float32)},
        picture=(1, 3, 8, 8),
    )
    described = describe(path)
    assert described.manifest is None
    assert "to_decide = [\n" in described.draft
    assert 'file = "net.onnx"' in described.draft
    assert len(described.missing) > 2


def test_a_folder_of_one_file_is_described_as_that_file(tmp_path: Path) -> None:
    """Its error had pointed to the draft that `describe` prints, and it printed none."""
    network = times_two(tmp_path / "net.onnx")
    one, folder = (call_cli("describe", str(path)) for path in (network, tmp_path))
    assert (folder.code, folder.out) == (0, one.out)
    assert "a draft:" in folder.out
    shutil.copy(network, tmp_path / "other.onnx")
    said = call_cli("describe", str(tmp_path))
    assert said.code == 1
    assert "name one of net.onnx, other.onnx" in said.error


def test_what_is_no_model(tmp_path: Path) -> None:
    """A damaged file and a path to nothing are errors, not descriptions."""
    (tmp_path / "cut.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(ModelError, match="not a valid ONNX file"):
        describe(tmp_path / "cut.onnx")
    with pytest.raises(UsageError, match="no such file"):
        describe(tmp_path / "nothing.onnx")


def test_the_command_as_json(tmp_path: Path) -> None:
    """`--json` is one object of what the file says and what follows from it."""
    said = call_cli("describe", "--json", str(export(tmp_path)))
    found = json.loads(said.out)
    assert found["inputs"] == [{"name": "images", "shape": [1, 3, 32, 32], "dtype": "float32"}]
    assert found["manifest"]["output"]["decoder"] == "logits"
    assert found["missing"]


def test_the_draft_alone_is_a_manifest_for_a_file(tmp_path: Path) -> None:
    """Of a file that leaves questions, and of one that says everything."""
    network = times_two(tmp_path / "net.onnx")
    for path in (network, export(tmp_path)):
        said = call_cli("describe", "--draft", str(path))
        found = tomllib.loads(said.out)
        assert (said.code, found["file"]) == (0, path.name if path.is_file() else "model.onnx")
    assert "\nto_decide = [" in call_cli("describe", "--draft", str(network)).out
    folder = tmp_path / "folder"
    folder.mkdir()
    network.rename(folder / network.name)
    (folder / "model.toml").touch()  # by the shell: `describe DIR --draft > DIR/model.toml`
    assert "\nto_decide = [" in call_cli("describe", "--draft", str(folder)).out


def test_a_draft_that_nobody_has_answered_is_said(tmp_path: Path) -> None:
    """It served by a mean of 0, a scale of 1, RGB and stretched, without a word."""
    folder = tmp_path / "dogs"
    folder.mkdir()
    network = constant_outputs(
        folder / "model.onnx", {"out": np.zeros((1, 2), np.float32)}, picture=(1, 3, 8, 8)
    )
    draft = call_cli("describe", "--draft", str(network)).out
    (folder / "model.toml").write_text(draft)
    open_ = "input.color, input.mean and input.scale; input.resize"
    for command in (("describe",), ("pack", "-o", str(tmp_path / "dogs.tar"))):
        said = call_cli(*command, str(folder))
        assert said.code == 0
        assert "to_decide: not decided yet: " in said.out
        assert open_ in said.out
    (folder / "model.toml").write_text(decided(draft))
    manifest = describe(folder).manifest
    assert manifest is not None
    assert manifest.name == "dogs"  # each exporter's network is called model.onnx


def test_the_command_as_text(tmp_path: Path) -> None:
    """Each line begins with what it is; names from the file cannot give orders to a terminal."""
    network = times_two(tmp_path / "net.onnx", metadata={"note\x1b[2J": "x\ny" * 200})
    said = call_cli("describe", str(network))
    assert said.code == 0
    assert "\x1b" not in said.out
    assert "says     note\\x1b[2J: " in said.out
    assert "manifest none follows from this; a draft:\n" in said.out


def sentences(folder: Path, pooling: str, *modules: str) -> Path:
    """Leave a network of texts as sentence-transformers and optimum-cli do; gives its file."""
    embedder(folder).joinpath("model.toml").unlink()
    kinds = ["Transformer", "Pooling", *modules, "Normalize"]
    beside = {
        "config.json": {"architectures": ["BertModel"]},
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
        "modules.json": [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds],
        "1_Pooling/config.json": {"word_embedding_dimension": 16}
        | {f"pooling_mode_{way}": way == pooling for way in ("cls_token", "mean_tokens")},
    }
    for name, content in beside.items():
        folder.joinpath(name).parent.mkdir(exist_ok=True)
        folder.joinpath(name).write_text(json.dumps(content))
    return folder / "model.onnx"


@pytest.mark.parametrize(("pooling", "key"), [("cls_token", "cls"), ("mean_tokens", "mean")])
def test_a_network_of_texts_is_drafted_from_its_own_files(
    tmp_path: Path, pooling: str, key: str
) -> None:
    """The draft is a complete manifest, which loads; the file alone asks to write it down."""
    file = sentences(tmp_path / "texts", pooling)
    described = describe(file)
    assert described.draft is not None
    assert "to_decide" not in described.draft
    assert described.missing == (described.missing[0],)
    assert 'task = "embedding"' in described.missing[0]
    file.with_name("model.toml").write_text(described.draft)
    manifest = describe(file.parent).manifest
    assert manifest is not None
    assert (manifest.input.tokenizer, manifest.input.max_tokens) == ("tokenizer.json", 24)
    assert manifest.output.pooling == key


def test_what_a_network_of_texts_lacks_is_asked(tmp_path: Path) -> None:
    """The pooling, the length, the tokenizer and a further layer are no guesses."""
    file = sentences(tmp_path / "texts", "max_tokens", "Dense")
    for name in ("tokenizer.json", "sentence_bert_config.json", "config.json"):
        file.with_name(name).unlink()
    keys = [line.partition(":")[0] for line in describe(file).missing[1:]]
    assert keys == ["input.tokenizer", "input.max_tokens", "output.pooling", "export"]
    assert "Dense" in describe(file).missing[-1]


def test_a_classifier_of_texts_is_told_what_to_export(tmp_path: Path) -> None:
    """Its scores are of no task here; the network below them is."""
    ids = ("input_ids", "int64", ("batch", "tokens"))
    path = save_onnx(
        tmp_path / "sentiment.onnx",
        [node("Cast", ["input_ids"], ["logits"], to=1)],
        [ids],
        [("logits", "float32", ("batch", "tokens"))],
    )
    (_, why) = describe(path).missing
    assert why.startswith("task: only embedding takes texts; export the network without a head")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ('labels = ["flat", "full", "no-tire"]', None),
        ('labels = ["full", "no-tire"]\nfirst_label = 1', None),
        ('labels = ["flat", "full"]', "expected 3 labels for the 3 classes of output out float32"),
        ('labels = ["flat", "full", "no-tire"]\nfirst_label = 1', "expected 2 labels"),
    ],
)
def test_tire_classifier_labels_of_another_number_are_wrong(
    tmp_path: Path, output: str, said: str | None
) -> None:
    """`try` refused them, while `describe` called the folder complete."""
    constant_outputs(tmp_path / "m.onnx", {"out": np.zeros((1, 3), np.float32)})
    text = 'name = "m"\nversion = "1"\ntask = "classification"\nfile = "m.onnx"\n[output]\n'
    (tmp_path / "model.toml").write_text(f'{text}decoder = "softmax"\n{output}\n')
    wrong = describe(tmp_path).wrong
    assert len(wrong) == (said is not None)
    assert all(f"{tmp_path}/model.toml: output.labels: {said}" in line for line in wrong)


def test_keras_45701_one_chance_has_two_labels(tmp_path: Path) -> None:
    """It is that of the second."""
    constant_outputs(tmp_path / "m.onnx", {"out": np.zeros((1, 1), np.float32)})
    text = 'name = "m"\nversion = "1"\ntask = "classification"\nfile = "m.onnx"\n[output]\n'
    (tmp_path / "model.toml").write_text(f'{text}decoder = "softmax"\nlabels = ["cat", "dog"]\n')
    assert describe(tmp_path).wrong == ()
