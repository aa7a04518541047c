"""OpenVINO's prepared form: the compiled network, kept and imported again."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.core.errors import EngineError
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.prepared.artifact import BLOB, Artifact, ArtifactError, read
from edge_agent.inference.prepared.compile.cache import find, prepare
from edge_agent.inference.prepared.engine import open_artifact
from edge_agent.inference.prepared.load import load_folder
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from tests.helpers.prepared_models import WIDTH, chain, damage, noise, plain, rewrite

CHOICE = EngineChoice("openvino", threads=1, lanes=2)
LAYERS = 6


class Made:
    """A model, and a form that was made of it."""

    def __init__(self, folder: Path) -> None:
        self.model = chain(folder / "chain", LAYERS)
        self.store = Store(folder / "state")
        self.form = prepare(self.store, load(self.model), CHOICE, "signal")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make one form for all tests that do not harm it."""
    return Made(tmp_path_factory.mktemp("blob"))


@pytest.fixture
def form(made: Made, tmp_path: Path) -> Artifact:
    """Copy the form, for tests that do."""
    place = tmp_path / made.form.key
    shutil.copytree(made.form.folder, place)
    return read(str(place))


def test_imported_network_is_the_compiled_one(made: Made) -> None:
    """Inputs, outputs, label and numbers are those of the network compiled from its file."""
    network, engine = plain(made.model, CHOICE), open_artifact(CHOICE, made.form, lambda _: {})
    assert engine.label == network.label == "openvino:CPU"
    assert (engine.inputs, engine.outputs) == (network.inputs, network.outputs)
    x = {"x0": noise(1, 4, WIDTH)}
    np.testing.assert_array_equal(engine.infer(x)[f"x{LAYERS}"], network.infer(x)[f"x{LAYERS}"])
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.infer(x)


def test_other_lanes_follow_behind(made: Made) -> None:
    """The first result needs one network; that of the second lane is imported afterward."""
    engine = open_artifact(CHOICE, made.form, lambda _: {})
    inputs = [noise(seed, 4, WIDTH) for seed in range(4)]
    expected = [engine.infer({"x0": x})[f"x{LAYERS}"] for x in inputs]
    assert engine.finish_load()
    assert not engine.finish_load()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: engine.infer({"x0": x})[f"x{LAYERS}"], inputs * 10))
    for index, array in enumerate(found):
        np.testing.assert_array_equal(array, expected[index % 4])
    alone = open_artifact(replace(CHOICE, lanes=1), made.form, lambda _: {})
    assert not alone.finish_load()


def test_it_is_found_by_its_choice(made: Made) -> None:
    """The form is for one engine and choice."""
    assert find(made.store.root, made.model, CHOICE, "signal") is not None
    assert find(made.store.root, made.model, EngineChoice("onnxruntime"), "signal") is None


def test_damaged_blob_is_not_imported(form: Artifact) -> None:
    """Native code is not given a blob whose checksum is another."""
    for at in (0, 100, Path(form.path(BLOB)).stat().st_size - 1):
        damage(Path(form.path(BLOB)), at)
        with pytest.raises(ArtifactError, match="are damaged"):
            open_artifact(CHOICE, form, lambda _: {})
        damage(Path(form.path(BLOB)), at)


def test_blob_of_another_version_is_refused(form: Artifact) -> None:
    """A blob that another version of OpenVINO has exported is not imported."""
    rewrite(form, version="2025.1")
    with pytest.raises(ArtifactError, match=r"made by openvino 2025\.1"):
        open_artifact(CHOICE, read(form.folder), lambda _: {})


def test_it_is_not_begun_with_onnx_runtime(made: Made) -> None:
    """What begins early knows ONNX Runtime only, and says so."""
    with pytest.raises(ArtifactError, match="is not of ONNX Runtime"):
        load_folder(made.form.folder)


def test_only_the_cpu_has_blobs(made: Made) -> None:
    """For a device that only chooses others there is no form."""
    with pytest.raises(ArtifactError, match="only networks for the CPU"):
        prepare(made.store, load(made.model), EngineChoice("openvino", "AUTO:CPU"), "signal")
