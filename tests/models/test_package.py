"""Packages: made, cut along tensors, believed in the right order, unpacked strictly."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edge_agent.core.errors import ModelError
from edge_agent.models.files.tensor_ranges import tensor_ranges
from edge_agent.models.manifest import load
from edge_agent.models.packages.archive import member_reader, open_archive, unpack_handmade
from edge_agent.models.packages.blocks import (
    CUT,
    MAX_BLOCK,
    SMALL,
    BlockList,
    cut,
    ranges,
    verified,
)
from edge_agent.models.packages.build import Package, make, open_package, pack
from edge_agent.models.packages.keys import TrustedKeys, generate_key, load_private
from edge_agent.models.packages.package import (
    PackageHeader,
    check_expiry,
    check_targets,
    parse_time,
    transfer_id,
    verify_header,
)
from edge_agent.models.packages.tar_folder import unpack
from edge_agent.models.packages.ustar import TarReader, header, padding
from tests.helpers.model_folders import contents, make_model, weights
from tests.helpers.small_models import brightness

ASSETS = Path(__file__).resolve().parents[2].parent / "shared" / "assets"
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def says(package: Package, **changes: Any) -> bytes:
    """Give a package.json with some keys changed; None takes a key away."""
    data = {**json.loads(package.front.header), **changes}
    return json.dumps({key: value for key, value in data.items() if value is not None}).encode()


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """Make a package of a small model, unsigned."""
    return make(load(make_model(tmp_path / "face")), created=NOW)


# --- making


def test_package_is_a_plain_tar_in_the_promised_order(tmp_path: Path) -> None:
    """Any tar reads it: package.json, .sig, .blocks, model.toml, then the rest by name."""
    folder = make_model(tmp_path / "face", more={"README.md": b"hello", "extra/a.bin": b"a"})
    generate_key(tmp_path / "key")
    pack(folder, tmp_path / "face.tar", key=load_private(tmp_path / "key"))
    with tarfile.open(tmp_path / "face.tar", "r:") as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [
            "package.json",
            "package.sig",
            "package.blocks",
            "model.toml",
            "README.md",
            "extra/a.bin",
            "labels.txt",
            "model.onnx",
        ]
        assert all(member.isreg() and member.mode == 0o644 for member in members)
        assert archive.extractfile("model.onnx").read() == weights(1)  # type: ignore[union-attr]
        assert len(archive.extractfile("package.sig").read()) == 64  # type: ignore[union-attr]


def test_blocks_are_the_bytes_behind_the_front(tmp_path: Path) -> None:
    """The blocks in order, by length and digest, are the tar's bytes after the first members."""
    package = pack(make_model(tmp_path / "face"), tmp_path / "face.tar")
    tar = (tmp_path / "face.tar").read_bytes()
    start = sum(
        len(header(name, len(data))) + len(data) + len(padding(len(data)))
        for name, data in (
            ("package.json", package.front.header),
            ("package.blocks", package.front.block_list),
        )
    )
    entries = package.front.block_list
    at = start
    for index in range(package.header.blocks):
        entry = entries[36 * index : 36 * index + 36]
        length = int.from_bytes(entry[:4], "big")
        assert hashlib.sha256(tar[at : at + length]).digest() == entry[4:]
        at += length
    assert at - start == package.header.size
    assert tar[at:] == bytes(1024)
    assert json.loads(package.front.header)["bytes"] == package.header.size


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """Nothing but `created` depends on when, where or by whom a folder is packed."""
    first = make_model(tmp_path / "one" / "face")
    second = make_model(tmp_path / "two" / "other-name")
    (second / "labels.txt").chmod(0o600)
    pack(first, tmp_path / "a.tar", created=NOW)
    pack(second, tmp_path / "b.tar", created=NOW)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_hidden_files_stay_behind(tmp_path: Path) -> None:
    """Files and folders whose names begin with a dot are not part of a model."""
    folder = make_model(tmp_path / "face", more={".git/config": b"x", ".DS_Store": b"x"})
    assert b".git" not in make(load(folder)).stream.read(0, 2048)
    pack(folder, tmp_path / "face.tar")
    with tarfile.open(tmp_path / "face.tar") as archive:
        assert not [name for name in archive.getnames() if name.startswith(".")]


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    """A link, a reserved name, no manifest, a past date and others: one line, nothing written."""
    out = tmp_path / "out.tar"
    linked = make_model(tmp_path / "linked")
    (linked / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(ModelError, match="passwords: is a link"):
        pack(linked, out)
    reserved = make_model(tmp_path / "reserved", more={"package.json": b"{}"})
    with pytest.raises(ModelError, match=r"package.json: this name belongs to the package"):
        pack(reserved, out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"model.toml: no such file"):
        pack(tmp_path / "empty", out)
    good = make_model(tmp_path / "good")
    with pytest.raises(ModelError, match="lies inside the model folder"):
        pack(good, good / "out.tar")
    with pytest.raises(ModelError, match="is past already"):
        pack(good, out, expires=NOW - timedelta(days=400), created=NOW)
    with pytest.raises(ModelError, match="'lab' is none of device:ID, profile:NAME, @GROUP"):
        pack(good, out, targets=["lab"])
    with pytest.raises(ModelError, match=r"nowhere/out.tar: cannot be written: No such file"):
        pack(good, tmp_path / "nowhere" / "out.tar")
    long = make_model(tmp_path / "long", more={"a" * 120: b""})
    with pytest.raises(ModelError, match="does not fit a package"):
        pack(long, out)
    assert not out.exists()


def test_golden_outputs_that_every_device_refuses_are_not_packed(tmp_path: Path) -> None:
    """A file that is damaged, or of another network, is told where the package is made."""
    folder = brightness(tmp_path / "light")
    golden = folder / "golden.npz"
    golden.write_bytes(b"PK\3\4")
    out = tmp_path / "out.tar"
    with pytest.raises(ModelError, match=r"light/golden.npz: cannot be read: File is not a zip"):
        pack(folder, out)
    np.savez(golden, **{"input/other": np.zeros(3)})  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"golden.npz: expected input/"):
        pack(folder, out)
    assert not out.exists()


