"""What must not get in.

Each push here is refused with a clear line, the old version runs on, and nothing is left of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

from tests.helpers.push import (
    PICTURE,
    Box,
    PlainPackage,
    PlainSender,
    classifier,
    endless,
    golden,
    manifest,
    member,
    model_folder,
    names,
    plain_package,
    send,
    start_box,
    tar_of,
)
from tests.helpers.support import AgentProcess, Listener, Mosquitto, wait_until
from tests.helpers.tiny_networks import node

SIGNER = Ed25519PrivateKey.generate()


def trust(folder: Path, key: Ed25519PrivateKey = SIGNER) -> Path:
    """Put the public half of a key where a device looks for it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "signer.pub"
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


class Device(NamedTuple):
    """The box that all of this is tried on, and where its key is."""

    box: Box
    pub: Path


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """Give a device at work that trusts one key; every push to it fails, so one will do."""
    folder = tmp_path_factory.mktemp("rejecting")
    pub = trust(folder / "trust.d")
    broker = Mosquitto(folder / "broker")
    listener = Listener(broker.port)
    made: list[AgentProcess] = []

    def start(settings: str, name: str) -> AgentProcess:
        made.append(AgentProcess(folder / name, settings))
        return made[-1]

    box = start_box(
        folder,
        broker,
        listener,
        start,
        "edge-01",
        trust={"keys": [str(pub.parent)]},
        quota_mb=6,
        groups=["lab"],
    )
    yield Device(box, pub)
    status = made[0].stop()
    listener.close()
    broker.stop()
    print(made[0].words())
    assert status == 0


def check_untouched(box: Box) -> None:
    """See that version 1 runs on, healthy, and nothing is left of what was pushed."""
    wait_until(
        lambda: box.stored() in [CLEAN, {**CLEAN, "level": set()}],
        f"the store to be clean again: {box.stored()}",
        patience=10,
    )
    box.results_go_on("1")
    assert box.health()["state"] == "ok"
    state = box.model()
    assert state["live"] == "1"
    assert "candidate" not in state


CLEAN: dict[str, set[str]] = {"incoming": set(), "staging": set()}


def refused(device: Device, package: PlainPackage, **how: Any) -> str:
    """Send what must be rejected; gives the reason, after a look at the box."""
    end = send(device.box.broker.port, "edge-01", package, **how)
    assert end["state"] == "rejected", end
    check_untouched(device.box)
    why: str = end["why"]
    assert "\n" not in why
    assert "Traceback" not in why
    return why


