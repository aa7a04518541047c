"""Prepared forms: the network's own numbers, whichever way they are loaded, or no form at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

from edge_agent.core.errors import EngineError, ModelError
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.prepared.artifact import (
    FILE,
    FOLDER,
    GRAPH,
    STREAMED,
    WEIGHTS,
    WHOLE,
    Artifact,
    ArtifactError,
    read,
)
from edge_agent.inference.prepared.compile import collect
from edge_agent.inference.prepared.compile.cache import (
    StoppedError,
    discard,
    find,
    key_of,
    prepare,
)
from edge_agent.inference.prepared.engine import OrtPreparedEngine, open_artifact
from edge_agent.inference.prepared.load import load_folder, prefetch
from edge_agent.models.describing import describe
from edge_agent.models.manifest import load
from edge_agent.models.store.housekeeping import clean_leftovers
from edge_agent.models.store.store import Store
from tests.helpers.drafts import decided
from tests.helpers.prepared_models import (
    CPU,
    WIDTH,
    chain,
    damage,
    engine_of,
    noise,
    plain,
    raw_manifest,
    rewrite,
    table_of,
)
from tests.helpers.support import CHECKOUT, wait_until
from tests.helpers.tiny_networks import node, save_onnx
from tests.models.test_reported_kinds import save_maps

WAYS = (WHOLE, STREAMED)
LAYERS = 8


class Made:
    """A model, and a form that was made of it."""

    def __init__(self, folder: Path) -> None:
        self.model = chain(folder / "chain", LAYERS)
        self.store = Store(folder / "state")
        model = load(self.model)
        self.form = prepare(self.store, model, CPU, "signal")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make one form for all tests that do not harm it."""
    return Made(tmp_path_factory.mktemp("forms"))


@pytest.fixture
def form(made: Made, tmp_path: Path) -> Artifact:
    """Copy the form, for tests that do."""
    place = tmp_path / made.form.key
    shutil.copytree(made.form.folder, place)
    return read(str(place))


def test_numbers_are_the_networks_own(made: Made) -> None:
    """Loaded whole, the outputs are those of the network itself bit for bit."""
    network, engine = plain(made.model), engine_of(made.form, WHOLE)
    assert engine.label == network.label
    assert (engine.inputs, engine.outputs) == (network.inputs, network.outputs)
    for seed in range(3):
        x = {"x0": noise(seed, 4, WIDTH)}
        np.testing.assert_array_equal(engine.infer(x)[f"x{LAYERS}"], network.infer(x)[f"x{LAYERS}"])
    engine.close()


def test_it_is_exchanged_while_it_is_used(made: Made) -> None:
    """Calls that run while a session of other threads is put in place get results, each of them."""
    engine = engine_of(made.form, WHOLE)
    expected = plain(made.model).infer({"x0": noise(3, 4, WIDTH)})[f"x{LAYERS}"]
    settled = threading.Event()

    def work() -> int:
        runs = 0
        while not settled.is_set() or runs < 20:
            found = engine.infer({"x0": noise(3, 4, WIDTH)})[f"x{LAYERS}"]
            np.testing.assert_array_equal(found, expected)
            runs += 1
        return runs

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work) for _ in range(2)]
        try:
            assert not engine.finish_load()
            assert engine.finish_load(1)
        finally:
            settled.set()
        assert all(each.result() >= 20 for each in working)


def test_a_form_is_the_files_that_its_table_lists(made: Made) -> None:
    """Of each there is a checksum, and nothing else lies beside them."""
    table = table_of(made.form.folder)
    assert table["way"] == WHOLE
    assert all(Path(made.form.path(name)).is_file() for name in table["sha256"])
    assert {path.name for path in Path(made.form.folder).iterdir()} == {FILE, *table["files"]}


def test_weights_lie_in_order_of_execution(made: Made) -> None:
    """Each large tensor begins at a page, later ones behind earlier ones."""
    from onnx import ModelProto

    model = ModelProto()
    model.ParseFromString(Path(made.form.path(GRAPH)).read_bytes())
    places: dict[str, int] = {}
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            assert entries["location"] == WEIGHTS
            places[tensor.name] = int(entries["offset"])
    large = [places[name] for step in model.graph.node for name in step.input if name in places]
    assert len(large) >= LAYERS
    assert large == sorted(large)
    assert all(place % 4096 == 0 for place in large)


