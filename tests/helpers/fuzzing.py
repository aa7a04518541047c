"""What is thrown at everything that reads what strangers wrote.

Each target is a strategy and a check. The check calls the real reader; all that it may do is give
something, or raise the error that its docstring names, with one clear line. Anything else that
comes out is a finding. Used in short by `test_fuzz`, for longer by `scripts/soak/fuzz.py`.
"""

from __future__ import annotations

import functools
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tomli_w
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from edge_agent.cli.commands.status import _lines
from edge_agent.cli.commands.tail import _line
from edge_agent.cli.fleet import Fleet
from edge_agent.config.address import parse_url
from edge_agent.config.load import load as load_settings
from edge_agent.config.settings import Settings, parse_route
from edge_agent.core.bundled import bundled
from edge_agent.core.errors import AgentError, ModelError, SampleError, UsageError
from edge_agent.core.names import NAME_RULE, is_name, is_version, safe_name, version_key
from edge_agent.core.types import (
    Anomaly,
    Classes,
    Detections,
    Findings,
    Outcome,
    RawTensors,
    Sample,
    TensorSpec,
    Timing,
    Values,
)
from edge_agent.daemon.commands import Ping
from edge_agent.delivery.receive.admission import DeviceIdentity
from edge_agent.delivery.receive.router import Router
from edge_agent.delivery.receive.transfer import Drawing
from edge_agent.delivery.rollout.commands import Activate
from edge_agent.delivery.rollout.ledger import Ledger
from edge_agent.delivery.sender import Sender
from edge_agent.inference.decode.decoder import build_decoder
from edge_agent.models.files.check_onnx import check_network
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.manifest import Manifest, ModelFolder
from edge_agent.models.manifest import load as load_model
from edge_agent.models.manifest import parse as parse_manifest
from edge_agent.models.packages.archive import open_archive, unpack_handmade
from edge_agent.models.packages.blocks import BlockList
from edge_agent.models.packages.build import Package, make
from edge_agent.models.packages.keys import TrustedKeys
from edge_agent.models.packages.package import PackageHeader
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from edge_agent.mqtt import payloads as wire
from edge_agent.mqtt.command_memory import CommandMemory
from edge_agent.mqtt.connection import ReceivedMessage, parse_object
from edge_agent.mqtt.inbox import Inbox
from edge_agent.mqtt.look import look_at
from edge_agent.mqtt.one_shot import OneShotClient
from edge_agent.mqtt.requests import Command, Requests
from edge_agent.mqtt.subscriptions import Subscriptions
from edge_agent.runtime.pipelines.commands import Set
from edge_agent.sources.spec import parse_source, redact
from tests.helpers.decoder_models import CASES, HEIGHT, WIDTH
from tests.helpers.idle_parts import TOPICS, offline_client
from tests.helpers.model_folders import make_model
from tests.helpers.tiny_networks import convolution, to_ir

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """Something that reads what strangers wrote."""

    name: str
    strategy: st.SearchStrategy[Any]
    check: Callable[[Any], None]


