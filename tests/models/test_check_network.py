"""What is refused before an engine's parser sees it, in which words; and what is let through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_agent.core.errors import ModelError
from edge_agent.models.files.check_onnx import check_network, inspect
from tests.helpers.support import ASSETS, needs_assets
from tests.helpers.tiny_networks import convolution, node, save_onnx, times_two, to_ir


def refused(network: Path, *words: str) -> None:
    """See that a file is refused in one line that has these words."""
    with pytest.raises(ModelError) as caught:
        check_network(network)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def edited(path: Path, edit: Callable[[Any], None]) -> Path:
    """Change an ONNX file by its message, leaving external data as it is."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    edit(model)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Save a convolution whose weights are inside."""
    return convolution(tmp_path / "n.onnx")[0]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Save a convolution whose weights lie beside it."""
    return convolution(tmp_path / "n.onnx", external="n.data")[0]


@pytest.fixture
def xml(plain: Path, tmp_path: Path) -> Path:
    """Save the same as IR."""
    return to_ir(plain, tmp_path / "n.xml")


def test_facts_of_an_onnx_file(tmp_path: Path) -> None:
    """Inputs without initializers, outputs and their makers, files and sizes are told."""
    path = convolution(tmp_path / "n.onnx", external="n.data", weights_are_inputs=True)[0]
    facts = inspect(path)
    assert facts.kind == "onnx"
    assert facts.files == (path, tmp_path / "n.data")
    assert [str(spec) for spec in facts.inputs] == ["x float32[1, 3, 8, 8]"]
    assert [str(spec) for spec in facts.outputs] == ["y float32[1, 4, 8, 8]"]
    assert facts.makers == {"y": "Conv"}
    assert (facts.nodes, facts.weight_bytes, facts.quantized) == (1, 16 * 4, False)


def test_facts_of_an_ir(tmp_path: Path) -> None:
    """The same is told of an IR, with its rt_info as metadata."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [
            node("Softmax", ["x"], ["s"]),
            node("Reshape", ["s", "shape"], ["y"]),
        ],
        [("x", "float32", (None, 4))],
        [("y", "float32", (None, 2))],
        {"shape": np.array([-1, 2], np.int64)},
    )
    facts = inspect(to_ir(path, tmp_path / "n.xml", {"model_type": "SSD", "labels": ["a", "b_c"]}))
    assert facts.kind == "ir"
    assert facts.files == (tmp_path / "n.xml", tmp_path / "n.bin")
    assert [str(spec) for spec in facts.inputs] == ["x float32[?, 4]"]
    assert [str(spec) for spec in facts.outputs] == ["y float32[?, 2]"]
    assert facts.makers == {"y": "SoftMax"}
    assert facts.metadata["model_info model_type"] == "SSD"
    assert facts.metadata["model_info labels"] == "a b_c"


@pytest.mark.parametrize("kind", ["onnx", "ir"])
def test_sound_files_pass(kind: str, plain: Path, xml: Path) -> None:
    """A network that nothing is wrong with is let through."""
    check_network(plain if kind == "onnx" else xml)


@needs_assets
def test_real_networks_pass() -> None:
    """Public networks, FP32 and INT8, ONNX and IR, are all let through."""
    models = [*(ASSETS / "models").rglob("*.onnx"), *(ASSETS / "models").rglob("*.xml")]
    assert len(models) > 10
    for model in models:
        facts = inspect(model)
        assert facts.inputs
        assert facts.outputs
        if "int8" in model.name:
            assert facts.quantized


# ONNX


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"hello, world", b"\xff" * 1000, b"<?xml version='1.0'?><net/>"]
)
def test_something_else_is_not_onnx(content: bytes, tmp_path: Path) -> None:
    """An empty file, text, noise and XML are each not valid ONNX files."""
    path = tmp_path / "n.onnx"
    path.write_bytes(content)
    refused(path, "n.onnx", "not a valid ONNX file")


def test_truncated_anywhere(plain: Path) -> None:
    """However much of the end is missing, the file is refused; only the whole passes."""
    whole = plain.read_bytes()
    for length in range(len(whole)):
        plain.write_bytes(whole[:length])
        try:
            check_network(plain)
        except ModelError as problem:
            assert "\n" not in str(problem)  # noqa: PT017 - passing is right where only opset ends
        else:
            # What follows the graph is the list of operator sets, a few bytes.
            assert length > len(whole) - 20


