"""What engines compile for other devices than the CPU is kept, and read only as it was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_agent.core.types import Tensors
from edge_agent.inference.engines.compiled_cache import LIMIT, compiled_cache
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import open_engine
from tests.helpers.tiny_networks import convolution


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the service's cache folder, as systemd does."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compiled"


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Make a network."""
    (tmp_path / "model").mkdir()
    return convolution(tmp_path / "model" / "model.onnx")[0]


def infer(network: Path, device: str) -> Tensors:
    """Open a network and run it once; AUTO:CPU is opened as a GPU would be."""
    engine = open_engine(EngineChoice(engine="openvino", device=device), network, lambda _: {})
    try:
        return engine.infer({"x": np.ones((1, 3, 8, 8), np.float32)})
    finally:
        engine.close()


def kept(cache: Path) -> list[Path]:
    """List what engines have written."""
    return [path for path in cache.rglob("*") if path.is_file() and path.name != "digests.json"]


def test_what_was_compiled_is_kept_and_used_again(cache: Path, network: Path) -> None:
    """The second time the file is read, not written: its content and its time stay."""
    first = infer(network, "AUTO:CPU")
    (blob,) = kept(cache)
    written = blob.stat().st_mtime_ns
    second = infer(network, "AUTO:CPU")
    assert kept(cache) == [blob]
    assert blob.stat().st_mtime_ns == written
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)


def test_the_processor_keeps_none(cache: Path, network: Path) -> None:
    """Prepared forms are its way."""
    infer(network, "CPU")
    assert kept(cache) == []


def test_a_file_that_has_changed_is_not_read(cache: Path, network: Path) -> None:
    """One bit is enough: it is compiled again, and the numbers are right."""
    right = infer(network, "AUTO:CPU")
    (blob,) = kept(cache)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.chmod(0o600)
    blob.write_bytes(data)
    found = infer(network, "AUTO:CPU")
    for name, array in right.items():
        np.testing.assert_array_equal(found[name], array)
    assert kept(cache) == [blob]
    assert blob.read_bytes() != bytes(data)


def test_a_file_whose_writing_was_cut_off_is_removed(cache: Path, network: Path) -> None:
    """Nobody has vouched for it."""
    with compiled_cache("openvino", "1", network) as folder:
        assert folder is not None
        (folder / "whole").write_bytes(b"1")
    (folder / "half").write_bytes(b"2")
    with compiled_cache("openvino", "1", network) as again:
        assert again == folder
        assert [path.name for path in kept(cache)] == ["whole"]


def test_another_version_and_what_is_too_much_go(cache: Path, network: Path) -> None:
    """Another engine's stays; of this one's files the oldest go first."""
    for engine, version in (("onnxruntime", "1"), ("openvino", "1/a"), ("openvino", "2")):
        with compiled_cache(engine, version, network) as folder:
            assert folder is not None
            blob = folder / "blob"
            blob.write_bytes(b"1")
    assert sorted(path.name for path in cache.iterdir()) == ["onnxruntime-1", "openvino-2"]
    with blob.open("r+b") as file:
        file.truncate(LIMIT + 1)  # takes no room on the disk
    other = network.with_name("other.onnx")
    other.write_bytes(b"another size")
    with compiled_cache("openvino", "2", other):
        assert [path.parts[-3] for path in kept(cache)] == ["onnxruntime-1"]


@pytest.mark.usefixtures("cache")
def test_without_a_folder_of_its_own_nothing_is_kept(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens the same network at the same time, or cannot write, compiles for himself."""
    with compiled_cache("openvino", "1", network) as first:
        assert first is not None
        with compiled_cache("openvino", "1", network) as second:
            assert second is None
    monkeypatch.setenv("CACHE_DIRECTORY", "/proc/nothing")
    with compiled_cache("openvino", "1", network) as nowhere:
        assert nowhere is None
    assert infer(network, "AUTO:CPU")