@contextmanager
def folder() -> Iterator[Path]:
    """Give an empty folder, gone afterward."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        yield Path(name)


@contextmanager
def only(*kinds: type[AgentError]) -> Iterator[None]:
    """Let through the errors that a reader may raise, if they say something."""
    try:
        yield
    except kinds as problem:
        said = str(problem).strip()
        assert said, "an error without a word"
        assert len(said) < 20_000, f"an endless error: {said[:200]}"


# Text, JSON and TOML in general

words = st.text(max_size=40) | st.sampled_from(
    ["", "auto", "edge-01", "face@3:90,face@4:10", "rtsp://u:p@h/s", "file:a.mp4?loop=1", "\0",
     "mqtts://[::1]:8883", "../..", "a" * 300, "NaN", "1e999", "-0", "#", "+", "$SYS", "\ud800"]
)  # fmt: skip
numbers = st.integers(-(2**70), 2**70) | st.floats()
scalars = st.none() | st.booleans() | numbers | words
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(words, inner, max_size=6),
    max_leaves=25,
)


def as_json(value: Any) -> bytes:
    """Write JSON as a careless program would: NaN, lone surrogates and all."""
    return json.dumps(value).encode()


def mutated(original: bytes) -> st.SearchStrategy[bytes]:
    """Change some bytes of something that is right, cut it off, or put pieces in twice."""
    size = len(original)

    def change(plan: tuple[list[tuple[int, int]], int, tuple[int, int, int]]) -> bytes:
        edits, end, (start, stop, at) = plan
        content = bytearray(original)
        for place, byte in edits:
            content[place] = byte
        low, high = sorted((start, stop))
        if at % 3 == 0:
            content[at:at] = content[low:high]
        return bytes(content[: max(0, len(content) - end)])

    place = st.integers(0, size - 1)
    return st.tuples(
        st.lists(st.tuples(place, st.integers(0, 255)), max_size=8),
        st.just(0) | st.integers(0, size),
        st.tuples(place, place, place),
    ).map(change)


def toml_of(value: Any) -> str:
    """Write TOML, leaving out what it has no words for."""
    return tomli_w.dumps(_writable(value))


def _writable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _writable(item)
            for key, item in value.items()
            if item is not None and "\ud800" not in key
        }
    if isinstance(value, list):
        return [_writable(item) for item in value if item is not None]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


def record(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Make tables with any of these keys, each as it should be or anything at all."""
    return st.fixed_dictionaries(
        {}, optional={key: each | json_values for key, each in keys.items()}
    )


# Settings

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)
sources = st.builds(
    lambda scheme, rest: scheme + rest,
    st.sampled_from(["rtsp://", "http://", "v4l2:", "file:", "dir:", "csv:", "npy:", "f32:", "x:"]),
    words,
)
pipelines = record(
    name=names,
    source=sources,
    model=names | st.just("a@1:1,b@2:3"),
    rate=st.floats(0.1, 100),
    threshold=st.floats(0, 1),
    qos=st.integers(0, 1),
    priority=st.integers(-5, 5),
    deadline_ms=st.floats(0, 1e6),
    motion=st.booleans(),
    roi=st.lists(st.integers(-5, 5000), max_size=5),
    snapshot=st.booleans(),
    then=st.lists(record(name=names, model=names, labels=st.lists(words, max_size=2)), max_size=2),
)
settings_tables = record(
    device_id=names,
    groups=st.lists(names, max_size=3),
    profile=st.just("generic"),
    engine=st.sampled_from(["auto", "openvino", "onnxruntime"]),
    state_dir=st.just("state"),
    models_dirs=st.lists(words, max_size=2),
    quota_mb=st.integers(1, 10**6),
    broker=record(url=words, topic_root=words, username=words, protocol=st.integers(3, 6)),
    health=record(interval_s=st.floats(0, 1e9), metrics_port=st.integers(-1, 70000)),
    trust=record(keys=st.lists(words, max_size=2), allow_unsigned=st.booleans()),
    trial=record(golden=st.booleans(), probation_s=st.floats(), timeout_s=st.floats()),
    pipelines=st.lists(pipelines, max_size=3),
)
variables = st.dictionaries(
    st.sampled_from(
        ["BROKER__URL", "BROKER__PASSWORD", "GROUPS", "PIPELINES", "HEALTH__INTERVAL_S", "BROKER",
         "DEVICE_ID", "HEALTH", "NOTHING", "TRIAL__GOLDEN", "QUOTA_MB", "BROKER__URL__X", ""]
    ).map("EDGE_AGENT_{}".format),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
    | json_values.map(lambda value: as_json(value).decode()),
    max_size=3,
)  # fmt: skip
toml_files = st.binary(max_size=300) | settings_tables.map(lambda value: toml_of(value).encode())


def check_settings(given: tuple[bytes, dict[str, str], str]) -> None:
    """Read settings of any file and environment, and the little languages within them."""
    content, environ, word = given
    with folder() as place:
        (place / "config.toml").write_bytes(content)
        with only(UsageError):
            assert isinstance(load_settings(place / "config.toml", environ), Settings)
        with only(UsageError):
            parse_source(word, place)
    for parse in (parse_route, parse_url):
        with only(UsageError):
            parse(word)
    redact(word)


# Manifests

