"""What of a PyTorch file is refused before PyTorch loads it: all that would be run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_agent.core.errors import ModelError
from edge_agent.tools.pytorch_file import check_exported, check_script


def members() -> dict[str, Any]:
    """Give the parsed members of an exported program, with one of each that is checked."""
    weight = {"device": {"type": "cpu", "index": None}}
    node = {
        "target": "torch.ops.aten.mul.Tensor",
        "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}],
    }
    size = {"as_expr": {"expr_str": "Mul(Integer(2), Symbol('s7', positive=True, integer=True))"}}
    return {
        "data/weights/model_weights_config.json": {
            "config": {"w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": weight}}
        },
        "data/constants/model_constants_config.json": {"config": {}},
        "models/model.json": {
            "graph_module": {
                "graph": {
                    "nodes": [
                        node,
                        {"target": "_operator.floordiv", "inputs": []},
                        {"target": "torch.sym_max", "inputs": []},
                        {"target": "torch.ops.aten.__and__.Tensor", "inputs": []},
                        {"target": "torch.ops.higher_order.cond", "inputs": []},
                    ],
                    "tensor_values": {"x": {"sizes": [size, {"as_int": 3}]}},
                },
                "module_call_graph": [{"signature": {"in_spec": "[1, {}]", "out_spec": "[1, {}]"}}],
            }
        },
    }


def check(parts: dict[str, Any], **more: bytes) -> None:
    """Check an exported program of these members."""
    texts = {name: json.dumps(content).encode() for name, content in parts.items()}
    texts |= {name.replace("__", "/"): data for name, data in more.items()}
    check_exported(texts.keys(), texts.__getitem__, "net.pt2")


def test_what_pytorch_writes_is_taken() -> None:
    """Its own operators, sizes and plain weights are no harm."""
    check(members())


@pytest.mark.parametrize(
    "name",
    [
        *("torch.os.system", "torch.load", "torch.ops.load_library", "torch.hub.load"),
        *("torch.ops.aten.from_file.default", "torch.ops.aten.__init__.__globals__"),
        *("torch.ops.mine.run.default", "torchx.ops.aten.add.Tensor", "_operator.attrgetter"),
        *("_operator.call", "math.__loader__.load_module", "#mine", "print"),
    ],
)
def test_only_operators_are_called(name: str) -> None:
    """A node that names anything else of PyTorch or Python is refused, with the name."""
    parts = members()
    graph = parts["models/model.json"]["graph_module"]["graph"]
    graph["nodes"][0]["target"] = name
    with pytest.raises(ModelError, match="none of PyTorch's own operators"):
        check(parts)
    parts = members()
    argument = {"name": "f", "arg": {"as_operator": name}, "kind": 1}
    parts["models/model.json"]["graph_module"]["graph"]["nodes"][0]["inputs"].append(argument)
    with pytest.raises(ModelError, match="none of PyTorch's own operators"):
        check(parts)


@pytest.mark.parametrize(
    "size",
    [
        "__import__('os').system('true')",
        "(1).bit_length()",
        "open('/etc/passwd')",
        "S('print(1)')",
        "[x for x in (1,)]",
        "lambda: 1",
    ],
)
def test_sizes_are_arithmetic(size: str) -> None:
    """PyTorch evaluates the text of a size: what is more than arithmetic is refused."""
    parts = members()
    values = parts["models/model.json"]["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0]["as_expr"]["expr_str"] = size
    with pytest.raises(ModelError, match="is no arithmetic"):
        check(parts)


def test_what_would_be_unpickled_or_imported() -> None:
    """Pickled weights and objects, classes and compiled code are refused by name."""
    config = "data/weights/model_weights_config.json"
    for change, words in (
        ({"use_pickle": True}, "w is a pickled object"),
        ({"path_name": "custom_obj_0"}, "w is a pickled object"),
        ({"tensor_meta": {"device": {"type": "cuda"}}}, "lies on cuda"),
        ({"tensor_meta": None}, "damaged"),
    ):
        parts = members()
        parts[config]["config"]["w"].update(change)
        with pytest.raises(ModelError, match=words):
            check(parts)
    for spec in ('{"default_factory_module": "this"}', '{"__enum__": true}'):
        parts = members()
        signature = parts["models/model.json"]["graph_module"]["module_call_graph"][0]["signature"]
        signature["out_spec"] = spec
        with pytest.raises(ModelError, match="names a Python class"):
            check(parts)
    for name in ("data__weights__model.pt", "data__aotinductor__m.so", "models__other.json"):
        with pytest.raises(ModelError, match=name.rpartition("__")[2]):
            check(members(), **{name: b""})
    for name in members():
        parts = members()
        del parts[name]
        with pytest.raises(ModelError, match="damaged or cut short"):
            check(parts)
        with pytest.raises(ModelError, match="is damaged"):
            check(parts, **{name.replace("/", "__"): b"{"})


def test_training_mode_is_told() -> None:
    """Dropout, and a batch norm that has statistics and does not use them, are of training."""
    batch = [
        {"name": "running_mean", "arg": {"as_tensor": {"name": "m"}}},
        {"name": "training", "arg": {"as_bool": True}},
    ]
    without = [{"name": "running_mean", "arg": {"as_none": True}}, batch[1]]
    parts = members()
    node = parts["models/model.json"]["graph_module"]["graph"]["nodes"][0]
    node["inputs"] = without
    check(parts)
    for inputs in (batch, [{"name": "train", "arg": {"as_bool": True}}]):
        node["inputs"] = inputs
        with pytest.raises(ModelError, match=r"training mode \(mul\): call network.eval\(\)"):
            check(parts)


@pytest.mark.parametrize(
    "code",
    [
        "torch.save(x, self.place)",
        "torch.from_file(self.place, True, 8)",
        "mine = ops.aten\n    mine.save(x, self.place)",
        "ops.debugprims.load_tensor(name)",
        "everything = ops\n    everything.mine.run(x)",
        "pack : __torch__.torch.classes.quantized.LinearPackedParamsBase",
    ],
)
def test_torchscript_reaches_nothing_outside(code: str) -> None:
    """Operators that open files, of other libraries, and compiled classes are refused."""
    code_members = {"code/__torch__/net.py": f"def forward(self, x):\n    {code}\n".encode()}
    with pytest.raises(ModelError, match=r"is not run here|compiled classes"):
        check_script(code_members.keys(), code_members.__getitem__, "net.pt")


def test_torchscript_of_libraries_is_taken() -> None:
    """A class in a module called ops, and operators of vision, are no harm."""
    text = b"x : __torch__.torchvision.ops.misc.Conv2d\ny = ops.torchvision.nms(boxes, scores, 0.5)"
    harmless = {"code/__torch__/net.py": text, "data.pkl": b"\x80\x02."}
    check_script(harmless.keys(), harmless.__getitem__, "net.pt")
