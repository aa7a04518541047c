"""One package for unlike devices: each asks for, keeps and runs its own variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.load import load as load_settings
from edge_agent.core.errors import ModelError
from edge_agent.models.manifest import load
from edge_agent.models.packages.build import Package, make, open_package
from edge_agent.models.packages.ustar import RECORD
from edge_agent.models.store.incoming import Incoming
from edge_agent.models.store.install import install_folder, install_incoming
from edge_agent.models.store.local_blocks import check_unchanged
from edge_agent.models.store.store import NOTES, Store
from edge_agent.serving.choice import match_profile, variants_here
from tests.helpers.push import LABELS, Box, classifier, golden, manifest, start_box
from tests.helpers.support import AgentProcess, Listener, Mosquitto, run_cli

SMALL = {"arm-small": {"file": "small.onnx", "output": {"threshold": 0.25}}}


def model(folder: Path, version: str, *, best: tuple[int, int] = (1, 2), **tables: Any) -> Path:
    """Make a model with a network for all and another one for `SMALL`, each finding its label."""
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(manifest(version, **{"variants": SMALL, **tables}))
    classifier(folder / "model.onnx", best=best[0], hidden=100)
    classifier(folder / "small.onnx", best=best[1], hidden=40, seed=8)
    return folder


def files(folder: Path) -> set[str]:
    """List what lies in a model folder, its notes left out."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def only(package: Package, name: str) -> set[int]:
    """List the blocks that hold nothing but a file's content."""
    stream, blocks = package.stream, package.blocks
    whole = stream.read(0, stream.length)
    begin = whole.index(name.encode() + b"\0") + RECORD
    end = begin + int(whole[begin - RECORD + 124 : begin - RECORD + 135], 8)
    pairs = zip(blocks.offsets, blocks.lengths, strict=True)
    return {n for n, (at, size) in enumerate(pairs) if begin <= at and at + size <= end}


def asked(listener: Listener, device: str, package: Package) -> set[int]:
    """List the blocks that a device has asked for."""
    said = listener.on(f"edge/{device}/push/{package.transfer}")
    return {
        n for each in said for first, last in each.get("need", []) for n in range(first, last + 1)
    }


def found(listener: Listener, box: Box, version: str) -> set[str]:
    """List the labels that a version has found."""
    results = listener.on(box.topic("result", "door"))
    return {r["classes"][0]["label"] for r in results if r["model"] == f"level@{version}"}


# On real devices