@settings(deadline=None, max_examples=120)
@example(position=0, value=0)
@given(position=st.integers(0, 400), value=st.integers(0, 255))
def test_a_flipped_byte_never_crashes(
    position: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A damaged file passes or is a ModelError of one line; nothing else comes out."""
    path = convolution(tmp_path_factory.mktemp("flip") / "n.onnx")[0]
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    try:
        check_network(path)
    except ModelError as problem:
        assert "n.onnx" in str(problem)  # noqa: PT017 - both ends are right


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there, and a folder in its place, are said so."""
    refused(tmp_path / "none.onnx", "none.onnx", "no such file")
    (tmp_path / "folder.onnx").mkdir()
    refused(tmp_path / "folder.onnx", "is no plain file")


def test_too_large(plain: Path) -> None:
    """A file beyond protobuf's limit is refused by its size, without being read."""
    with plain.open("r+b") as stream:
        stream.truncate(3 * 1024**3)  # sparse: takes no disk
    refused(plain, "3221225472 bytes", "external data")


def test_custom_operator(tmp_path: Path) -> None:
    """An operator of a domain that neither engine brings is refused by its name."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [node("Magic", ["x"], ["y"], domain="com.example")],
        [("x", "float32", (1, 3))],
        [("y", "float32", (1, 3))],
        domains=["com.example"],
    )
    refused(path, "com.example.Magic", "custom")


def test_custom_operator_inside_a_branch(tmp_path: Path) -> None:
    """Nodes inside branches are looked at like all others."""
    from onnx import TensorProto, helper

    def branch(name: str, kind: str, domain: str) -> Any:
        made = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3])
        return helper.make_graph([node(kind, ["x"], [name], domain=domain)], name, [], [made])

    path = save_onnx(
        tmp_path / "n.onnx",
        [
            node(
                "If",
                ["which"],
                ["y"],
                then_branch=branch("a", "Relu", ""),
                else_branch=branch("b", "Magic", "com.example"),
            )
        ],
        [("x", "float32", (1, 3)), ("which", "bool", ())],
        [("y", "float32", (1, 3))],
        domains=["com.example"],
    )
    refused(path, "com.example.Magic")


def test_own_functions_pass(tmp_path: Path) -> None:
    """A function that the file defines of standard operators is no custom operator."""
    from onnx import helper

    path = save_onnx(
        tmp_path / "n.onnx",
        [node("Twice", ["x"], ["y"], domain="own")],
        [("x", "float32", (1, 3))],
        [("y", "float32", (1, 3))],
        domains=["own"],
    )
    twice = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    edited(path, lambda model: model.functions.append(twice))
    assert inspect(path).nodes == 2


def test_compiled_context_is_refused(tmp_path: Path) -> None:
    """A compiled blob for some driver, with a path to load it from, is refused."""
    path = save_onnx(
        tmp_path / "n.onnx",
        [node("EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context="/etc/passwd")],
        [("x", "float32", (1, 3))],
        [("y", "float32", (1, 3))],
        domains=["com.microsoft"],
    )
    refused(path, "EPContext")


def test_too_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of nodes is bounded."""
    monkeypatch.setattr("edge_agent.models.files.check_onnx.MAX_NODES", 2)
    refused(times_two(tmp_path / "n.onnx"), "more than 2 nodes")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("external", [None, "n.data"])
def test_weights_that_are_not_numbers(
    dtype: str, bad: float, external: str | None, tmp_path: Path
) -> None:
    """One NaN or infinity among the weights is refused, with the tensor's name."""
    weight = np.ones((3, 3), dtype)
    weight[1, 2] = bad
    path = save_onnx(
        tmp_path / "n.onnx",
        [node("MatMul", ["x", "the_weight"], ["y"])],
        [("x", dtype, (1, 3))],
        [("y", dtype, (1, 3))],
        {"the_weight": weight},
        external=external,
    )
    refused(path, "'the_weight'", "NaN" if np.isnan(bad) else "infinities")


def test_nan_in_bfloat16_and_in_typed_fields(plain: Path) -> None:
    """NaN is found in the bits of bfloat16, and where numbers are not stored as raw bytes."""
    from onnx import TensorProto, helper

    def with_weight(kind: int, values: list[float]) -> Path:
        tensor = helper.make_tensor("odd_one", kind, [len(values)], values)
        return edited(plain, lambda model: model.graph.initializer.append(tensor))

    check_network(with_weight(TensorProto.BFLOAT16, [1.0, -3.0e38]))
    check_network(with_weight(TensorProto.FLOAT, [1.0, 3.0e38, 3.0e38]))
    for kind in (TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE):
        edited(plain, lambda model: model.graph.initializer.pop())
        refused(with_weight(kind, [1.0, float("nan")]), "'odd_one'", "NaN")


def test_nan_in_a_constant_node(tmp_path: Path) -> None:
    """Constants inside nodes are weights too."""
    from onnx import numpy_helper

    value = numpy_helper.from_array(np.array([1, np.nan, 3], np.float32), "inner")
    path = save_onnx(
        tmp_path / "n.onnx",
        [node("Constant", [], ["c"], value=value), node("Add", ["x", "c"], ["y"])],
        [("x", "float32", (1, 3))],
        [("y", "float32", (1, 3))],
    )
    refused(path, "'inner'", "NaN")


@pytest.mark.parametrize(
    "values", [[-np.inf], [np.inf], [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]]]
)
def test_masks_of_infinities_pass(values: list[Any], tmp_path: Path) -> None:
    """Bounds and attention masks, nothing but zeros and infinities, are constants of real nets."""
    mask = np.array(values, np.float32)
    path = save_onnx(
        tmp_path / "n.onnx",
        [node("Add", ["x", "mask"], ["y"])],
        [("x", "float32", (3, 3))],
        [("y", "float32", (3, 3))],
        {"mask": mask},
    )
    check_network(path)