def test_it_is_found_again(made: Made) -> None:
    """The same model on the same engine has a form, another engine, choice or kind has none."""
    found = find(made.store.root, made.model, CPU, "signal")
    assert found is not None
    assert found.folder == made.form.folder
    assert Path(found.folder).name == found.key
    for other in (replace(CPU, threads=1), replace(CPU, options={"enable_mem_pattern": False})):
        assert find(made.store.root, made.model, other, "signal") is None
    assert find(made.store.root, made.model, CPU, "picture") is None
    assert find(made.store.root, made.model, CPU, "signal", budget_mb=64) is None
    assert list(made.store.staging.iterdir()) == []


def test_key_follows_the_models_files(made: Made, tmp_path: Path) -> None:
    """Another byte in any file of the model is another key, though name, size and time are kept."""
    copy = tmp_path / "chain"
    shutil.copytree(made.model, copy)
    first = key_of(tmp_path, copy, CPU, "signal")
    assert first == key_of(tmp_path, copy, CPU, "signal")
    assert first == made.form.key
    before = (copy / "model.onnx").stat()
    damage(copy / "model.onnx", 5000)
    os.utime(copy / "model.onnx", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert key_of(tmp_path, copy, CPU, "signal") != first


def test_damaged_weights_are_noticed(made: Made, form: Artifact) -> None:
    """One bit turned over anywhere in the weights: no result comes of it, loaded in any way."""
    size = Path(form.path(WEIGHTS)).stat().st_size
    for place in range(100, size, size // 5):
        damage(Path(form.path(WEIGHTS)), place)
        for way in WAYS:
            engine = engine_of(form, way)
            with pytest.raises(ArtifactError, match=r"weights\.bin: bytes .* are damaged"):
                engine.infer({"x0": noise(0, 4, WIDTH)})
            engine.close()
        damage(Path(form.path(WEIGHTS)), place)
    engine = engine_of(form, WHOLE)
    expected = plain(made.model).infer({"x0": noise(0, 4, WIDTH)})
    np.testing.assert_array_equal(
        engine.infer({"x0": noise(0, 4, WIDTH)})[f"x{LAYERS}"], expected[f"x{LAYERS}"]
    )


@pytest.mark.parametrize("way", WAYS)
def test_damaged_graph_is_never_parsed(form: Artifact, way: str) -> None:
    """A graph whose checksum is another is not given to the engine."""
    for name in form.table["files"]:
        if name.endswith(".onnx"):
            damage(Path(form.path(name)), 30)
    with pytest.raises(ArtifactError, match=r"\.onnx: damaged"):
        engine_of(form, way)


@pytest.mark.parametrize("name", [FILE, GRAPH, WEIGHTS])
@pytest.mark.parametrize("how", ["cut short", "missing"])
def test_incomplete_form_is_not_read(form: Artifact, name: str, how: str) -> None:
    """A file that is cut short or gone is noticed before anything is loaded."""
    path = Path(form.path(name))
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ArtifactError):
        read(form.folder)


def test_damaged_table_is_not_believed(form: Artifact) -> None:
    """Any bit turned over in the table is noticed."""
    path = Path(form.path(FILE))
    for at in range(0, path.stat().st_size, 61):
        damage(path, at)
        with pytest.raises(ArtifactError, match="damaged"):
            read(form.folder)
        damage(path, at)
    assert read(form.folder).key == form.key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpu": "0123456789abcdef"}, "other instructions"),
        ({"format": 0}, "form 0, expected"),
        ({"version": "1.0.0"}, r"made by onnxruntime 1\.0\.0"),
    ],
)
def test_form_of_elsewhere_is_refused(
    form: Artifact, changes: dict[str, object], words: str
) -> None:
    """A form of another processor, format or engine version is whole, and not used."""
    rewrite(form, **changes)
    with pytest.raises(ArtifactError, match=words):
        load_folder(form.folder)


