"""Files that are small on disk and would be huge in memory: refused before they are parsed."""

from __future__ import annotations

import io
import json
import resource
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.core.errors import ModelError, SampleError, SourceError, UsageError
from edge_agent.core.schema import MAX_KEY_PARTS, read_toml
from edge_agent.inference.golden import read_golden
from edge_agent.models.files.check_ir import MAX_REMEMBERED
from edge_agent.models.files.check_onnx import check_network
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.files.strip_weights import MAX_PARTS, place_of, without_weights
from edge_agent.models.manifest import MAX_LABEL_BYTES, MAX_LABELS, load
from edge_agent.models.npz import MAX_ARRAYS
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from edge_agent.sources.opencv import decode
from edge_agent.sources.opencv import load as load_opencv
from edge_agent.sources.source import open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.cameras import MjpegServer
from tests.helpers.small_models import encode_jpeg, plain, write_manifest
from tests.helpers.support import CHECKOUT
from tests.helpers.tiny_networks import constant_outputs, convolution, node, save_onnx


def measured(script: str, *arguments: str) -> tuple[str, int]:
    """Run a script in a process of its own; give its output and the most memory it had, MiB."""
    # Not by getrusage, which begins with what this process has.
    code = f"{script}\nprint(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=CHECKOUT,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
    )
    *words, most = done.stdout.splitlines()
    return "\n".join(words), int(most) // 1024


# Settings and manifests


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * MAX_KEY_PARTS + " = 1",
        "[a" + " . b" * MAX_KEY_PARTS + "]",
        "x = {" + '"\\"".' * MAX_KEY_PARTS + "a = 1}",
        "'q'" + ".'q'" * 60_000,
    ],
)
def test_a_key_without_end_is_refused(tmp_path: Path, text: str) -> None:
    """A dotted key of 60,000 parts would take all memory to read; the line is named instead."""
    path = tmp_path / "config.toml"
    path.write_text(f"\n\n{text}\n")
    with pytest.raises(UsageError, match=rf"line 3: a key of more than {MAX_KEY_PARTS} parts"):
        read_toml(path, UsageError)


def test_a_key_and_a_list_as_people_write_them_are_read(tmp_path: Path) -> None:
    """Points in numbers, in texts, and in a key of a few parts are no reason to refuse."""
    path = tmp_path / "config.toml"
    numbers = ", ".join(["123.675"] * 1000)
    path.write_text(f'a.b.c.d = [{numbers}]\ntext = "{"and so on. " * 500}"\n')
    assert len(read_toml(path, UsageError)["a"]["b"]["c"]["d"]) == 1000


def test_labels_that_no_result_could_carry_are_refused(tmp_path: Path) -> None:
    """Half of a surrogate pair, which a network's metadata can hold, is refused as a label."""
    metadata = {"task": "classify", "names": "{0: '\\ud800', 1: 'b', 2: 'c'}", "imgsz": "[32, 32]"}
    path = constant_outputs(
        tmp_path / "m.onnx", {"scores": np.zeros((1, 3), np.float32)}, metadata=metadata
    )
    with pytest.raises(ModelError, match=r"output\.labels: holds half of a letter"):
        manifest_of(path, None, "1")


def test_labels_are_bounded(tmp_path: Path) -> None:
    """A file of labels that is too large, or has too many lines, is refused by its name."""
    constant_outputs(tmp_path / "model.onnx", {"scores": np.zeros((1, 3), np.float32)})
    output = {"decoder": "softmax", "labels": "labels.txt"}
    write_manifest(tmp_path, "1", "classification", name="many", output=output)
    labels = tmp_path / "labels.txt"
    labels.write_bytes(b"x\n" * (MAX_LABELS + 1))
    with pytest.raises(ModelError, match=rf"labels\.txt: {MAX_LABELS + 1} labels"):
        load(tmp_path)
    labels.write_bytes(b"x" * (MAX_LABEL_BYTES + 1))
    with pytest.raises(ModelError, match=r"labels\.txt: larger than 1 MiB"):
        load(tmp_path)