def test_golden_outputs_of_a_variant_are_looked_at(tmp_path: Path) -> None:
    """Each file that a variant takes instead of the one of all."""
    folder = brightness(tmp_path / "light")
    manifest = folder / "model.toml"
    manifest.write_text(f'{manifest.read_text()}\n[variants.arm]\nfile = "model.onnx"\n')
    (folder / "golden-arm.npz").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"golden-arm.npz: cannot be read"):
        pack(folder, tmp_path / "out.tar")


def test_sender_notices_files_that_change(tmp_path: Path, package: Package) -> None:
    """A block whose file has changed since packing is never sent."""
    last = len(package.blocks) - 2  # the very last one is padding
    package.block(last)
    (tmp_path / "face" / "model.onnx").write_bytes(weights(2))
    with pytest.raises(ModelError, match=f"block {last}: is not what the package was made with"):
        package.block(last)
    (tmp_path / "face" / "model.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="is shorter than it was"):
        package.block(last)


def test_opened_package_gives_the_same_blocks(tmp_path: Path) -> None:
    """What `open_package` reads from the tar is what `pack` made of the folder."""
    made = pack(make_model(tmp_path / "face"), tmp_path / "face.tar")
    opened = open_package(tmp_path / "face.tar")
    assert opened is not None
    assert opened.transfer == made.transfer == transfer_id(made.front.header)
    assert opened.header == made.header
    assert [opened.block(i) for i in range(len(opened.blocks))] == [
        made.block(i) for i in range(len(made.blocks))
    ]


# --- cutting


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 400_000),
    st.lists(st.integers(-10, 400_010), max_size=30),
    st.lists(st.integers(-10, 400_010), max_size=60),
)
def test_cutting_loses_nothing(length: int, hard: list[int], soft: list[int]) -> None:
    """Blocks add up to the stream, none is empty or too long, and each hard point is a cut."""
    lengths = cut(length, hard, soft)
    ends = np.cumsum(lengths).tolist()
    assert ends[-1] == length
    assert all(1 <= each <= CUT <= MAX_BLOCK for each in lengths)
    assert {point for point in hard if 0 < point < length} <= set(ends)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 70_000), st.integers(SMALL, 200_000))