def test_unusable_form_is_as_good_as_none(made: Made, tmp_path: Path) -> None:
    """A damaged form is not found; making it anew puts a good one in its place."""
    store = Store(tmp_path / "state")
    shutil.copytree(made.form.folder, store.root / FOLDER / made.form.key)
    damage(store.root / FOLDER / made.form.key / FILE, 100)
    assert find(store.root, made.model, CPU, "signal") is None
    again = prepare(store, load(made.model), CPU, "signal")
    assert again.key == made.form.key
    discard(again.folder, store)
    discard(again.folder, store)
    assert find(store.root, made.model, CPU, "signal") is None


def test_it_can_be_begun_early(made: Made) -> None:
    """Loading that was begun by its folder alone becomes an engine when the rest is there."""
    prefetch(made.form.folder)
    begun = load_folder(made.form.folder)
    engine = open_artifact(CPU, begun, lambda _: {})
    x = {"x0": noise(5, 4, WIDTH)}
    np.testing.assert_array_equal(
        engine.infer(x)[f"x{LAYERS}"], plain(made.model).infer(x)[f"x{LAYERS}"]
    )


def test_beginning_imports_little() -> None:
    """What is imported before the engine is neither NumPy nor anything else that is large."""
    script = (
        "import sys, edge_agent.inference.prepared.load;"
        "print([m for m in ('numpy', 'onnx', 'onnxruntime', 'openvino', 'pydantic', 'cv2',"
        " 'edge_agent.core.types', 'edge_agent.inference.engines.engine') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    assert done.stdout.strip() == "[]"


def test_form_of_other_sizes_is_refused(made: Made) -> None:
    """A form that was made for other sizes than those wanted now is not used."""
    rewritten = Artifact(made.form.folder, dict(made.form.table))
    rewritten.table["declared"] = [["x0", [None, WIDTH], "float32"]]
    with pytest.raises(ArtifactError, match=rf"form for x0 float32\[4, {WIDTH}\], not for .*\[2, "):
        open_artifact(CPU, rewritten, lambda _: {"x0": (2, WIDTH)})
    with pytest.raises(ArtifactError, match="not of openvino"):
        open_artifact(EngineChoice("openvino"), made.form, lambda _: {})


def test_inputs_are_checked(made: Made) -> None:
    """A missing or misshapen input is an error by name, as of every engine."""
    engine = engine_of(made.form, STREAMED)
    with pytest.raises(EngineError, match="inputs: expected"):
        engine.infer({})
    with pytest.raises(EngineError, match="expected x0"):
        engine.infer({"x0": noise(0, 3, WIDTH)})
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.infer({"x0": noise(0, 4, WIDTH)})


@pytest.mark.parametrize("way", WAYS)
def test_closing_while_another_thread_infers(made: Made, way: str) -> None:
    """A call that runs while the engine is closed ends with a result or an error, not a crash."""
    x = {"x0": noise(6, 4, WIDTH)}
    expected = plain(made.model).infer(x)[f"x{LAYERS}"]
    for _ in range(5):
        engine = engine_of(made.form, way)
        begun = threading.Event()

        def work(engine: OrtPreparedEngine = engine, begun: threading.Event = begun) -> int:
            runs = 0
            while True:
                try:
                    found = engine.infer(x)[f"x{LAYERS}"]
                except EngineError as problem:
                    assert "closed" in str(problem)  # noqa: PT017 - it ends the loop
                    return runs
                np.testing.assert_allclose(found, expected, atol=1e-4)
                runs += 1
                begun.set()

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            assert begun.wait(20)
            engine.close()
            assert working.result(20) >= 1


def test_input_may_be_read_only(made: Made) -> None:
    """Arrays in records are never written to, so that stages take them locked too."""
    x = noise(0, 4, WIDTH)
    x.setflags(write=False)
    engine = engine_of(made.form, STREAMED)
    expected = plain(made.model).infer({"x0": x})[f"x{LAYERS}"]
    np.testing.assert_allclose(engine.infer({"x0": x})[f"x{LAYERS}"], expected, atol=1e-4)


def test_a_classifier_whose_classes_are_texts_has_a_form(tmp_path: Path) -> None:
    """Its chances are a tensor in the form too."""
    folder = tmp_path / "maps"
    folder.mkdir()
    save_maps(folder / "model.onnx", trees=True, texts=True)
    (folder / "model.toml").write_text(decided(describe(folder / "model.onnx").draft))
    form = prepare(Store(tmp_path / "state"), load(folder), CPU, "signal")
    engine = engine_of(form, form.table["way"])
    made = engine.infer({"X": np.zeros((1, 4), np.float32)})
    engine.close()
    assert_allclose(made["maps"], [[0.9, 0.1]], atol=1e-6)


def test_no_form_of_what_is_no_network(tmp_path: Path) -> None:
    """A file that is not ONNX is refused in words, and nothing is left behind."""
    model = chain(tmp_path / "chain", 2)
    (model / "model.onnx").write_bytes(b"not a network" * 100)
    store = Store(tmp_path / "state")
    with pytest.raises(ArtifactError, match=r"chain@1: cannot be prepared: .*onnx"):
        prepare(store, load(model), CPU, "signal")
    assert list(store.staging.iterdir()) == []
    assert list((store.root / FOLDER).glob("*/")) == []


def test_making_it_can_be_stopped(tmp_path: Path) -> None:
    """Whoever wants no form any more says so, and gets his reason back; nothing is left."""
    model, store = chain(tmp_path / "chain"), Store(tmp_path / "state")
    for asked in (0, 1):  # before there is a process that makes it, and while it does
        answers = iter([None] * asked)
        with pytest.raises(StoppedError, match="the box goes down"):
            prepare(
                store,
                load(model),
                CPU,
                "signal",
                stopped=lambda left=answers: next(left, "the box goes down"),  # type: ignore[misc]
            )
    with pytest.raises(ArtifactError, match="gave no answer within 0 s"):
        prepare(store, load(model), CPU, "signal", timeout_s=0.0)
    assert list(store.staging.iterdir()) == []


def test_making_it_again_after_it_was_cut_off_does_not_yield(tmp_path: Path) -> None:
    """On a busy box that is restarted again and again there would never be a form."""
    model, store = chain(tmp_path / "chain"), Store(tmp_path / "state")
    asked: list[int] = []

    def made(*, stops: bool = False) -> int:
        """Make it, and say how often it was asked whether to pause."""
        asked.clear()

        def yields() -> bool:
            asked.append(1)
            return False

        prepare(
            store,
            load(model),
            CPU,
            "signal",
            stopped=lambda: "the box goes down" if stops and asked else None,
            yields=yields,
        )
        return len(asked)

    with pytest.raises(StoppedError):
        made(stops=True)
    assert asked
    assert made() == 0
    assert made() > 0
    with pytest.raises(ArtifactError):
        prepare(store, load(model), CPU, "signal", timeout_s=0.0)
    assert made() > 0


def test_no_form_without_room(made: Made, tmp_path: Path) -> None:
    """Where the quota leaves no room for a form, none is made, and it is said."""
    with pytest.raises(ArtifactError, match=r"does not fit.*quota_mb"):
        prepare(Store(tmp_path), load(made.model), CPU, "signal", quota=1000)


KILLED = """
import sys
from pathlib import Path
from edge_agent.inference.prepared.compile.cache import prepare
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from tests.helpers.prepared_models import CPU
prepare(Store(Path(sys.argv[1])), load(Path(sys.argv[2])), CPU, "signal")
"""


@pytest.mark.parametrize("seen", [GRAPH, FILE])
def test_killed_while_preparing(tmp_path: Path, seen: str) -> None:
    """A kill -9 while a form is made, early or late, leaves nothing that is used or stays."""
    model, store = chain(tmp_path / "chain"), Store(tmp_path / "state")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(store.root), str(model)], cwd=CHECKOUT
    )
    wait_until(
        lambda: any(store.staging.glob(f"*/*/{seen}")) or process.poll() is not None,
        "the form to be begun",
    )
    # The moment between: it holds still, so that it is killed where it was seen.
    process.send_signal(signal.SIGSTOP)
    process.kill()
    process.wait()
    found = find(store.root, model, CPU, "signal")
    if found is None:
        assert not any((store.root / FOLDER).glob("*/"))
    else:
        # It was done in that very moment: then it is whole.
        assert found.key == key_of(store.root, model, CPU, "signal")
    wait_until(lambda: not _at_work(store), "the child to be gone")
    clean_leftovers(store, derived=collect.forms)
    assert list(store.staging.iterdir()) == []