# Before a byte of it is read


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_flipped_bit(device: Device, tmp_path: Path, which: str) -> None:
    """A flipped bit in any block is noticed at that block."""
    package = plain_package(
        model_folder(tmp_path / "new", "2", hidden=30), "level", "2", key=SIGNER
    )
    last = len(package.blocks) - 1
    number = {"first": 0, "middle": last // 2, "last": last}[which]
    why = refused(device, package, damage=number)
    assert f"block {number}" in why


def test_wrong_key(device: Device, tmp_path: Path) -> None:
    """A signature by another key is refused, naming the keys that are trusted."""
    other = Ed25519PrivateKey.generate()
    package = plain_package(model_folder(tmp_path / "new", "2"), "level", "2", key=other)
    why = refused(device, package)
    assert "no key that this device trusts" in why
    assert "signer.pub" in why


def test_altered_header(device: Device, tmp_path: Path) -> None:
    """A header that was changed after it was signed is refused."""
    package = plain_package(model_folder(tmp_path / "new", "2"), "level", "2", key=SIGNER)
    altered = package.header.replace(b'"2"', b'"9"')
    assert "altered" in refused(
        device, PlainPackage(altered, package.signature, package.block_list, package.blocks)
    )


def test_unsigned(device: Device, tmp_path: Path) -> None:
    """An unsigned package is refused, saying how to trust one."""
    why = refused(device, plain_package(model_folder(tmp_path / "new", "2"), "level", "2"))
    assert "unsigned" in why
    assert ".pub" in why
    assert "trust.allow_unsigned" in why


def test_key_removed_in_the_middle(device: Device, tmp_path: Path) -> None:
    """A key that is removed between the offer and the last block is not trusted any more."""
    package = plain_package(
        model_folder(tmp_path / "new", "2", hidden=60), "level", "2", key=SIGNER
    )
    with PlainSender(device.box.broker.port, "edge-01", package, stop_after=2) as sender:
        sender.offer()
        sender.wait_sent(2)
        device.pub.unlink()
        try:
            sender.stop_after = None
            end = sender.wait("live", "probation", "rejected")
            again = send(device.box.broker.port, "edge-01", package)
        finally:
            trust(device.pub.parent)
    for each in (end, again):
        assert each["state"] == "rejected"
        assert "no key that this device trusts" in each["why"]
    check_untouched(device.box)


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ({"version": "0.9"}, "older than 1"),
        ({"targets": ["device:edge-07", "@elsewhere"]}, "is for device:edge-07, @elsewhere"),
        ({"expires": "2026-01-02T00:00:00.000Z"}, "expired at 2026-01-02"),
        ({"bytes": 10**12, "blocks": 10**6}, "package.json: bytes"),
        ({"bytes": 60 * 10**9, "blocks": 10**6}, "does not fit"),
        ({"blocks": 10**9}, "package.json: blocks"),
        ({"schema": 2}, "schema"),
        ({"name": "../evil"}, "is not a name"),
        ({"blocks_sha256": "0" * 64}, "package.blocks"),
        ({"targets": ["@" + "x" * 60] * 300}, "package.json"),
    ],
    ids=[
        "older",
        "target",
        "expired",
        "bytes",
        "size bomb",
        "blocks",
        "schema",
        "name",
        "list",
        "long",
    ],
)
def test_header_that_does_not_fit(
    device: Device, tmp_path: Path, says: dict[str, Any], expected: str
) -> None:
    """A header, though signed, that is for others, out of date, or asks too much, is refused."""
    version = says.pop("version", "2")
    package = plain_package(
        model_folder(tmp_path / "new", version), "level", version, key=SIGNER, **says
    )
    assert expected in refused(device, package)


def test_larger_than_the_quota(device: Device, tmp_path: Path) -> None:
    """A model that is larger than the quota is refused before a block is sent, naming quota_mb."""
    new = model_folder(tmp_path / "new", "2", hidden=2200)
    package = plain_package(new, "level", "2", key=SIGNER)
    with PlainSender(device.box.broker.port, "edge-01", package) as sender:
        sender.offer()
        end = sender.wait("live", "rejected")
    assert "quota_mb" in end["why"]
    assert not sender.sent
    check_untouched(device.box)


def test_nonsense_is_counted_and_stops_nothing(device: Device, tmp_path: Path) -> None:
    """Offers that are none and messages that mean nothing are counted, and change nothing."""
    box = device.box
    before = box.health()["malformed"]
    package = plain_package(model_folder(tmp_path / "new", "2"), "level", "2", key=SIGNER)
    base = box.topic("in", "push", package.transfer)
    for payload in (b"{", b'{"package": 7}', b'{"package": "////"}', bytes(70_000)):
        box.listener.publish(f"{base}/offer", payload)
    box.listener.publish(f"{base}/nonsense", b"x")
    box.listener.publish(box.topic("in", "push", "no spaces allowed", "offer"), b"{}")
    box.listener.publish(f"{base}/block/999999999999", b"x")
    offer = {"package": base64.b64encode(package.header).decode()}
    box.listener.publish(box.topic("in", "push", "0" * 32, "offer"), json.dumps(offer))
    box.listener.wait_for(
        lambda _h: box.health()["malformed"] >= before + 8, "eight malformed messages"
    )
    said = box.listener.on(box.topic("push", "0" * 32))
    assert "not named after its package" in said[-1]["why"]
    check_untouched(box)