manifest_tables = record(
    name=names,
    version=st.sampled_from(["1", "2.0", "01", "1.", "9999999999"]),
    task=st.sampled_from(["detection", "classification", "anomaly", "regression", "raw"]),
    file=st.sampled_from(["model.onnx", "../model.onnx", "model.xml", "labels.txt", "sub"]),
    input=record(
        color=st.sampled_from(["rgb", "gray"]),
        layout=st.sampled_from(["nchw", "ct", "flat-tc"]),
        width=st.integers(0, 20000),
        channels=st.lists(st.integers() | words, max_size=3),
        window=st.integers(-1, 10**8),
        mean=numbers | st.lists(numbers, max_size=4),
        scale=numbers | st.lists(numbers, max_size=4),
        fixed=st.dictionaries(words, json_values, max_size=2),
        transform=st.sampled_from(["none", "logmel", "mfcc"]),
        logmel=record(fft=st.integers(), low_hz=numbers, frame_ms=numbers, log=words),
    ),
    output=record(
        decoder=st.sampled_from([case.decoder for case in CASES] + ["raw", "score", "softmax"]),
        threshold=numbers,
        labels=st.lists(words, max_size=3) | st.just("labels.txt"),
        names=st.dictionaries(words, words, max_size=2),
        scale=numbers,
    ),
    trial=record(tolerance=numbers, golden=st.booleans()),
)
manifests = st.binary(max_size=300) | manifest_tables.map(lambda value: toml_of(value).encode())


def check_manifest(given: tuple[bytes, bytes]) -> None:
    """Read a model folder whose manifest and labels may be anything."""
    content, labels = given
    with folder() as place:
        (place / "model.toml").write_bytes(content)
        (place / "labels.txt").write_bytes(labels)
        (place / "model.onnx").write_bytes(b"")
        (place / "sub").mkdir()
        with only(ModelError):
            found = load_model(place)
            assert isinstance(found, ModelFolder)
            assert found.network.resolve().is_relative_to(place.resolve())
            assert is_name(found.manifest.name), NAME_RULE


# Topics and orders

levels = st.sampled_from(
    ["command", "ping", "set", "model", "push", "offer", "list", "block", "abort", "0", "7", "x",
     "99999999999", "-1", "t1", "@lab", "", "..", "²"]
) | st.text(max_size=8)  # fmt: skip
orders = record(
    id=names,
    time=st.sampled_from(
        ["2026-11-21T03:26:50.123Z", "now", "9999-12-31", "0001-01-01T00:00+23:59"]
    ),
    pipeline=names,
    model=names,
    version=words,
    threshold=numbers,
    rate=numbers,
    persist=st.booleans(),
    package=words,
    signature=words,
)
payloads = st.binary(max_size=200) | orders.map(as_json) | json_values.map(as_json)
messages = st.tuples(
    st.sampled_from(["edge/box/in/", "edge/@lab/in/", "edge/@other/in/", "edge/", ""]),
    st.lists(levels, max_size=5).map("/".join),
    payloads,
    st.booleans(),
    st.none() | words,
)


@functools.cache
def _place() -> Path:
    """Make the folder of one device, for all cases: that it fills up is part of it."""
    return Path(tempfile.mkdtemp(prefix="fuzz-device-"))


@functools.cache
def _router(*, allow_unsigned: bool) -> Router:
    store = Store(_place() / str(allow_unsigned))
    recipient = DeviceIdentity(
        device="box",
        profile="generic",
        here=("generic", "onnxruntime", "x86_64", "x86"),
        groups=lambda: ("lab",),
        trusted=lambda: TrustedKeys([]),
        allow_unsigned=lambda: allow_unsigned,
        quota_bytes=lambda: 2**24,
        pinned=lambda: (),
        credible=lambda: True,
    )

    def publish(transfer: str, payload: Mapping[str, Any]) -> bool:
        assert is_name(transfer)
        wire.encode(payload)
        return True

    catalog = Catalog(store, [], bundled("models"))
    ledger = Ledger(store, catalog, publish, lambda: None)
    nothing = lambda _topics: None  # noqa: E731
    drawing = Drawing("edge/@package", lambda _topics: True, nothing, lambda _why: False)
    return Router(store, catalog, recipient, ledger, drawing, submit=lambda _candidate: None)