def test_a_large_tensor_is_cut_alike_wherever_it_lies(before: int, size: int) -> None:
    """Whatever precedes a large tensor, its own blocks are the same."""
    lengths = cut(before + size + 500, [before, before + size], [])
    ends = np.cumsum([0, *lengths]).tolist()
    own = lengths[ends.index(before) : ends.index(before + size)]
    assert own == cut(size, [], [])


def test_small_tensors_share_blocks() -> None:
    """500 tensors of 100 bytes make a dozen blocks, cut at the starts of tensors."""
    lengths = cut(50_000, [], range(0, 50_000, 100))
    assert len(lengths) == 13
    assert all(each % 100 == 0 for each in lengths)


def test_ranges_are_first_and_last() -> None:
    """Neighboring numbers become one range, both ends included."""
    assert ranges([0, 1, 2, 5, 7, 8]) == [(0, 2), (5, 5), (7, 8)]
    assert ranges([]) == []


# --- finding tensors


def test_onnx_tensors_are_found_byte_for_byte(tmp_path: Path) -> None:
    """Initializers, constants and those of subgraphs lie where the walk says, packed or raw."""
    rng = np.random.default_rng(0)
    raw = rng.random((64, 64), np.float32)
    packed = rng.random(2000).astype(np.float32)
    constant = rng.random((40, 40), np.float32)
    inner = rng.random((30, 30), np.float32)
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(inner))],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [30, 30])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(constant)),
            helper.make_node("If", ["which"], ["y"], then_branch=branch, else_branch=branch),
        ],
        "g",
        [helper.make_tensor_value_info("which", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [30, 30])],
        [
            numpy_helper.from_array(raw, "raw"),
            helper.make_tensor("packed", TensorProto.FLOAT, [2000], packed.tolist()),
        ],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph), path)
    data = path.read_bytes()
    found = {data[start:end] for start, end in tensor_ranges({"model.onnx": path})["model.onnx"]}
    assert found == {array.tobytes() for array in (raw, packed, constant, inner)}