@pytest.mark.parametrize("place", ["labels.txt", "model.toml"])
def test_a_label_of_a_megabyte_is_refused_before_results_repeat_it(
    place: str, tmp_path: Path
) -> None:
    """Results of 8 MB came from a labels.txt with one such line."""
    constant_outputs(tmp_path / "model.onnx", {"scores": np.zeros((1, 3), np.float32)})
    names = ["a", "b", "x" * (2**20 - 8)] if place == "labels.txt" else ["a", "b", "x" * 257]
    (tmp_path / "labels.txt").write_text("\n".join(names))
    output = {"decoder": "softmax", "labels": names if place == "model.toml" else place}
    write_manifest(tmp_path, "1", "classification", name="long", output=output)
    with pytest.raises(ModelError, match=r"output\.labels: number 3 has more than 256 characters"):
        load(tmp_path)


# ONNX

CHECK = """
import sys
from pathlib import Path
from edge_agent.core.errors import ModelError
from edge_agent.models.files.check_onnx import check_network
try:
    check_network(Path(sys.argv[1]))
except ModelError as problem:
    print(problem)
"""


def test_a_million_empty_nodes_cost_nothing(tmp_path: Path) -> None:
    """8 MB of empty nodes, 600 MB once parsed, are refused without being parsed."""
    path = tmp_path / "model.onnx"
    nodes = b"\x0a\x00" * (2 * MAX_PARTS) + b"\x62\x03\x0a\x01y"
    size = len(nodes)
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    path.write_bytes(b"\x3a" + length + nodes)
    words, most = measured(
        CHECK,
        str(path),
    )
    assert words == f"{path}: more than {MAX_PARTS} parts"
    assert most < 300


def test_weights_are_checked_without_being_loaded(tmp_path: Path) -> None:
    """A file with 320 MB of weights is checked within 200 MB, and a NaN in them is found."""
    path = tmp_path / "model.onnx"
    weights = {f"w{i}": np.full((1000, 2000), i, np.float32) for i in range(40)}
    weights["w39"][-1, -1] = np.nan
    nodes = [node("Add", ["x", "w0"], ["s0"])]
    nodes += [node("Add", [f"s{i}", f"w{i + 1}"], [f"s{i + 1}"]) for i in range(39)]
    value = ("float32", (1000, 2000))
    save_onnx(path, nodes, [("x", *value)], [("s39", *value)], weights)
    assert path.stat().st_size > 320_000_000
    words, most = measured(
        CHECK,
        str(path),
    )
    assert words == f"{path}: tensor 'w39' holds NaN; the file is damaged or its training diverged"
    assert most < 200


def test_nothing_but_the_weights_is_left_out(tmp_path: Path) -> None:
    """What is parsed instead of the file is the file but for raw data, whose place is right."""
    path, weight, _ = convolution(tmp_path / "model.onnx")
    large = np.arange(5000, dtype=np.float32)
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(large, "large"))
    model.graph.initializer[0].doc_string = "0:12"  # forged, and gone
    onnx.save(model, path)
    short = onnx.ModelProto.FromString(without_weights(path))
    by_name = {tensor.name: tensor for tensor in short.graph.initializer}
    assert by_name["weight"].raw_data == weight.tobytes()
    assert place_of(by_name["weight"].doc_string) is None
    place = place_of(by_name["large"].doc_string)
    assert place is not None
    offset, length = place
    assert path.read_bytes()[offset : offset + length] == large.tobytes()
    assert not by_name["large"].HasField("raw_data")
    for tensor in (*model.graph.initializer, *short.graph.initializer):
        tensor.ClearField("raw_data")
        tensor.ClearField("doc_string")
    assert short == model


def test_of_data_given_twice_the_last_counts(tmp_path: Path) -> None:
    """As for any parser of this format, whether large or small comes first."""
    path, _, _ = convolution(tmp_path / "model.onnx")
    whole = onnx.load(path)
    del whole.graph.initializer[:]
    for first, last in ((5000, 10), (10, 5000), (5000, 6000), (5000, 0)):
        tensor = onnx.TensorProto(name="t", raw_data=bytes(first)).SerializeToString()
        tensor += onnx.TensorProto(raw_data=b"\1" * last).SerializeToString()
        graph = b"\x2a" + _length(len(tensor)) + tensor
        path.write_bytes(whole.SerializeToString() + b"\x3a" + _length(len(graph)) + graph)
        (short,) = onnx.ModelProto.FromString(without_weights(path)).graph.initializer
        place = place_of(short.doc_string)
        found = short.raw_data if place is None else path.read_bytes()[place[0] : sum(place)]
        assert found == b"\1" * last