def test_retained_model_is_refused(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """A retained offer or model, which would replay at every connect, is not considered.

    Neither what a device finds when it connects, nor what comes while it is connected.
    """
    listener = listen(broker.port)
    package = plain_package(model_folder(tmp_path / "new", "2"), "level", "2")
    offer = {"package": base64.b64encode(package.header).decode()}
    topic = f"edge/edge-01/in/push/{package.transfer}/offer"
    listener.publish("edge/edge-01/in/model", package.tar(), retain=True)
    listener.publish(topic, json.dumps(offer), retain=True)
    box = start_box(tmp_path, broker, listener, agent, "edge-01", trust={"allow_unsigned": True})
    box.listener.wait_for(lambda _h: box.health()["malformed"] == 2, "two refused messages")
    box.listener.publish("edge/edge-01/in/model", package.tar(), retain=True)
    box.listener.publish(topic, json.dumps(offer), retain=True)
    box.listener.wait_for(lambda _h: box.health()["malformed"] == 4, "two more refused messages")
    assert not box.listener.on(box.topic("push", package.transfer))
    assert box.agent.words().count("retained, so it is refused") == 2
    # What clears them is no package, and no mistake.
    box.listener.publish("edge/edge-01/in/model", b"", retain=True)
    box.listener.publish(topic, b"", retain=True)
    assert box.command("ping", "after")["ok"]
    assert box.health()["malformed"] == 4
    check_untouched(box)


# Its insides

INSIDE: dict[str, Callable[[bytes], bytes]] = {
    "dots": lambda files: files + member("../evil.txt", b"x"),
    "dots within": lambda files: files + member("a/../../evil.txt", b"x"),
    "absolute": lambda files: files + member("/tmp/evil.txt", b"x"),  # noqa: S108 - never written
    "symlink": lambda files: files + member("link", b"", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": lambda files: files + member("link", b"", tarfile.LNKTYPE, "model.toml"),
    "device": lambda files: files + member("null", b"", tarfile.CHRTYPE),
    "twice": lambda files: files + member("labels.txt", b"a") + member("labels.txt", b"b"),
    "ours": lambda files: files + member("package.json", b"{}"),
    "notes": lambda files: files + member(".package/accepted", b""),
    "no tar": lambda _files: bytes(range(256)) * 40,
    "cut off": lambda files: files[:-700],
}


@pytest.mark.parametrize("case", INSIDE)
def test_hostile_members(device: Device, tmp_path: Path, case: str) -> None:
    """A signed package with a member that leads elsewhere, or is there twice, is refused."""
    good = plain_package(model_folder(tmp_path / "new", "2"), "level", "2", key=SIGNER)
    package = plain_package(
        None, "level", "2", key=SIGNER, stream=INSIDE[case](b"".join(good.blocks))
    )
    why = refused(device, package)
    assert why.startswith("level@2")
    assert not (device.box.state.parent / "evil.txt").exists()


def other_version(folder: Path) -> None:
    """Say another version than the header."""
    (folder / "model.toml").write_text(manifest("3"))


def other_name(folder: Path) -> None:
    """Say another name than the header."""
    (folder / "model.toml").write_text(manifest("2", "another"))


def no_network(folder: Path) -> None:
    """Put something else in the network's place."""
    (folder / "model.onnx").write_bytes(b"not a network" * 100)


def outside(folder: Path) -> None:
    """Write a network whose weights lie elsewhere."""
    import onnx

    path = folder / "model.onnx"
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "first":
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", "../../../secret"), ("length", "12288")):
                tensor.external_data.add(key=key, value=value)
            tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())


def too_few_labels(folder: Path) -> None:
    """Name one class of three."""
    (folder / "model.toml").write_text(
        manifest("2", output={"decoder": "softmax", "labels": ["only"]})
    )


def nan(folder: Path) -> None:
    """0 / 0 wherever the picture is: finite weights, no finite output."""

    def more(nodes: list[Any]) -> list[Any]:
        return [
            node("Sub", ["images", "images"], ["noughts"]),
            node("Div", ["noughts", "noughts"], ["nothing"]),
            node("Flatten", ["nothing"], ["flat"]),
            *nodes[1:],
        ]

    classifier(folder / "model.onnx", more=more)


def crash(folder: Path) -> None:
    """Divide the least 64-bit integer by -1: the processor stops whoever does that."""

    def more(nodes: list[Any]) -> list[Any]:
        return [
            node("Mul", ["images", "nought"], ["noughts"]),
            node("Cast", ["noughts"], ["integers"], to=7),
            node("Add", ["integers", "least"], ["all_least"]),
            node("Add", ["integers", "minus"], ["all_minus"]),
            node("Div", ["all_least", "all_minus"], ["broken"]),
            node("Cast", ["broken"], ["floats"], to=1),
            node("Add", ["images", "floats"], ["sum"]),
            node("Flatten", ["sum"], ["flat"]),
            *nodes[1:],
        ]

    weights: dict[str, NDArray[Any]] = {
        "nought": np.array(0, np.float32),
        "least": np.array(-(2**63), np.int64),
        "minus": np.array(-1, np.int64),
    }
    classifier(folder / "model.onnx", more=more, weights=weights)


def other_golden(folder: Path) -> None:
    """Claim outputs that the network does not give."""
    golden(folder, {"scores": np.array([[0.0, 0.0, 1.0]], np.float32)})


def golden_bomb(folder: Path) -> None:
    """Pack 400 MB of zeros into as good as nothing."""
    bomb: dict[str, Any] = {"input/images": np.zeros((100_000, *PICTURE[1:]), np.float32)}
    np.savez_compressed(folder / "golden.npz", **bomb)


def no_golden(folder: Path) -> None:
    """Put something else in the place of the golden outputs."""
    (folder / "golden.npz").write_bytes(b"PK\x03\x04 nothing more")


def too_slow(folder: Path) -> None:
    """Demand what no network keeps."""
    (folder / "model.toml").write_text(manifest("2", trial={"max_infer_ms": 0.0001}))


TRIALS: dict[str, tuple[Callable[[Path], None], str]] = {
    "other version": (other_version, "model.toml says level@3, but the package says level@2"),
    "other name": (other_name, "model.toml says another@2, but the package says level@2"),
    "no network": (no_network, "model.onnx"),
    "outside": (outside, "must be a path inside the model folder"),
    "labels": (too_few_labels, "labels"),
    "nan": (nan, "not finite"),
    "endless": (endless, "hangs: no verdict within 4 s"),
    "crash": (crash, "crashes the engine (SIGFPE)"),
    "golden differs": (other_golden, "golden"),
    "golden bomb": (golden_bomb, "golden.npz"),
    "golden damaged": (no_golden, "golden.npz"),
    "slow": (too_slow, "too slow"),
}


@pytest.mark.parametrize("case", TRIALS)
def test_model_that_is_not_fit(device: Device, tmp_path: Path, case: str) -> None:
    """A signed model that is broken, crashes, hangs or errs never serves a frame."""
    if case == "crash" and platform.machine() != "x86_64":
        pytest.skip("the division that stops this model's process stops none on this processor")
    spoil, expected = TRIALS[case]
    new = model_folder(tmp_path / "new", "2")
    spoil(new)
    results = len(device.box.listener.on(device.box.topic("result", "door")))
    why = refused(device, plain_package(new, "level", "2", key=SIGNER))
    assert expected in why
    # One word on the topic of the model too.
    if not case.startswith("other "):
        assert device.box.model()["last"]["outcome"] == "rejected"
        assert device.box.model()["last"]["why"] == why
    models = device.box.listener.on(device.box.topic("result", "door"))[results:]
    assert {each["model"] for each in models} == {"level@1"}


# Other boxes


def test_fresh_box_says_how_to_trust(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """A box where no key is set up says so, and how to, to signed and unsigned packages alike."""
    box = start_box(tmp_path, broker, listen(broker.port), agent, "edge-01")
    new = model_folder(tmp_path / "new", "2")
    for package in (
        plain_package(new, "level", "2"),
        plain_package(new, "level", "2", key=SIGNER),
    ):
        end = send(broker.port, "edge-01", package)
        assert end["state"] == "rejected"
        assert "trust.keys" in end["why"]
        assert ".pub" in end["why"]
    # As one message too, made by hand and packed.
    packed = plain_package(new, "level", "3")
    by_hand = tar_of(new)
    for tar, transfer in (
        (by_hand, hashlib.sha256(by_hand).hexdigest()[:32]),
        (packed.tar(), packed.transfer),
    ):
        box.listener.publish("edge/edge-01/in/model", tar)
        end = box.listener.wait_state(box.topic("push", transfer), state="rejected")
        assert "unsigned" in end["why"]
        assert "trust.keys" in end["why"]
    check_untouched(box)


def test_a_refused_tar_leaves_the_version_to_go_back_to(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """An older version made by hand took the one before from the history: no rollback was left."""
    box = start_box(
        *(tmp_path, broker, listen(broker.port), agent, "edge-01"), trust={"allow_unsigned": True}
    )
    newer = plain_package(model_folder(tmp_path / "new", "2"), "level", "2")
    with PlainSender(broker.port, "edge-01", newer) as sender:
        sender.offer()
        box.wait_live("2")
    box.wait_settled(outcome="live", version="2")
    older = tar_of(model_folder(tmp_path / "old", "1", best=2))
    transfer = hashlib.sha256(older).hexdigest()[:32]
    box.listener.publish("edge/edge-01/in/model", older)
    end = box.listener.wait_state(box.topic("push", transfer), state="rejected")
    assert "level@1 is older than 2" in end["why"]
    assert f"push {transfer}: rejected: {end['why']}" in box.agent.words()
    assert box.stored()["level"] == {"2"}
    assert box.command("rollback", "back", model="level")["ok"] is True
    box.wait_live("1")


@pytest.mark.parametrize("end", [None, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("signed", [True, False], ids=["key removed", "unsigned not allowed"])
def test_what_is_no_longer_trusted_does_not_go_live(
    signed: bool,
    end: signal.Signals | None,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """What was trusted when it came is not once its key, or the permission, is withdrawn.

    In shadow, and where the agent ends there and starts with the changed settings.
    """
    pub = trust(tmp_path / "trust.d")
    box = start_box(
        *(tmp_path, broker, listen(broker.port), agent, "edge-01"),
        trust={"keys": [str(pub.parent)], "allow_unsigned": not signed},
        trial={"shadow_frames": 120},
    )
    folder = model_folder(tmp_path / "new", "2")
    package = plain_package(folder, "level", "2", key=SIGNER if signed else None)
    with PlainSender(broker.port, "edge-01", package) as sender:
        sender.offer()
        sender.wait("shadow")
        if signed:
            pub.unlink()
        else:
            settings = box.agent.config
            settings.write_text(settings.read_text().replace("unsigned = true", "unsigned = false"))
        if end is not None:
            box.agent.signal(end)
            box.agent.wait()
            box.agent.restart()
        elif not signed:
            box.agent.signal(signal.SIGHUP)
        said = sender.wait("live", "probation", "rejected")
    assert said["state"] == "rejected", said
    expected = "no key that this device trusts" if signed else "the package is unsigned"
    assert expected in said["why"]
    check_untouched(box)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a disk of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk_is_a_rejection(
    small_disk: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """A disk that fills up while a package arrives rejects it and stops nothing.

    Nothing of it is kept; with room again the same push succeeds.
    """
    box = start_box(
        tmp_path,
        broker,
        listen(broker.port),
        agent,
        "edge-01",
        trust={"allow_unsigned": True},
        state_dir=str(small_disk / "state"),
    )
    large = plain_package(model_folder(tmp_path / "large", "2", hidden=1600), "level", "2")
    end = send(broker.port, "edge-01", large)
    assert end["state"] == "rejected"
    assert "the disk has" in end["why"]

    package = plain_package(model_folder(tmp_path / "new", "2", best=1, hidden=900), "level", "2")
    filler = small_disk / "filler"
    with PlainSender(broker.port, "edge-01", package, stop_after=3) as sender:
        sender.offer()
        sender.wait_sent(3)
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True, check=False
        )
        sender.stop_after = None
        end = sender.wait("live", "probation", "rejected")
    assert end["state"] == "rejected"
    assert "the disk is full" in end["why"]
    box.results_go_on("1")
    state = small_disk / "state"
    wait_until(
        lambda: not names(state / "incoming") and not names(state / "staging"),
        "what had arrived to be removed",
    )
    filler.unlink()
    assert send(broker.port, "edge-01", package)["state"] == "probation"
    box.wait_live("2")
