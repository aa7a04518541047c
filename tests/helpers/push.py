"""What the tests of pushes share: small models, and a sender that knows nothing of our own code.

`PlainPackage` and `PlainSender` are written from section 5 of the public interface alone, with
paho, tarfile and hashlib: what other people's senders do must work too.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import struct
import tarfile
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
import paho.mqtt.client as mqtt
import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from numpy.typing import NDArray
from paho.mqtt.enums import CallbackAPIVersion

from tests.helpers.support import PATIENCE, AgentProcess, Listener, Mosquitto, agent_settings
from tests.helpers.tiny_networks import node, save_onnx

LABELS = ["low", "mid", "high"]
PICTURE = (1, 3, 16, 16)
QUICK = {"shadow_frames": 3, "probation_s": 0.5, "timeout_s": 30}
"""A trial that is short, and has every step."""


def clip(path: Path, frames: int = 90, rate: float = 30.0) -> Path:
    """Write a small moving picture: MPEG-4, 64 by 48."""
    import cv2

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, (64, 48))
    for number in range(frames):
        picture = np.full((48, 64, 3), 40 + number % 100, np.uint8)
        picture[10:30, (number * 2) % 50 : (number * 2) % 50 + 10] = 220
        writer.write(picture)
    writer.release()
    return path


def classifier(
    path: Path,
    *,
    best: int = 0,
    hidden: int = 4,
    seed: int = 7,
    head_seed: int | None = None,
    more: Callable[[list[Any]], list[Any]] = lambda nodes: nodes,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Save a classifier of pictures that always finds `LABELS[best]`, from seeded random weights.

    Args:
        path: the .onnx file.
        best: index of the label.
        hidden: width of the only hidden layer; each adds 3 KiB.
        seed: of its weights.
        head_seed: of the last layer's weights; None: as *seed*.
        more: changes the list of nodes.
        weights: further initializers.

    """
    random = np.random.default_rng(seed)
    size = int(np.prod(PICTURE))
    first = random.standard_normal((size, hidden), np.float32) * np.float32(1e-6)
    if head_seed is not None:
        random = np.random.default_rng(head_seed)
    # So small that no score moves: that is no sign of a network that is deaf.
    head = random.standard_normal((hidden, len(LABELS)), np.float32) * np.float32(1e-6)
    bias = np.full(len(LABELS), -2, np.float32)
    bias[best] = 2
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = [
        node("Flatten", ["images"], ["flat"]),
        node("MatMul", ["flat", "first"], ["hidden"]),
        node("Gemm", ["hidden", "head", "bias"], ["logits"]),
        node("Softmax", ["logits"], ["scores"]),
    ]
    return save_onnx(
        path,
        more(nodes),
        [("images", "float32", PICTURE)],
        [("scores", "float32", (1, len(LABELS)))],
        {"first": first, "head": head, "bias": bias, **(weights or {})},
    )


def manifest(version: str, name: str = "level", **tables: Any) -> str:
    """Write the manifest of a `classifier`."""
    return tomli_w.dumps(
        {
            "name": name,
            "version": version,
            "task": "classification",
            "file": "model.onnx",
            "input": {"scale": 255},
            "output": {"decoder": "softmax", "labels": LABELS},
            **tables,
        }
    )


