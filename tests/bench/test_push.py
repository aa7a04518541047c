"""`edge-agent bench push`: figures of a real push over a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edge_agent.bench.push.versions import renew, tensors
from edge_agent.models.manifest import load
from edge_agent.models.packages.build import make
from tests.helpers.support import CHECKOUT, run_cli
from tests.helpers.tiny_networks import node, save_onnx


def test_states_rates_and_what_frames_notice() -> None:
    """A JSON object for each model, a bundled one too, with both rates and results of the clip."""
    bundled = str(CHECKOUT / "models" / "parts-inspection")
    options = ["--runs", "1", "--mb", "1", "--protocol", "4", "--max-packet", "131072"]
    done = run_cli("bench", "push", bundled, *options, "--json")
    assert done.returncode == 0, done.stderr
    given, made = (json.loads(line) for line in done.stdout.splitlines())
    assert (given["model"], made["model"]) == ("parts-inspection", "random-1-mb")
    assert made["bytes"] > 1_000_000
    for figures in (given, made):
        assert figures["raw_mb_s"]["median"] > 0
        assert figures["push_mb_s"]["median"] > 0
        assert figures["transfer_s"]["median"] < figures["total_s"]["median"]
        assert figures["clip"]["results_before"] > 0
        assert figures["clip"]["results_during"] > 0


def test_no_block_of_a_version_is_in_the_one_before(tmp_path: Path) -> None:
    """Every large tensor is made new, and the network still loads and gives nearly the same."""
    import onnxruntime as ort

    chance = np.random.default_rng(1)
    weights = chance.standard_normal((4, 50_000), np.float32)
    save_onnx(
        tmp_path / "model.onnx",
        [node("MatMul", ["x", "w"], ["y"])],
        [("x", "float32", (1, 4))],
        [("y", "float32", (1, 50_000))],
        {"w": weights},
    )
    (tmp_path / "model.toml").write_text(
        'name = "wide"\nversion = "1"\ntask = "raw"\nfile = "model.onnx"\n'
        '[input]\nchannels = [0, 1, 2, 3]\nwindow = 1\nlayout = "flat-tc"\n'
        '[output]\ndecoder = "raw"\n'
    )
    before = make(load(tmp_path))
    sizes = zip(before.blocks.digests, before.blocks.lengths, strict=True)
    large = {digest for digest, length in sizes if length > 8000}
    x = np.ones((1, 4), np.float32)
    (first,) = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    for path, ranges in tensors(tmp_path):
        renew(path, ranges, chance)
    assert large.isdisjoint(make(load(tmp_path)).blocks.digests)
    (second,) = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4)


def test_what_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    """A model or clip that is not there ends with 2 and one line that names it."""
    for arguments in ((str(tmp_path / "none"),), ("--source", str(tmp_path / "none.mp4"))):
        done = run_cli("bench", "push", *arguments)
        assert done.returncode == 2
        assert "none" in done.stderr
        assert len(done.stderr.splitlines()) == 1