def relocate(location: str, **entries: str) -> Callable[[Any], None]:
    """Make an edit that moves the first external tensor."""

    def edit(model: Any) -> None:
        for entry in model.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = location
            if entry.key in entries:
                entry.value = entries[entry.key]

    return edit


@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../n.data", "a/../../n.data", "..", "", "*/_ORT_MEM_ADDR_/*", "a\\n.data"],
)
def test_external_data_elsewhere(location: str, split: Path) -> None:
    """External data outside the model's folder, or nowhere, is refused by the tensor's name."""
    refused(edited(split, relocate(location)), "tensor 'weight'", "external data")


def test_external_data_behind_a_link(split: Path, tmp_path: Path) -> None:
    """A link that leads out of the folder is not followed."""
    folder = tmp_path / "inner"
    folder.mkdir()
    network = split.rename(folder / "n.onnx")
    (folder / "n.data").symlink_to(tmp_path / "n.data")
    refused(network, "leads outside")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": "100000"}, ["cut short", "n.data"]),
        ({"offset": "-8"}, ["-8"]),
        ({"length": "4"}, ["expected 48 bytes", "found 4"]),
        ({"length": "many"}, ["whole numbers"]),
    ],
)
def test_external_data_of_a_wrong_size(
    entries: dict[str, str], words: list[str], split: Path
) -> None:
    """Offsets and lengths must be those of the tensor, and inside the file."""
    refused(edited(split, relocate("n.data", **entries)), "tensor 'weight'", *words)


def test_external_data_cut_short(split: Path, tmp_path: Path) -> None:
    """A weight file that lost its end is noticed before an engine reads past it."""
    data = (tmp_path / "n.data").read_bytes()
    (tmp_path / "n.data").write_bytes(data[:20])
    refused(split, "n.data", "which has 20", "cut short")


def test_inline_data_of_a_wrong_size(plain: Path) -> None:
    """A tensor whose bytes are not those of its shape is refused by its name."""

    def edit(model: Any) -> None:
        model.graph.initializer[0].dims[0] = 400

    refused(edited(plain, edit), "tensor 'weight'", "expected 4800 bytes", "found 48")


# IR


def replaced(path: Path, old: str, new: str) -> Path:
    """Change a text file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_ir_without_its_weights(xml: Path) -> None:
    """An .xml without its .bin says which file is missing."""
    xml.with_suffix(".bin").unlink()
    refused(xml, "n.xml", "n.bin is missing")


def test_ir_with_short_weights(xml: Path) -> None:
    """Constants that reach beyond the .bin are refused by name."""
    xml.with_suffix(".bin").write_bytes(b"1234")
    refused(xml, "constant", "n.bin", "which has 4", "cut short")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("<layers>", "<layer>", ["not well-formed XML"]),
        ("</net>", "", ["not well-formed XML"]),
        ('offset="0"', 'offset="-4"', ["negative"]),
        ('offset="0"', 'offset="zero"', ["whole numbers"]),
        ('size="48"', 'size="44"', ["expected 48 bytes", "found 44"]),
        ('type="Result"', 'type="Relu"', ["no results"]),
        ('version="11"', 'version="7"', ["IR of version 7", "10 and later", "convert"]),
        ('version="opset1"', 'version="extension"', ["extension"]),
    ],
)
def test_damaged_ir(old: str, new: str, words: list[str], xml: Path) -> None:
    """Each way in which an IR contradicts itself is one line."""
    refused(replaced(xml, old, new), "n.xml", *words)


def test_other_xml(xml: Path) -> None:
    """XML of another kind is not an IR."""
    xml.write_text("<svg><path/></svg>", encoding="utf-8")
    refused(xml, "its root is <svg>, expected <net>")


def test_entities_are_refused(xml: Path) -> None:
    """A DOCTYPE, and with it every entity, is refused before anything is expanded."""
    bomb = '<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
    xml.write_text(f'<?xml version="1.0"?>{bomb}<net name="&b;"/>', encoding="utf-8")
    refused(xml, "DOCTYPE")


def test_nesting_is_bounded(xml: Path) -> None:
    """XML nested without end is refused."""
    xml.write_text("<net>" + "<a>" * 5000 + "</a>" * 5000 + "</net>", encoding="utf-8")
    refused(xml, "nested")


@pytest.mark.parametrize("half", [False, True])
def test_nan_in_an_ir(half: bool, plain: Path, tmp_path: Path) -> None:
    """NaN among the weights of an IR, in full or half precision, is found."""
    xml = to_ir(plain, tmp_path / "m.xml", half=half)
    dtype = np.float16 if half else np.float32
    weights = np.fromfile(tmp_path / "m.bin", np.uint8)
    weights[: np.dtype(dtype).itemsize] = np.array([np.nan], dtype).view(np.uint8)
    weights.tofile(tmp_path / "m.bin")
    refused(xml, "m.bin", "constant", "NaN")


@settings(deadline=None, max_examples=150)
@given(position=st.integers(0, 6000), text=st.binary(max_size=4))
def test_a_spoilt_ir_never_crashes(
    position: int, text: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A damaged .xml passes or is a ModelError; nothing else comes out."""
    folder = tmp_path_factory.mktemp("spoil")
    content = bytearray(SPOILT_XML)
    at = position % len(content)
    content[at : at + len(text)] = text
    (folder / "n.xml").write_bytes(content)
    (folder / "n.bin").write_bytes(bytes(64))
    try:
        check_network(folder / "n.xml")
    except ModelError as problem:
        assert "n." in str(problem)  # noqa: PT017 - both ends are right


SPOILT_XML = b"""<?xml version="1.0"?>
<net name="m" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1,4" element_type="f32"/>
<output><port id="0" precision="FP32" names="x"><dim>1</dim><dim>4</dim></port></output></layer>
<layer id="1" name="c" type="Const" version="opset1">
<data element_type="f32" shape="4, 4" offset="0" size="64"/>
<output><port id="0" precision="FP32"><dim>4</dim><dim>4</dim></port></output></layer>
<layer id="2" name="mul" type="MatMul" version="opset1">
<data transpose_a="false" transpose_b="false"/>
<output><port id="2" precision="FP32" names="y"><dim>1</dim><dim>4</dim></port></output></layer>
<layer id="3" name="y/sink_port_0" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim><dim>4</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/></edges>
<rt_info><model_info><labels value="a b"/></model_info></rt_info></net>
"""


def test_trees_may_split_at_infinity(tmp_path: Path) -> None:
    """A tree that sends every number one way splits there, as scikit-learn's own may."""
    from onnx import numpy_helper

    splits = numpy_helper.from_array(np.array([np.inf, 0, 0]), "splits")
    tree = node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        nodes_values_as_tensor=splits,
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        n_targets=1,
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights_as_tensor=numpy_helper.from_array(np.array([0.5, 2.0]), "weights"),
    )
    path = save_onnx(
        tmp_path / "n.onnx", [tree], [("x", "float64", (1, 1))], [("y", "float64", (1, 1))]
    )
    check_network(path)