def model_folder(
    folder: Path, version: str, name: str = "level", *, trial: Any = None, **how: Any
) -> Path:
    """Make a model folder of a `classifier`, which takes *how*."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {} if trial is None else {"trial": trial}
    (folder / "model.toml").write_text(manifest(version, name, **tables))
    classifier(folder / "model.onnx", **how)
    return folder


def golden(folder: Path, outputs: Mapping[str, NDArray[Any]]) -> None:
    """Put a golden.npz beside a `classifier`: one case, of zeros."""
    arrays = {f"output/{name}": array for name, array in outputs.items()}
    np.savez(folder / "golden.npz", **{"input/images": np.zeros(PICTURE, np.float32)}, **arrays)  # type: ignore[arg-type]


def endless(folder: Path) -> None:
    """Turn a `model_folder` of version 2 into one that counts to 10^15 before it answers."""
    from onnx import TensorProto, helper

    body = helper.make_graph(
        [
            node("Identity", ["go"], ["go_on"]),
            node("Sin", ["state"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, PICTURE),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, PICTURE),
        ],
    )

    def more(nodes: list[Any]) -> list[Any]:
        return [
            node("Loop", ["trips", "true", "images"], ["looped"], body=body),
            node("Flatten", ["looped"], ["flat"]),
            *nodes[1:],
        ]

    weights = {"trips": np.array(10**15, np.int64), "true": np.array(True)}
    classifier(folder / "model.onnx", more=more, weights=weights)
    (folder / "model.toml").write_text(manifest("2", trial={"timeout_s": 4.0}))


# A sender that is not ours


@dataclass
class PlainPackage:
    """A package as section 5 has it."""

    header: bytes
    signature: bytes | None
    block_list: bytes
    blocks: list[bytes]

    @property
    def transfer(self) -> str:
        return hashlib.sha256(self.header).hexdigest()[:32]

    def tar(self) -> bytes:
        """Give the whole as one tar."""
        front = [("package.json", self.header)]
        if self.signature is not None:
            front.append(("package.sig", self.signature))
        front.append(("package.blocks", self.block_list))
        return b"".join(member(*each) for each in front) + b"".join(self.blocks) + bytes(1024)


def member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """Give a member as a ustar has it: header, content, padding."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, link
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def plain_package(
    folder: Path | None,
    name: str,
    version: str,
    /,
    *,
    key: Path | Ed25519PrivateKey | None = None,
    stream: bytes | None = None,
    cut: int = 20_000,
    **says: Any,
) -> PlainPackage:
    """Make a package without our own code.

    Args:
        folder: of the model; None: *stream* is given.
        name: what the header says.
        version: what the header says.
        key: signs it.
        stream: the members behind the first three, instead of the folder's files.
        cut: bytes in a block.
        says: keys of package.json, instead of what they should be.

    """
    if stream is None:
        assert folder is not None
        files = sorted(
            (path for path in folder.rglob("*") if path.is_file()),
            key=lambda path: (path.name != "model.toml", path),
        )
        stream = b"".join(
            member(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files
        )
    blocks = [stream[at : at + cut] for at in range(0, len(stream), cut)]
    listed = b"".join(
        struct.pack(">I", len(block)) + hashlib.sha256(block).digest() for block in blocks
    )
    header = {
        "schema": 1,
        "name": name,
        "version": version,
        "created": "2026-01-01T00:00:00.000Z",
        "bytes": len(stream),
        "blocks": len(blocks),
        "blocks_sha256": hashlib.sha256(listed).hexdigest(),
        **says,
    }
    encoded = json.dumps(header).encode()
    if isinstance(key, Path):
        loaded = load_pem_private_key(key.read_bytes(), None)
        assert isinstance(loaded, Ed25519PrivateKey)
        key = loaded
    return PlainPackage(encoded, key.sign(encoded) if key else None, listed, blocks)


@dataclass
class PlainSender:
    """Sends one package to one device, as section 5 says and no better."""

    port: int
    device: str
    package: PlainPackage
    protocol: int = 5
    damage: int | None = None
    """Index of a block in which a bit is flipped."""
    stop_after: int | None = None
    """Goes silent after so many blocks."""
    said: list[dict[str, Any]] = field(default_factory=list)
    offered: str | None = None
    """The time of its offer; until that is answered, what is said is of an earlier push."""
    answered: bool = False
    sent: list[int] = field(default_factory=list)
    """Numbers of the blocks that were sent, in order."""

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._base = f"edge/{self.device}/in/push/{self.package.transfer}"
        version = mqtt.MQTTv5 if self.protocol == 5 else mqtt.MQTTv311
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=version)
        ready = threading.Event()
        self.client.on_subscribe = lambda *_: ready.set()
        self.client.on_message = self._answer
        self.client.connect("127.0.0.1", self.port)
        self.client.subscribe(f"edge/{self.device}/push/{self.package.transfer}", 1)
        self.client.loop_start()
        assert ready.wait(PATIENCE), "the broker does not take a subscription"

    def offer(self, *, age_s: float | None = None, **more: str) -> PlainSender:
        """Offer the package, as if it had been sent so long ago; None: without a time."""
        body: dict[str, Any] = {
            "schema": 1,
            "package": base64.b64encode(self.package.header).decode(),
            **more,
        }
        if self.package.signature is not None:
            body["signature"] = base64.b64encode(self.package.signature).decode()
        if age_s is not None:
            sent = datetime.now(UTC) - timedelta(seconds=age_s)
            body["time"] = self.offered = sent.isoformat()
        self.client.publish(f"{self._base}/offer", json.dumps(body), 1)
        return self

    def _answer(self, _client: Any, _userdata: Any, message: Any) -> None:
        says = json.loads(message.payload)
        self.answered |= self.offered is None or says["offer"] == self.offered
        if not self.answered:
            return
        for first, last in says.get("list", []):
            for number in range(first, last + 1):
                part = self.package.block_list[number << 16 : (number + 1) << 16]
                self.client.publish(f"{self._base}/list/{number}", part, 1)
        for first, last in says.get("need", []):
            for number in range(first, last + 1):
                if self.stop_after is not None and len(self.sent) >= self.stop_after:
                    break
                block = self.package.blocks[number]
                if number == self.damage:
                    block = bytes([block[0] ^ 1]) + block[1:]
                self.sent.append(number)
                self.client.publish(f"{self._base}/block/{number}", block, 1)
        with self._changed:
            self.said.append(says)
            self._changed.notify_all()

    def wait(self, *states: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Wait until the device says one of *states*; gives what it says."""

        def look() -> bool:
            return any(says["state"] in states for says in self.said)

        with self._changed:
            assert self._changed.wait_for(look, patience), f"no {states}; said: {self.said[-3:]}"
            return next(says for says in self.said if says["state"] in states)

    def wait_sent(self, count: int) -> None:
        """Wait until so many blocks have been sent."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.sent) >= count, PATIENCE), self.said[-3:]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def send(port: int, device: str, package: PlainPackage, **how: Any) -> dict[str, Any]:
    """Send a package and give how it ended, or that it serves on probation."""
    with PlainSender(port, device, package, **how) as sender:
        sender.offer(age_s=0)
        return sender.wait("live", "probation", "rejected")


def tar_of(folder: Path, leading: str = "") -> bytes:
    """Make a tar as people do by hand."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.add(folder, arcname=leading or ".")
    return made.getvalue()


# A device to push to


@dataclass
class Box:
    """A running agent with one pipeline, and what is heard of it."""

    device: str
    broker: Mosquitto
    listener: Listener
    agent: AgentProcess
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def url(self) -> str:
        return self.broker.url

    def topic(self, *levels: str) -> str:
        return "/".join(("edge", self.device, *levels))

    def model(self, name: str = "level") -> dict[str, Any]:
        return self.listener.last(self.topic("model", name)) or {}

    def wait_live(self, version: str, name: str = "level", pipeline: str = "door") -> None:
        """Wait until the latest result carries a version."""
        self.listener.wait_state(self.topic("result", pipeline), model=f"{name}@{version}")

    def wait_settled(self, name: str = "level", **last: Any) -> dict[str, Any]:
        """Wait until nothing of a model is under way and its last candidate ended like this."""

        def look(_heard: Any) -> dict[str, Any] | None:
            state = self.model(name)
            ended = state.get("last", {})
            done = "candidate" not in state and all(ended.get(k) == v for k, v in last.items())
            return state if state and done else None

        found: dict[str, Any] = self.listener.wait_for(look, f"{name} to settle as {last}")
        return found

    def results_go_on(self, version: str, pipeline: str = "door") -> None:
        """See that five more results come, all of one version."""
        topic = self.topic("result", pipeline)
        before = len(self.listener.on(topic))
        self.listener.wait_for(
            lambda _h: len(self.listener.on(topic)) >= before + 5, "five more results"
        )
        assert {each["model"] for each in self.listener.on(topic)[before:]} == {f"level@{version}"}

    def health(self) -> dict[str, Any]:
        """Wait for the next word on its health."""
        topic = self.topic("health")
        before = len(self.listener.on(topic))
        found: dict[str, Any] = self.listener.wait_for(
            lambda _h: self.listener.on(topic)[before:], "health"
        )[-1]
        return found

    def command(self, verb: str, request: str, **body: Any) -> dict[str, Any]:
        """Give a command and wait for its reply."""
        self.listener.publish(
            self.topic("in", "command", verb), json.dumps({"id": request, **body})
        )
        return self.listener.wait_state(self.topic("reply", request), id=request)

    def stored(self) -> dict[str, set[str]]:
        """Give what lies in the places where nothing may be left, and the versions."""
        return {
            "incoming": names(self.state / "incoming"),
            # What serves is being prepared in the background; that is not of the push.
            "staging": {
                name
                for name in names(self.state / "staging")
                if not any(
                    re.fullmatch("[0-9a-f]{32}", inner)
                    for inner in names(self.state / "staging" / name)
                )
            },
            **{
                path.name: names(path) - {"pointers.json"}
                for path in (self.state / "models").iterdir()
            },
        }


def names(folder: Path) -> set[str]:
    """List what is in a folder; nothing where there is none."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def start_box(
    folder: Path,
    broker: Mosquitto,
    listener: Listener,
    agent: Callable[..., AgentProcess],
    device: str,
    *,
    version: str | None = "1",
    source: str | None = None,
    pipelines: list[dict[str, Any]] | None = None,
    protocol: int = 5,
    **settings: Any,
) -> Box:
    """Start an agent whose pipeline runs a `classifier` on a clip at 30 frames a second.

    Args:
        folder: for the clip and the first version.
        broker: to connect to.
        listener: hears it.
        agent: the fixture.
        device: its id.
        version: of the model that lies in a read-only library; None: there is none.
        source: instead of the clip.
        pipelines: instead of the one.
        protocol: of MQTT.
        settings: more settings.

    """
    if source is None:
        moving = folder / "clip.mp4"
        if not moving.is_file():
            clip(moving)
        source = f"file:{moving}?loop=1"
    if version is not None:
        model_folder(folder / "library" / "level", version)
        settings.setdefault("models_dirs", [str(folder / "library")])
    settings["trial"] = {**QUICK, **settings.get("trial", {})}
    made = pipelines or [{"name": "door", "model": "level"}]
    tables = tomllib.loads(
        agent_settings(
            device, broker.url, [{"source": source, **each} for each in made], **settings
        )
    )
    tables["broker"]["protocol"] = protocol
    text = tomli_w.dumps(tables)
    process = agent(text, device)
    box = Box(device, broker, listener, process, process.folder)
    if version is not None:
        listener.wait_for(
            lambda _h: any(listener.on(box.topic("result", str(each["name"]))) for each in made),
            f"results of {device}",
        )
    else:
        listener.wait_state(box.topic("status"), state="online")
    return box