def _length(value: int) -> bytes:
    """Write a number below 2**14 as protobuf does."""
    return bytes([value & 127 | 128, value >> 7])


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    """Graphs within nodes within graphs, deeper than any parser goes, end with one line."""
    message = b""
    for _ in range(40):
        graph = b"\x32" + _length(len(message)) + message  # AttributeProto.g
        attribute = b"\x2a" + _length(len(graph)) + graph  # NodeProto.attribute
        message = b"\x0a" + _length(len(attribute)) + attribute  # GraphProto.node
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + _length(len(message)) + message)
    with pytest.raises(ModelError, match=r"nested more than \d+ levels deep"):
        check_network(path)


@settings(deadline=None)
@given(st.data())
def test_a_damaged_network_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Wherever bytes are changed or cut off, the check ends with a verdict, never otherwise."""
    folder = tmp_path_factory.mktemp("damaged")
    path, _, _ = convolution(folder / "model.onnx")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(ModelError):
        check_network(path)


@pytest.mark.parametrize(
    ("around", "element"), [("edges", '<edge to-layer="{}"/>'), ("rt_info", '<a{} value=""/>')]
)
def test_an_ir_of_a_million_edges_is_refused(tmp_path: Path, around: str, element: str) -> None:
    """What would be kept of 30 MB of XML is bounded, whatever its elements are."""
    path = tmp_path / "model.xml"
    (tmp_path / "model.bin").write_bytes(b"")
    elements = "".join(element.format(number) for number in range(MAX_REMEMBERED + 2))
    path.write_text(f"<net><{around}>{elements}</{around}></net>")
    with pytest.raises(ModelError, match="edges and entries"):
        check_network(path)


# Golden outputs


def with_golden(folder: Path, golden: bytes) -> str:
    """Give a small model these golden outputs; gives why they are refused."""
    constant_outputs(folder / "model.onnx", {"scores": np.zeros((1, 3), np.float32)})
    write_manifest(folder, "1", "raw", name="m", output={"decoder": "raw"})
    (folder / "golden.npz").write_bytes(golden)
    model, _ = _loader().load(load(folder), "picture")
    try:
        with pytest.raises(ModelError) as refused:
            read_golden(model)
    finally:
        model.close()
    return str(refused.value)


def _loader() -> ModelLoader:
    from edge_agent.config.device_profile import choose, default_dirs, load_profiles
    from edge_agent.device.hardware import read_facts

    facts = read_facts()
    profile = choose(load_profiles(default_dirs()), facts, "generic").profile
    return ModelLoader(DeviceEngines(profile, facts, "onnxruntime"))


def test_an_archive_of_a_hundred_thousand_arrays_is_not_even_listed(tmp_path: Path) -> None:
    """The number of members is looked at before the listing is read."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for number in range(MAX_ARRAYS + 1):
            file.writestr(f"{number}.npy", b"")
    assert with_golden(tmp_path, archive.getvalue()).endswith(f"more than {MAX_ARRAYS} arrays")


def test_a_listing_that_belies_its_number_is_refused(tmp_path: Path) -> None:
    """An end record that says one member, of a listing of megabytes, is not believed."""
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2**24, 0, 0)
    assert with_golden(tmp_path, bytes(2**20) + end).endswith(f"more than {MAX_ARRAYS} arrays")