def _at_work(store: Store) -> bool:
    """Whether any process still has a file of a staging folder open or mapped."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(store.staging) in maps.read_text():
                return True
        except OSError:
            continue  # gone meanwhile
    return False


def test_network_with_branches_and_shared_weights(tmp_path: Path) -> None:
    """Weights that several stages use, and several outputs, give the network's own numbers."""
    model, width = tmp_path / "tied", 768
    model.mkdir()
    weight = noise(7, width, width) / 30
    steps = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Add", ["c", "x"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("MatMul", ["e", "w"], ["f"]),
        node("Sigmoid", ["f"], ["y"]),
    ]
    save_onnx(
        model / "model.onnx",
        steps,
        [("x", "float32", (2, width))],
        [("y", "float32", (2, width)), ("b", "float32", (2, width))],
        {"w": weight, "v": noise(8, width, width) / 30},
    )
    form = prepare(Store(tmp_path / "state"), load(raw_manifest(model)), CPU, "signal", budget_mb=4)
    assert len(form.table["stages"]) > 1
    network = plain(model)
    x = {"x": noise(9, 2, width)}
    engine = engine_of(form, STREAMED)
    found, expected = engine.infer(x), network.infer(x)
    assert list(found) == list(expected) == ["y", "b"]
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)  # it adds in another order
    engine.close()