def check_topics(given: tuple[list[tuple[str, str, bytes, bool, str | None]], bool]) -> None:
    """Let a device take messages on any topic; it takes them all and goes on."""
    sent, allow_unsigned = given
    topics = TOPICS
    inbox = Inbox()
    client = offline_client(inbox)
    taken: list[str] = []
    router = _router(allow_unsigned=allow_unsigned)
    requests = Requests(
        inbox,
        client,
        topics,
        Subscriptions(topics, lambda: ("lab",)),
        CommandMemory(_place() / "commands.jsonl"),
        commands=[
            Command("ping", Ping, lambda _request: {}),
            Command("set", Set, lambda request: {"pipeline": request.pipeline, **request.changes}),
            Command("activate", Activate, lambda request: {"model": request.model}),
        ],
        deliveries=router.message,
    )
    for prefix, rest, payload, retained, response in sent:
        topic = prefix + rest
        inbox.put(
            ReceivedMessage(topic, payload, retained, response, None, partial(taken.append, topic))
        )
    inbox.put(None)
    requests.run()
    assert len(taken) <= len(sent)


# Packages


@functools.cache
def _package() -> tuple[Package, bytes]:
    """Make one good package, and its tar."""
    place = _place() / "package"
    package = make(load_model(make_model(place / "face", network=bytes(range(256)) * 40)))
    package.write(place / "face.tar")
    return package, (place / "face.tar").read_bytes()


member_names = st.sampled_from(
    ["model.toml", "model.onnx", "labels.txt", "package.json", "package.blocks", "package.sig",
     "../evil", "/etc/evil", "a/../../evil", "face/model.toml", "face/", "./x", "a//b", ".hidden",
     "con\\trick", "x" * 120, "a/b/c/d/e/f/g/h/i/j"]
)  # fmt: skip
member_names |= st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
)
kinds = st.sampled_from(
    [tarfile.REGTYPE] * 6
    + [tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE]
    + [tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE]
)
members = st.lists(
    st.tuples(member_names, kinds, st.binary(max_size=600), st.integers(-600, 600), words),
    max_size=8,
)


def tar_of(entries: list[tuple[str, bytes, bytes, int, str]]) -> bytes:
    """Write a tar of anything; sizes may lie."""
    parts = []
    for name, kind, content, lie, target in entries:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, max(0, len(content) + (lie if lie % 5 == 0 else 0))
        info.linkname = target.encode("utf-8", "replace").decode()[:90]
        long = len(name.encode()) >= 90
        head = info.tobuf(tarfile.GNU_FORMAT if long else tarfile.USTAR_FORMAT, "utf-8", "replace")
        parts += [head, content, bytes(-len(content) % 512)]
    return b"".join((*parts, bytes(1024)))


archives = (
    st.binary(max_size=2000)
    | st.deferred(lambda: mutated(_package()[1]))
    | members.map(tar_of)
    | st.tuples(manifests, members).map(
        lambda pair: tar_of([("model.toml", tarfile.REGTYPE, pair[0], 1, ""), *pair[1]])
    )
)