def test_arrays_that_unpack_to_gigabytes_are_refused(tmp_path: Path) -> None:
    """The size that members unpack to is what counts, 300 MB of zeros in 300 kB."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("input/images.npy", bytes(300_000_000))
    assert len(archive.getvalue()) < 400_000
    assert "MiB of arrays, expected at most 256" in with_golden(tmp_path, archive.getvalue())


def test_a_header_that_promises_terabytes_is_refused(tmp_path: Path) -> None:
    """An array whose header says more than there is, is damaged; nothing is reserved for it."""
    member = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(member, header)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("input/images.npy", member.getvalue() + bytes(64))
    assert "golden.npz: cannot be read" in with_golden(tmp_path, archive.getvalue())


# Pictures


def jpeg_of(width: int, height: int) -> bytes:
    """Make a JPEG whose header claims a size that its data does not have."""
    data = bytearray(encode_jpeg(plain(7)))
    at = data.index(b"\xff\xc0")  # start of frame: length, bits, height, width
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def test_a_picture_that_claims_gigapixels_is_dropped(tmp_path: Path) -> None:
    """The size in its header is looked at before anything is reserved for it."""
    (tmp_path / "huge.jpg").write_bytes(jpeg_of(60000, 60000))
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from edge_agent.core.errors import SampleError\n"
        "from edge_agent.sources.source import open_source\n"
        "from edge_agent.sources.spec import parse_source\n"
        "source = open_source(parse_source(f'dir:{sys.argv[1]}', Path('/')))\n"
        "assert source.grab()\n"
        "try:\n    source.retrieve()\nexcept SampleError as problem:\n    print(problem)"
    )
    words, most = measured(script, str(tmp_path))
    assert words.endswith("huge.jpg: cannot be decoded: has more than 64 megapixels")
    assert most < 300


def test_a_jpeg_of_many_passes_is_refused() -> None:
    """100 bytes are another pass over the whole picture: some MB of them would take an hour."""
    data = encode_jpeg(plain(7))
    scan = data[data.index(b"\xff\xda") : -2]
    assert decode(np.frombuffer(data[:-2] + scan + data[-2:], np.uint8)).shape == (48, 64, 3)
    with pytest.raises(SampleError, match="has more than 100 scans"):
        decode(np.frombuffer(data[:-2] + scan * 100 + data[-2:], np.uint8))


def test_what_only_looks_like_many_scans_is_read() -> None:
    """The pixels of another kind of picture, and the video that a phone appends to its JPEG."""
    colors = np.full((48, 64, 3), (0xFF, 0xDA, 0), np.uint8)
    bitmap = load_opencv().imencode(".bmp", colors)[1]
    assert np.array_equal(decode(bitmap), colors)
    moving = encode_jpeg(plain(7)) + b"\xff\xda" * 200
    assert decode(np.frombuffer(moving, np.uint8)).shape == (48, 64, 3)


def test_a_camera_that_claims_too_large_pictures_is_not_taken() -> None:
    """A stream that begins with pictures of 67 million pixels is refused, with their size."""
    with MjpegServer([encode_jpeg(plain(7, 8200, 8200)[..., :1])], rate=5) as camera:
        spec = parse_source(camera.url(), Path("/"))
        source = open_source(spec)
        assert source.grab()
        with pytest.raises(SourceError, match="pictures of 8200x8200, expected at most 64 mega"):
            source.retrieve()
        source.close()


# What devices say, to the commands that listen


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b'{"state": "\\u001b]0;owned\\u0007", "reason": "x"}', "\\x1b]0;owned\\x07 (x)"),
        (b"\x1b[2Jnot json", "\\x1b[2Jnot json"),
        (b"[" * 100_000, "[[["),
        (b'{"state": "\\u009b31m"}', "\\x9b31m (None)"),
    ],
)
def test_what_a_device_says_gives_the_terminal_no_orders(payload: bytes, shown: str) -> None:
    """`tail` writes control characters out, and shows what is no JSON as it is."""
    from edge_agent.cli.commands.tail import _line

    line = _line("edge/box/status", "edge", payload, as_json=False)
    assert line.isprintable()
    assert shown in line
    as_json = _line("edge/box/status", "edge", payload, as_json=True)
    assert as_json.isprintable()
    assert json.loads(as_json)["topic"] == "edge/box/status"


def test_a_reading_that_is_no_picture_is_dropped(tmp_path: Path) -> None:
    """A file of random bytes called a picture costs that one sample."""
    (tmp_path / "noise.png").write_bytes(np.random.default_rng(1).bytes(5000))
    source = open_source(parse_source(f"dir:{tmp_path}", Path("/")))
    assert source.grab()
    with pytest.raises(SampleError, match="cannot be decoded"):
        source.retrieve()