def test_external_data_is_cut_at_its_tensors(tmp_path: Path) -> None:
    """Tensors in a file beside the model are found by their offset and length there."""
    arrays = {f"w{i}": np.full((64, 64), i, np.float32) for i in range(3)}
    graph = helper.make_graph(
        [helper.make_node("Sum", list(arrays), ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    path = tmp_path / "sub" / "model.onnx"
    path.parent.mkdir()
    onnx.save(helper.make_model(graph), path, save_as_external_data=True, location="w.data")
    files = {"sub/model.onnx": path, "sub/w.data": path.parent / "w.data"}
    data = files["sub/w.data"].read_bytes()
    found = [data[start:end] for start, end in tensor_ranges(files)["sub/w.data"]]
    assert found == [array.tobytes() for array in arrays.values()]


def test_ir_weights_are_cut_at_their_constants(tmp_path: Path) -> None:
    """The .xml's offsets and sizes are the ranges of the .bin beside it."""
    (tmp_path / "m.xml").write_text(
        '<net><layer><data element_type="f32" offset="0" shape="4" size="16" /></layer>'
        '<layer><data size="32" offset="16"/><data axis="1"/></layer>'
        '<layer><data offset="1000" size="9"/></layer></net>'
    )
    (tmp_path / "m.bin").write_bytes(bytes(48))
    files = {"m.xml": tmp_path / "m.xml", "m.bin": tmp_path / "m.bin"}
    assert tensor_ranges(files) == {"m.xml": [], "m.bin": [(0, 16), (16, 48)]}


def test_npz_is_cut_at_its_arrays(tmp_path: Path) -> None:
    """Of golden.npz each array is a range, so that equal inputs are not sent again."""
    arrays = {"input/x": np.arange(3000.0), "output/y": np.arange(7.0)}
    np.savez(tmp_path / "golden.npz", **arrays)  # type: ignore[arg-type]
    data = (tmp_path / "golden.npz").read_bytes()
    found = tensor_ranges({"golden.npz": tmp_path / "golden.npz"})["golden.npz"]
    read = [np.load(io.BytesIO(data[start:end])) for start, end in found]
    assert [array.tolist() for array in read] == [array.tolist() for array in arrays.values()]


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300), suffix=st.sampled_from([".onnx", ".xml", ".npz"]))
def test_any_bytes_can_be_packed(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    """A file that is not what its name says has no tensors or some, never an error."""
    folder = tmp_path_factory.mktemp("junk")
    (folder / f"m{suffix}").write_bytes(data)
    (folder / "m.bin").write_bytes(data)
    files = {name: folder / name for name in (f"m{suffix}", "m.bin")}
    for found in tensor_ranges(files).values():
        assert all(0 <= start < end <= len(data) for start, end in found)


# --- believing


def test_header_is_read_back(tmp_path: Path) -> None:
    """Name, version, times and targets survive the way through package.json."""
    folder = make_model(tmp_path / "face", version="1.10")
    expires = NOW + timedelta(days=30)
    targets = ["device:edge-1", "profile:rpi5", "@lab"]
    found = make(load(folder), created=NOW, expires=expires, targets=targets).header
    assert (found.name, found.version) == ("face", "1.10")
    assert (found.created, found.expires, found.targets) == (NOW, expires, tuple(targets))


WRONG_HEADERS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "schema": ({"schema": 2}, "schema: .*1, found 2"),
    "no schema": ({"schema": None}, "schema: is missing"),
    "name": ({"name": "../etc"}, "name: '../etc' is not a name"),
    "name type": ({"name": 5}, "name: expected a text in quotes, found 5"),
    "version": ({"version": "v1"}, "version: 'v1' is not a version"),
    "created": ({"created": "yesterday"}, "created: 'yesterday' is not an ISO 8601 time"),
    "expires": ({"expires": "2026-13-01"}, "expires: '2026-13-01' is not an ISO 8601 time"),
    "expires type": ({"expires": 5}, "expires: expected a text in quotes, found 5"),
    "targets": ({"targets": ["edge-1"]}, "'edge-1' is none of device:ID"),
    "targets type": ({"targets": "@lab"}, "targets: expected a list"),
    "targets count": ({"targets": ["@a"] * 65}, "targets: more than 64"),
    "negative": ({"bytes": -1}, "bytes: expected a number of at least 1"),
    "huge": ({"bytes": 10**18}, "bytes: expected a number of at most"),
    "float": ({"bytes": 7.0}, "bytes: expected an integer, found 7.0"),
    "text": ({"blocks": "7"}, "blocks: expected an integer, found '7'"),
    "bool": ({"blocks": True}, "blocks: expected an integer, found True"),
    "too few blocks": ({"blocks": 1}, "1 blocks of at most 65536 bytes cannot be"),
    "too many blocks": ({"bytes": 1, "blocks": 2}, "cannot be 1 bytes"),
    "digest": ({"blocks_sha256": "0" * 63}, "blocks_sha256: expected 64 hex digits"),
    "digest case": ({"blocks_sha256": "A" * 64}, "blocks_sha256: expected 64 hex digits"),
    "padding": ({"more": "x" * 17_000}, "at most 16384"),
}


@pytest.mark.parametrize("case", WRONG_HEADERS)
def test_wrong_header_is_one_line(package: Package, case: str) -> None:
    """Each value that package.json may not have is refused by its key."""
    changes, expected = WRONG_HEADERS[case]
    with pytest.raises(ModelError, match=expected) as caught:
        PackageHeader.parse(says(package, **changes))
    assert str(caught.value).startswith("package.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"nope", b"\xff", b"[" * 10_000, b'{"a": NaN}', b'{"a": 1, "a": 2}', b"9" * 9000],
)
def test_wrong_json_is_one_line(data: bytes) -> None:
    """What is no JSON object, or is read differently by different parsers, is refused."""
    with pytest.raises(ModelError, match=r"^package.json: ") as caught:
        PackageHeader.parse(data)
    assert "\n" not in str(caught.value)


def test_unknown_keys_are_ignored(package: Package) -> None:
    """A later release may add keys."""
    assert PackageHeader.parse(says(package, more=[1, {"x": None}])) == package.header


def test_unsigned_package_says_how_to_trust(tmp_path: Path, package: Package) -> None:
    """Without a signature nothing is believed unless the settings allow it; the mend is named."""
    trusted = TrustedKeys([tmp_path / "trust.d"])
    expected = r"unsigned; .*put its \.pub file into .*trust\.d.*trust\.allow_unsigned"
    with pytest.raises(ModelError, match=expected):
        verify_header(package.front.header, None, trusted, allow_unsigned=False)
    with pytest.raises(ModelError, match=r"as in trust\.keys = "):
        verify_header(package.front.header, None, TrustedKeys([]), allow_unsigned=False)
    assert verify_header(package.front.header, None, trusted, allow_unsigned=True) is None


@pytest.mark.parametrize("place", ["a.pub", "gone.pub"])
def test_where_files_are_trusted_the_mend_is_no_folder(
    tmp_path: Path, package: Package, place: str
) -> None:
    """Nothing can be put into a file: where the settings name files, they are to name one more."""
    generate_key(tmp_path / "a")
    trusted = TrustedKeys([tmp_path / place])
    data = package.front.header
    for signature in (None, bytes(64)):
        with pytest.raises(ModelError, match=r"add its \.pub file to \[trust\] keys") as said:
            verify_header(data, signature, trusted, allow_unsigned=False)
        assert "into" not in str(said.value)


def test_signature_that_is_there_must_verify(tmp_path: Path, package: Package) -> None:
    """A wrong signature is refused even where unsigned packages are allowed."""
    public = generate_key(tmp_path / "a")
    generate_key(tmp_path / "b")
    data = package.front.header
    trusted = TrustedKeys([public])
    good = load_private(tmp_path / "a").sign(data)
    wrong = load_private(tmp_path / "b").sign(data)
    assert verify_header(data, good, trusted, allow_unsigned=False) == "a.pub"
    for allow in (False, True):
        with pytest.raises(ModelError, match=r"no key that this device trusts.*trusted: a\.pub"):
            verify_header(data, wrong, trusted, allow_unsigned=allow)
        with pytest.raises(ModelError, match="expected 64 bytes, found 0"):
            verify_header(data, b"", trusted, allow_unsigned=allow)


def test_targets_name_device_profile_or_group(package: Package) -> None:
    """A package is for any one of its targets, or for all devices where it names none."""

    def judge(targets: list[str] | None) -> None:
        parsed = PackageHeader.parse(says(package, targets=targets))
        check_targets(parsed, device="edge-1", profile="rpi5", groups=["lab", "roof"])

    judge(None)
    judge(["device:edge-1"])
    judge(["device:other", "profile:rpi5"])
    judge(["@roof"])
    with pytest.raises(ModelError, match=r"face@1 is for device:lab, @edge-1; this is @lab, @roof"):
        judge(["device:lab", "@edge-1"])


def test_expiry_waits_for_a_credible_clock(package: Package) -> None:
    """By a clock that has not been set nothing is judged; at the moment of expiry it is over."""
    parsed = PackageHeader.parse(says(package, expires="2026-12-02T00:00:00.000Z"))
    moment = parse_time("2026-12-02", "here")
    early = datetime(1970, 1, 1, tzinfo=UTC)
    assert check_expiry(parsed, now=NOW, credible=True) == "ok"
    assert check_expiry(parsed, now=early, credible=False) == "wait"
    assert check_expiry(package.header, now=early, credible=False) == "ok"
    with pytest.raises(ModelError, match=r"face@1 expired at 2026-12-02T00:00:00\.000Z"):
        check_expiry(parsed, now=moment, credible=True)


def test_block_list_must_be_the_packages_own(package: Package) -> None:
    """Another length, digest, block size or sum than package.json says is refused."""
    data = package.front.block_list
    assert package.header.block_list(data) == package.blocks
    with pytest.raises(ModelError, match=r"expected .* bytes for .* blocks, found"):
        package.header.block_list(data[:-1])
    with pytest.raises(ModelError, match="its SHA-256 is"):
        package.header.block_list(bytes([data[0] ^ 1]) + data[1:])

    def parse(*lengths: int, total: int) -> None:
        made = BlockList.of(lengths, [bytes(32)] * len(lengths)).to_bytes()
        digest = hashlib.sha256(made).hexdigest()
        BlockList.parse(made, count=len(lengths), total=total, sha256=digest)

    with pytest.raises(ModelError, match="block 1 has 0 bytes"):
        parse(5, 0, total=5)
    with pytest.raises(ModelError, match="block 0 has 65537 bytes"):
        parse(65537, total=65537)
    with pytest.raises(ModelError, match=r"the blocks have 10 bytes, but package.json says 11"):
        parse(5, 5, total=11)


def test_no_block_is_read_before_its_digest(package: Package) -> None:
    """Up to a flipped bit the blocks come through; the one that has it does not."""
    flipped = package.blocks.offsets[3]

    def read(offset: int, length: int) -> bytes:
        data = package.stream.read(offset, length)
        return bytes([data[0] ^ 1]) + data[1:] if offset == flipped else data

    stream = verified(package.blocks, read)
    assert [next(stream) for _ in range(3)] == [package.block(index) for index in range(3)]
    with pytest.raises(ModelError, match="block 3: is not what"):
        next(stream)


# --- unpacking


def tar_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """Make a tar of members as they are given, however wrong."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info, data in members:
            info.size = len(data) if info.isreg() else info.size
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(name: str, data: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Make one member."""
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def unpacked(data: bytes, folder: Path) -> dict[str, bytes]:
    """Unpack strictly and read what has been written."""
    folder.mkdir()
    unpack(TarReader(io.BytesIO(data).read, len(data), "p"), folder, "p")
    return contents(folder)


def test_stream_survives_unpacking(tmp_path: Path, package: Package) -> None:
    """A folder unpacked from the blocks is the folder packed, and gives the same stream again."""
    (tmp_path / "out").mkdir()
    reader = member_reader(package.header, package.blocks, package.stream.read)
    layout = unpack(reader, tmp_path / "out", "p")
    assert contents(tmp_path / "out") == contents(tmp_path / "face")
    size = package.header.size
    again = layout.stream(tmp_path / "out")
    assert again.length == size
    assert again.read(0, size) == package.stream.read(0, size)
    assert again.read(700, 9000) == package.stream.read(700, 9000)


HOSTILE: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "parent": (lambda: tar_of(entry("../evil")), "'../evil' does not stay inside"),
    "inner parent": (lambda: tar_of(entry("a/../../evil")), "does not stay inside"),
    "absolute": (lambda: tar_of(entry("/etc/evil")), "does not stay inside"),
    "backslash": (lambda: tar_of(entry("a\\b")), "does not stay inside"),
    "control": (lambda: tar_of(entry("a\nb")), "does not stay inside"),
    "double slash": (lambda: tar_of(entry("a//b")), "does not stay inside"),
    "symlink": (
        lambda: tar_of(entry("l", type=tarfile.SYMTYPE, linkname="/etc")),
        "'l' is a symbolic link",
    ),
    "hard link": (
        lambda: tar_of(entry("l", type=tarfile.LNKTYPE, linkname="x")),
        "'l' is a hard link",
    ),
    "device": (lambda: tar_of(entry("d", type=tarfile.CHRTYPE)), "'d' is a device"),
    "pipe": (lambda: tar_of(entry("d", type=tarfile.FIFOTYPE)), "'d' is a pipe"),
    "sparse": (lambda: tar_of(entry("s", type=tarfile.GNUTYPE_SPARSE)), "'s' is a sparse file"),
    "twice": (lambda: tar_of(entry("a"), entry("./a")), "'a' is there twice"),
    "file as folder": (lambda: tar_of(entry("a"), entry("a/b")), "both a file and a folder"),
    "folder as file": (lambda: tar_of(entry("a/b"), entry("a")), "both a file and a folder"),
    "deep": (lambda: tar_of(entry("a/" * 8 + "b")), "too deep or too long"),
    "many": (
        lambda: tar_of(*(entry(f"f{index}") for index in range(1001))),
        "more than 1000 members",
    ),
    "many folders": (
        lambda: tar_of(*(entry("d", type=tarfile.DIRTYPE) for _ in range(2001))),
        "(twice|more than 1000)",
    ),
    "pax path": (
        lambda: tar_of(entry("ok", pax_headers={"path": "../x"}), form=tarfile.PAX_FORMAT),
        "does not stay inside",
    ),
    "pax sparse": (
        lambda: tar_of(entry("s", pax_headers={"GNU.sparse.major": "1"}), form=tarfile.PAX_FORMAT),
        "extended header 'GNU.sparse.major'",
    ),
    "gnu long name": (
        lambda: tar_of(entry("n" * 150), form=tarfile.GNU_FORMAT),
        "long name in GNU's manner",
    ),
    "size bomb": (lambda: header("a", 8_000_000_000) + b"x" * 512, "8000000000 bytes announced"),
    "cut off": (lambda: tar_of(entry("a", b"x" * 3000))[:2000], "announced"),
    "half a header": (lambda: tar_of(entry("a"))[:300], "is cut off"),
    "behind the end": (lambda: tar_of(entry("a")) + b"x", "something follows the end"),
    "gzip": (lambda: b"\x1f\x8b" + bytes(600), "not a plain tar archive; unpack it first"),
    "not a tar": (lambda: weights(1, 2000), "not a plain tar archive"),
    "damaged header": (lambda: b"b" + tar_of(entry("a"))[1:], "damaged header"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive_is_refused(tmp_path: Path, case: str) -> None:
    """What a model is not made of is refused in one line; nothing is written outside."""
    make_it, expected = HOSTILE[case]
    with pytest.raises(ModelError, match=expected) as caught:
        unpacked(make_it(), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_archive_is_refused_or_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One changed byte in a header is an error of ours or changes nothing, never another crash."""
    tar = bytearray(tar_of(entry("a", b"x" * 600), entry("d/b", b"y")))
    at = data.draw(st.integers(0, 511))
    tar[at] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("damaged") / "out"
    try:
        found = unpacked(bytes(tar), folder)
    except ModelError:
        return
    assert found == {"a": b"x" * 600, "d/b": b"y"}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("leading", ["", "face/", "./"])
def test_tar_made_by_hand_is_a_model(tmp_path: Path, form: int, leading: str) -> None:
    """Any tar's format, with or without one leading folder, hidden files left out."""
    files = contents(make_model(tmp_path / "face"))
    members = [entry(f"{leading}{name}", data, mtime=1.5) for name, data in files.items()]
    if leading:
        members.insert(0, entry(leading, b"", type=tarfile.DIRTYPE, mode=0o755))
    members.append(entry("._face", b"mac"))
    archive = open_archive(tar_of(*members, form=form), "in/model")
    assert archive.front is None
    (tmp_path / "out").mkdir()
    unpack_handmade(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == files


def test_tar_made_by_hand_without_a_model_is_refused(tmp_path: Path) -> None:
    """No manifest, two folders, a package's member in the wrong place, an empty file: one line."""
    (tmp_path / "out").mkdir()

    def refuse(data: bytes, expected: str) -> None:
        with pytest.raises(ModelError, match=expected):
            unpack_handmade(open_archive(data, "in/model"), tmp_path / "out")

    refuse(tar_of(entry("model.onnx")), "there is no model.toml in it")
    refuse(tar_of(entry("a/model.toml"), entry("b/model.onnx")), "there is no model.toml in it")
    refuse(tar_of(entry("model.toml"), entry("package.json")), "but not as the first member")
    refuse(b"", "is empty")
    refuse(bytes(1024), "is empty")
    assert not list((tmp_path / "out").iterdir())


def test_whole_tar_reads_its_front_only(tmp_path: Path) -> None:
    """The front is read though everything behind it is damaged; then the damage is found."""
    package = pack(make_model(tmp_path / "face"), tmp_path / "face.tar")
    tar = (tmp_path / "face.tar").read_bytes()
    start = open_archive(tar, "in/model").start
    archive = open_archive(tar[:start] + bytes(len(tar) - start), "in/model")
    assert archive.front == package.front
    reader = member_reader(package.header, package.blocks, archive.members(package.header))
    with pytest.raises(ModelError, match="block 0: is not what"):
        reader.next()


def test_whole_tar_ends_with_its_blocks(tmp_path: Path) -> None:
    """A tar that is cut off, or has something behind the last block, is refused."""
    package = pack(make_model(tmp_path / "face"), tmp_path / "face.tar")
    tar = (tmp_path / "face.tar").read_bytes()
    with pytest.raises(ModelError, match="in/model: is cut off"):
        open_archive(tar[:-2000], "in/model").members(package.header)
    with pytest.raises(ModelError, match="something follows the last block"):
        open_archive(tar + b"x", "in/model").members(package.header)
    with pytest.raises(ModelError, match="something follows the last block"):
        open_archive(tar + bytes(2 << 20), "in/model").members(package.header)


def test_front_out_of_order_is_refused(package: Package) -> None:
    """The first three members come in their order, each once, none too large."""
    json_, list_ = package.front.header, package.front.block_list
    with pytest.raises(ModelError, match=r"expected package.json, then .*found model.toml"):
        open_archive(tar_of(entry("package.json", json_), entry("model.toml")), "p")
    with pytest.raises(ModelError, match=r"found package.json"):
        open_archive(tar_of(entry("package.json", json_), entry("package.json", json_)), "p")
    with pytest.raises(ModelError, match="found the end"):
        open_archive(tar_of(entry("package.json", json_)), "p")
    with pytest.raises(ModelError, match=r"package.json: 20000 bytes, at most 16384"):
        open_archive(tar_of(entry("package.json", b" " * 20000), entry("package.blocks")), "p")
    first = [entry("package.json", json_), entry("package.sig", bytes(65))]
    with pytest.raises(ModelError, match=r"package.sig: 65 bytes, at most 64"):
        open_archive(tar_of(*first, entry("package.blocks", list_)), "p")


# --- real models


def changed_layer(source: Path, which: int, out: Path) -> int:
    """Save a model with other weights in one of its convolutions; give their bytes."""
    model = onnx.load(source)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    layer = [node for node in model.graph.node if node.op_type == "Conv"][which]
    changed = 0
    for name in layer.input[1:]:
        array = numpy_helper.to_array(tensors[name]) * np.float32(1.01)
        tensors[name].CopyFrom(numpy_helper.from_array(array, name))
        changed += array.nbytes
    onnx.save(model, out)
    return changed


def real_model(name: str) -> bytes:
    """Read a reference model, or skip."""
    path = ASSETS / "models" / name
    if not path.is_file():
        pytest.skip("the reference models are not beside the checkout")
    return path.read_bytes()


@pytest.mark.assets
@pytest.mark.parametrize(
    ("name", "layer", "share"),
    [
        ("coco_yolox_nano_fp32.onnx", -1, 0.05),
        ("imagenet_mobilenetv2_fp32.onnx", -2, 0.15),
        # The last layer is 36 % of this one by itself: no more than that layer is sent.
        ("imagenet_mobilenetv2_fp32.onnx", -1, 0.37),
    ],
)
def test_new_head_costs_the_head(tmp_path: Path, name: str, layer: int, share: float) -> None:
    """Of a version that differs in one layer, little more than that layer is new."""
    old = make_model(tmp_path / "1", network=real_model(name))
    new = make_model(tmp_path / "2", version="2", network=b"")
    changed = changed_layer(old / "model.onnx", layer, new / "model.onnx")
    there = set(make(load(old)).blocks.digests)
    blocks = make(load(new)).blocks
    sent = sum(
        length
        for length, digest in zip(blocks.lengths, blocks.digests, strict=True)
        if digest not in there
    )
    assert sent <= changed + 16 * 1024
    assert sent < share * blocks.total


@pytest.mark.assets
@pytest.mark.parametrize(
    "name",
    [
        "coco_yolox_nano_fp32.onnx",
        "coco_yolox_nano_int8_degraded.onnx",
        "imagenet_mobilenetv2_int8.onnx",
        "vad_silero_16k.onnx",
    ],
)
def test_every_larger_tensor_has_its_own_blocks(tmp_path: Path, name: str) -> None:
    """Each initializer of 4 KiB and more begins and ends a block, and the list stays short."""
    package = make(load(make_model(tmp_path / "face", network=real_model(name))))
    data = (tmp_path / "face" / "model.onnx").read_bytes()
    begin = package.header.size - len(data) - len(padding(len(data)))
    cuts = {*package.blocks.offsets, package.header.size}
    graph = onnx.load_from_string(data).graph
    large = [tensor.raw_data for tensor in graph.initializer if len(tensor.raw_data) >= SMALL]
    for content in large:
        at = begin + data.index(content)
        assert {at, at + len(content)} <= cuts
    even = package.header.size // CUT + 1
    assert len(package.blocks) <= even + 2 * len(large) + 200_000 // SMALL