def check_package(given: tuple[bytes, bytes, Any]) -> None:
    """Open an archive as a device does; whatever is in it, nothing is written elsewhere."""
    content, blocks, header = given
    with only(ModelError):
        PackageHeader.parse(as_json(header))
    with only(ModelError):
        BlockList.parse(blocks, count=len(blocks) // 36, total=sum(blocks), sha256="0" * 64)
    with folder() as place:
        inner = place / "outer" / "inner"
        inner.mkdir(parents=True)
        with only(ModelError):
            archive = open_archive(content, "in/model")
            if archive.front is None:
                unpack_handmade(archive, inner)
            else:
                found = PackageHeader.parse(archive.front.header)
                found.block_list(archive.front.block_list)
                archive.members(found)
        assert [path.name for path in place.iterdir()] == ["outer"]
        assert [path.name for path in (place / "outer").iterdir()] == ["inner"]
        assert not any(path.is_symlink() for path in inner.rglob("*"))


# Networks


@functools.cache
def _networks() -> tuple[bytes, bytes, bytes]:
    """Make one good network: as ONNX, and as the two files of an IR."""
    place = _place()
    convolution(place / "good.onnx", metadata={"task": "detect", "names": "{0: 'a'}", "stride": 8})
    to_ir(place / "good.onnx", place / "good.xml", {"model_type": "ssd", "labels": "a b"})
    return tuple((place / f"good.{end}").read_bytes() for end in ("onnx", "xml", "bin"))  # type: ignore[return-value]


networks = (
    st.deferred(lambda: mutated(_networks()[0])).map(lambda content: ("onnx", content))
    | st.deferred(lambda: mutated(_networks()[1])).map(lambda content: ("xml", content))
    | st.tuples(st.sampled_from(["onnx", "xml"]), st.binary(max_size=300))
)


def check_networks(given: tuple[str, bytes]) -> None:
    """Check a network's file, and make a manifest of what it says of itself."""
    kind, content = given
    with folder() as place:
        path = place / f"model.{kind}"
        path.write_bytes(content)
        path.with_suffix(".bin").write_bytes(_networks()[2])
        with only(ModelError):
            check_network(path)
            found, assumed = manifest_of(path, None, "1")
            assert isinstance(found, Manifest)
            assert all(assumed)


# Decoders

floats = hn.arrays(
    np.float32,
    hn.array_shapes(min_dims=1, max_dims=4, max_side=12),
    elements=st.floats(width=32) | st.floats(0, 1, width=32),
)


@st.composite
def decodings(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]], float]:
    """Take a decoder's example and spoil its numbers, its shapes, or its manifest."""
    case = draw(st.sampled_from(CASES))
    outputs = {name: np.array(tensor) for name, tensor in case.outputs.items()}
    for name in draw(st.lists(st.sampled_from(sorted(outputs)), max_size=3)):
        array = outputs[name]
        if draw(st.booleans()) and array.size:
            flat = array.reshape(-1)
            spoiled = st.sampled_from([np.nan, np.inf, -np.inf, 1e38, -1e38, 1e9, 0.5, -1.0])
            for _ in range(draw(st.integers(1, 20))):
                value = draw(spoiled)
                if array.dtype.kind == "f" or np.isfinite(value):
                    flat[draw(st.integers(0, flat.size - 1))] = np.clip(value, -(2**31), 2**31)
                    if array.dtype.kind == "f":
                        flat[draw(st.integers(0, flat.size - 1))] = value
        else:
            outputs[name] = draw(floats)
    manifest = dict(case.manifest)
    if draw(st.booleans()):
        manifest["output"] = manifest["output"] | draw(
            record(
                first_label=st.integers(-2, 12),
                labels=st.lists(words, max_size=4),
                scale=st.floats(-1e9, 1e9),
                iou=st.floats(0.01, 1),
            )
        )
    return manifest, outputs, draw(st.sampled_from([0.0, -1e9, 0.3, 0.5, 1.0]))


def check_decoders(
    given: tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]], float],
) -> None:
    """Decode numbers of any kind; what comes out is finite and fits on the wire."""
    says, outputs, threshold = given
    specs = tuple(
        TensorSpec(name, tensor.shape, tensor.dtype.name) for name, tensor in outputs.items()
    )
    images = TensorSpec("images", (1, 3, HEIGHT, WIDTH), "float32")
    with only(ModelError, SampleError):
        manifest = parse_manifest(says, "model.toml")
        given_labels = manifest.output.labels
        labels = given_labels if isinstance(given_labels, tuple) else ()
        decode = build_decoder(manifest, labels, (images,), specs, (WIDTH, HEIGHT))
        with np.errstate(all="ignore"):
            found = decode(outputs, {}, threshold)
        assert isinstance(found, Detections)
        assert np.isfinite(found.boxes).all()
        assert np.isfinite(found.scores).all()
        assert len(found.boxes) == len(found.scores) == len(found.labels)
        wire.encode(found.as_json())


# The wire

finite = st.floats(allow_nan=False, allow_infinity=False)
small = st.floats(-1e6, 1e6, width=32)