def test_network_without_large_weights(tmp_path: Path) -> None:
    """A network whose weights all lie in its graph has a form like any other."""
    model = chain(tmp_path / "small", 2, width=8)
    form = prepare(Store(tmp_path / "state"), load(model), CPU, "signal")
    x = {"x0": noise(1, 4, 8)}
    np.testing.assert_array_equal(
        engine_of(form, WHOLE).infer(x)["x2"], plain(model).infer(x)["x2"]
    )


def test_network_with_external_data(tmp_path: Path) -> None:
    """Weights in files beside the network become the form's."""
    model = chain(tmp_path / "split", 4, external="weights.data")
    form = prepare(Store(tmp_path / "state"), load(model), CPU, "signal")
    x = {"x0": noise(1, 4, WIDTH)}
    expected = plain(model).infer(x)["x4"]
    shutil.rmtree(model)
    np.testing.assert_array_equal(engine_of(form, WHOLE).infer(x)["x4"], expected)


def test_externalizing_weights_of_garbage(tmp_path: Path) -> None:
    """Bytes that are no ONNX file are refused by the one who takes it apart, whatever they are."""
    from edge_agent.inference.prepared.compile.mapped_network import MappedNetwork
    from edge_agent.models.files.external_weights import externalize_weights
    from edge_agent.models.files.onnx_reader import map_file

    model = chain(tmp_path / "chain", 2) / "model.onnx"
    good = model.read_bytes()
    refused = 0
    for cut in range(1, len(good), len(good) // 40):
        model.write_bytes(good[:cut])
        try:
            externalize_weights(map_file(model), "model.onnx")
        except ModelError:
            refused += 1
    assert refused >= 35
    model.write_bytes(good)
    assert len(MappedNetwork(model).model.SerializeToString()) < 10_000 < len(good)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_tensor_that_says_where_its_bytes_lie(tmp_path: Path, elsewhere: bool) -> None:
    """Quantizers, and whoever saves again what lay in files, say it of bytes in the graph, too."""
    how: dict[str, Any] = {"external": "weights.data"} if elsewhere else {}
    model = chain(tmp_path / "told", 3, **how)
    path = model / "model.onnx"
    network = onnx.load(path)
    for tensor in network.graph.initializer:
        tensor.data_location = onnx.TensorProto.DEFAULT
    onnx.save(network, path)
    assert b"\x70\x00" in path.read_bytes(), "it is written, though it is nothing new"
    form = prepare(Store(tmp_path / "state"), load(model), CPU, "signal")
    x = {"x0": noise(1, 4, WIDTH)}
    np.testing.assert_array_equal(
        engine_of(form, WHOLE).infer(x)["x3"], plain(model).infer(x)["x3"]
    )