def test_unlike_devices_take_their_own_of_one_push(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """Each device asks for, keeps and runs its own network, also after going back to it.

    One whose profile has changed serves on, says so, and refuses the same package by name.
    """
    listener = listen(broker.port)
    common: dict[str, Any] = {"groups": ["lab"], "trust": {"allow_unsigned": True}}
    plain = start_box(tmp_path, broker, listener, agent, "plain", profile="generic", **common)
    small = start_box(tmp_path, broker, listener, agent, "small", profile="arm-small", **common)
    second, third = model(tmp_path / "2", "2"), model(tmp_path / "3", "3", best=(2, 0))
    for folder in (second, third):
        done = run_cli("pack", str(folder), "-o", str(folder.with_suffix(".tar")))
        assert done.returncode == 0, done.stderr
    package = open_package(second.with_suffix(".tar"))
    assert package is not None
    done = run_cli("push", f"{second}.tar", "--device", "@lab", "--broker", broker.url)
    assert done.returncode == 0, done.stderr
    for box, own, other in (
        (plain, "model.onnx", "small.onnx"),
        (small, "small.onnx", "model.onnx"),
    ):
        box.wait_settled(outcome="live", version="2")
        box.results_go_on("2")
        assert only(package, own) <= asked(listener, box.device, package)
        assert not only(package, other) & asked(listener, box.device, package)
        assert files(box.state / "models" / "level" / "2") == {"model.toml", own}
    assert found(listener, plain, "2") == {LABELS[1]}
    assert found(listener, small, "2") == {LABELS[2]}

    done = run_cli("push", f"{third}.tar", "--device", "@lab", "--broker", broker.url)
    assert done.returncode == 0, done.stderr
    small.wait_live("3")
    small.wait_settled(outcome="live", version="3")
    # All that is kept of version 2 is read and compared with what was signed.
    done = run_cli("rollback", "level", "--device", "small", "--broker", broker.url)
    assert done.returncode == 0, done.stderr
    small.results_go_on("2")
    assert found(listener, small, "3") == {LABELS[0]}

    assert small.agent.stop() == 0
    text = small.agent.config.read_text()
    small.agent.config.write_text(text.replace('"arm-small"', '"generic"'))
    small.agent.restart()
    problem = "level@2: is kept as variant arm-small, but this device takes no variant now"
    listener.wait_for(
        lambda _h: any(problem in str(each["why"]) for each in listener.on(small.topic("health"))),
        "the problem in health",
    )
    done = run_cli("push", f"{third}.tar", "--device", "small", "--broker", broker.url)
    assert done.returncode == 1
    assert (
        "level@3 is on this device already, as variant arm-small, and is to be no variant now; "
        "give it a higher version"
    ) in done.stdout + done.stderr
    small.results_go_on("2")


# Manifests


def test_the_most_specific_variant_is_laid_over_the_manifest(tmp_path: Path) -> None:
    """The first name that suits decides; tables are merged key by key, all else is replaced."""
    folder = model(
        tmp_path / "m",
        "1",
        variants={
            "arm": {"output": {"threshold": 0.5, "labels": ["a", "b", "c"]}},
            "arm-small": {"file": "small.onnx", "input": {"scale": 1.0}},
        },
    )
    base, arm = load(folder), load(folder, ["generic", "arm"])
    small = load(folder, ["arm-small", "onnxruntime", "arm"])
    assert (base.variant, arm.variant, small.variant) == ("", "arm", "arm-small")
    assert base.labels == tuple(LABELS)
    assert (arm.labels, arm.manifest.output.decoder) == (("a", "b", "c"), "softmax")
    assert (arm.manifest.output.threshold, arm.manifest.input.scale) == (0.5, 255)
    assert (small.manifest.output.threshold, small.manifest.input.scale) == (None, 1.0)
    assert small.network == folder / "small.onnx"


@pytest.mark.parametrize(
    ("variants", "complaint"),
    [
        ({"arm": {"version": "2"}}, "variants.arm: version: is the same for all variants"),
        ({"arm": {"name": "other"}}, "variants.arm: name: is the same for all variants"),
        ({"arm": {"task": "raw"}}, "variants.arm: task: is the same for all variants"),
        ({"arm": {"variants": {}}}, "variants.arm: variants: is the same for all variants"),
        ({"arm": {"input": {"colour": "bgr"}}}, "variants.arm: input.colour"),
        ({"a b": {}}, "variants: 'a b' is not a name"),
        ({"arm": 3}, "variants.arm"),
        ({"arm": {"output": {"decoder": "yolox"}}}, "variants.arm: output.decoder: 'yolox'"),
        ({"arm": {"file": "arm.onnx"}}, "variants.arm: file: 'arm.onnx' is missing"),
    ],
)
def test_a_wrong_variant_is_refused_when_it_is_packed(
    tmp_path: Path, variants: dict[str, Any], complaint: str
) -> None:
    """One line says which variant is wrong, and how; no package is written."""
    folder = model(tmp_path / "m", "1", variants=variants)
    done = run_cli("pack", str(folder), "-o", str(tmp_path / "m.tar"))
    assert done.returncode in {1, 2}
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "m.tar").exists()


# In the store


def test_a_kept_variant_is_verified_and_survives_another_profile(tmp_path: Path) -> None:
    """What is kept is compared with what was signed; what was never sent is no damage."""
    package = make(load(model(tmp_path / "m", "1")))
    store = Store(tmp_path / "state")
    with Incoming(store, package.front, package.header, package.blocks, ["arm-small"]) as incoming:
        for index in incoming.missing():
            incoming.put(index, package.block(index))
        assert incoming.complete
        installed = install_incoming(store, incoming)
    assert (installed.variant, files(installed.path)) == (
        "arm-small",
        {"model.toml", "small.onnx"},
    )
    check_unchanged(installed.path, "level@1")
    assert load(installed.path, ["generic"]).variant == "arm-small"
    (installed.path / "small.onnx").write_bytes(
        (installed.path / "small.onnx").read_bytes()[:-1] + b"?"
    )
    with pytest.raises(ModelError, match=r"small\.onnx has changed on the disk"):
        check_unchanged(installed.path, "level@1")