@st.composite
def findings(draw: st.DrawFn) -> Findings:
    """Make findings of any task."""
    count = draw(st.integers(0, 4))
    labels = tuple(draw(st.lists(words, min_size=count, max_size=count)))
    match draw(st.integers(0, 4)):
        case 0:
            return Detections(
                draw(hn.arrays(np.float32, (count, 4), elements=small)),
                draw(hn.arrays(np.float32, (count,), elements=small)),
                labels,
            )
        case 1:
            return Classes(labels, tuple(draw(finite) for _ in labels))
        case 2:
            return Anomaly(draw(finite), draw(finite))
        case 3:
            return Values(draw(st.dictionaries(words, finite, max_size=4)))
        case _:
            return RawTensors({"t": draw(hn.arrays(np.float32, (2, 2), elements=small))})


heard = st.tuples(
    st.lists(
        st.sampled_from(["box", "status", "info", "model", "push", "t", "a"]) | words, max_size=4
    ),
    st.binary(max_size=100)
    | json_values.map(as_json)
    | record(
        state=words,
        list=st.lists(st.lists(st.integers(-5, 10**9), max_size=3), max_size=3),
        need=st.lists(st.lists(st.integers(-5, 10**9), max_size=3), max_size=3),
        percent=numbers,
        groups=st.lists(words, max_size=2),
        profile=record(name=words),
        detections=st.lists(json_values, max_size=2),
        timing=record(age_ms=numbers),
        time=words,
    ).map(as_json),
)


class _Deaf(OneShotClient):
    """A connection to nobody."""

    def __init__(self) -> None:
        """Connect to nobody."""

    @property
    def max_packet(self) -> int | None:
        """Anything goes."""
        return None

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        *,
        retain: bool = False,
        expires_s: int | None = None,
    ) -> None:
        """Say it to nobody."""


def check_wire(given: tuple[Findings, str, int, list[tuple[list[str], bytes]]]) -> None:
    """Write results that others can read, and read what others have written."""
    found, word, time_ns, sent = given
    sample = Sample(np.zeros((2, 3, 3), np.uint8), 7, time_ns, 0.0, file=_writable(word))
    outcome = Outcome("m@1", "onnxruntime:CPU", _plain(found), Timing(0.1, 0.2, 0.3), {})
    payload = wire.encode(wire.result("box", "s", "p", sample, outcome, 1.5))
    assert json.loads(payload, parse_constant=_refuse)["seq"] == 7
    package = _package()[0]
    sender = Sender(_Deaf(), "edge", "box", ["box"], package)
    deaf: Any = _Deaf()
    fleet = Fleet(deaf, "edge")
    for parts, content in sent:
        topic = "/".join(["edge", *parts])
        for as_text in (False, True):
            line = _line(topic, "edge", content, as_json=as_text)
            assert line.isprintable(), line
        parse_object(content)
        fleet.take(topic, content)
        fleet.members("lab")
        for device in fleet.status:
            assert all(map(str.isprintable, _lines(look_at(fleet.said(device)), color=False)))
        topic = f"edge/box/push/{package.transfer}"
        sender._answer(ReceivedMessage(topic, content, retained=False))
    safe = safe_name(word)
    assert is_name(safe)
    if is_version(word):
        version_key(word)


def _plain(found: Findings) -> Findings:
    """Give findings labels as a network's files can have: no halves of surrogate pairs."""
    if isinstance(found, Detections):
        return Detections(found.boxes, found.scores, tuple(map(_writable, found.labels)))
    if isinstance(found, Classes):
        return Classes(tuple(map(_writable, found.labels)), found.scores)
    if isinstance(found, Values):
        return Values({_writable(name): value for name, value in found.values.items()})
    return found


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("settings", st.tuples(toml_files, variables, words | sources), check_settings),
        Target("manifest", st.tuples(manifests, st.binary(max_size=60)), check_manifest),
        Target("topics", st.tuples(st.lists(messages, max_size=6), st.booleans()), check_topics),
        Target(
            "package",
            st.tuples(archives, st.binary(max_size=108), json_values),
            check_package,
        ),
        Target("networks", networks, check_networks),
        Target("decoders", decodings(), check_decoders),
        Target(
            "wire",
            st.tuples(findings(), words, st.integers(0, 2**62), st.lists(heard, max_size=3)),
            check_wire,
        ),
    )
}