def test_a_variant_that_is_resumed_under_another_profile_is_asked_for_anew(tmp_path: Path) -> None:
    """Blocks that one variant left out are missing for the other."""
    package = make(load(model(tmp_path / "m", "1")))
    store = Store(tmp_path / "state")
    parts = (store, package.front, package.header, package.blocks)
    with Incoming(*parts, ["arm-small"]) as incoming:
        for index in incoming.missing():
            incoming.put(index, package.block(index))
    with Incoming(*parts, ["generic"]) as incoming:
        assert set(incoming.missing()) == only(package, "model.onnx")


def test_add_keeps_one_variant_with_its_own_golden_outputs(tmp_path: Path) -> None:
    """A folder that is added leaves out what only others name, golden-NAME.npz included."""
    folder = model(tmp_path / "m", "1")
    import numpy as np

    golden(folder, {"scores": np.zeros((1, 3), np.float32)})
    big = np.random.default_rng(1).random((1, 4000))
    np.savez(folder / "golden-arm-small.npz", big=big)
    for here, own in ((), "golden.npz"), (["arm-small"], "golden-arm-small.npz"):
        store = Store(tmp_path / f"state-{own}")
        installed = install_folder(store, load(folder, here))
        assert installed.golden == installed.path / own
        assert installed.golden.is_file()
        check_unchanged(installed.path, "level@1")
    (installed.path / NOTES / "layout.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match="changed on the disk"):
        check_unchanged(installed.path, "level@1")
    assert "golden-arm-small.npz" not in files(tmp_path / "state-golden.npz/models/level/1")


@pytest.mark.parametrize(
    "variants",
    [
        {"arm": {"bytes": 1, "blocks": [[0, 0]]}},
        {"": {"bytes": 1, "blocks": [[0, 10_000]]}},
        {"": {"bytes": 1, "blocks": [[2, 1]]}},
        {"": {"bytes": 1, "blocks": [[0, 3], [3, 4]]}},
        {"": {"bytes": 10**9, "blocks": [[0, 1]]}},
        {"": {"bytes": 1, "blocks": [[-1, 1]]}},
        {"": [[0, 1]]},
        [],
    ],
)
def test_a_header_with_impossible_shares_is_refused(tmp_path: Path, variants: Any) -> None:
    """What a signed header says of variants is checked before anything is asked for."""
    import json

    from edge_agent.models.packages.package import PackageHeader

    header = json.loads(make(load(model(tmp_path / "m", "1"))).front.header)
    PackageHeader.parse(json.dumps(header).encode())
    with pytest.raises(ModelError, match="variants"):
        PackageHeader.parse(json.dumps({**header, "variants": variants}).encode())


@pytest.mark.parametrize(
    ("engine", "arch", "suit"),
    [
        ("onnxruntime", "aarch64", ("generic", "onnxruntime", "aarch64", "arm64", "arm")),
        ("openvino", "x86_64", ("generic", "openvino", "x86_64", "x86")),
        ("auto", "riscv64", ("generic", "riscv64")),
    ],
)
def test_a_device_is_its_profile_then_its_engine_then_its_architecture(
    tmp_path: Path, engine: str, arch: str, suit: tuple[str, ...]
) -> None:
    """The variant of the most specific name counts; a forced engine is the device's engine."""
    config = tmp_path / "config.toml"
    config.write_text(
        f'device_id = "box"\nprofile = "generic"\nengine = "{engine}"\n'
        '[broker]\nurl = "mqtt://127.0.0.1"\n'
    )
    settings = load_settings(config, {})
    match, facts = match_profile(settings)
    here = variants_here(settings, match, replace(facts, arch=arch))
    assert [name for name in here if name in suit] == list(suit)
    assert here[0] == "generic"
    assert here[2:] == suit[-len(here[2:]) :]
