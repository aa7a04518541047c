"""Tiny TensorFlow Lite files: any network, and Edge Impulse's FOMO, as far as its ends go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from flatbuffers import flexbuffers
from numpy.typing import NDArray

Operator = tuple[int, int, Sequence[int], Sequence[int]]
"""Code, kind of options, and the numbers of the tensors that it takes and makes."""
Fields = Mapping[int, tuple[str, Any]]
"""By number: "offset", or the name of a number's type, and the value."""


_SOFTMAX_OPTIONS = 9


def table(builder: Any, fields: Fields) -> int:
    """Write a table of offsets and numbers, and return where it is."""
    builder.StartObject(max(fields, default=-1) + 1)
    for number, (kind, value) in fields.items():
        if kind == "offset":
            builder.PrependUOffsetTRelativeSlot(number, value, 0)
        else:
            getattr(builder, f"Prepend{kind}Slot")(number, value, 0)
    return int(builder.EndObject())


def vector(builder: Any, kind: str, values: Sequence[Any]) -> int:
    """Write a vector of offsets or numbers."""
    size = {"UOffsetTRelative": 4, "Int32": 4, "Float32": 4, "Int64": 8, "Byte": 1}[kind]
    builder.StartVector(size, len(values), size)
    for value in reversed(values):
        getattr(builder, f"Prepend{kind}")(value)
    return int(builder.EndVector())


def _zeros(builder: Any, count: int, zero: int) -> int:
    """Write a vector of long integers that is aligned to four bytes only."""
    builder.StartVector(8, count, 4)
    for _ in range(count):
        builder.PrependInt32(zero >> 31)
        builder.PrependInt32(zero)
    return int(builder.EndVector())


@dataclass(frozen=True)
class Tensor:
    """A tensor: `kind` is a TensorType; of several scales `axis` says along which they go.

    With `values` it is a constant.
    """

    name: str
    shape: tuple[int, ...]
    kind: int = 0
    scales: tuple[float, ...] = ()
    axis: int = 0
    variable: bool = False
    zero: int = 0
    values: NDArray[Any] | None = None


def save_tflite(
    path: Path,
    tensors: Sequence[Tensor],
    operators: Sequence[Operator] = ((25, 9, (0,), (1,)),),
    *,
    graphs: int = 1,
    outputs: int = 1,
    custom: str | None = None,
    told: bytes | None = None,
    metadata: bytes | None = None,
    behind: bytes = b"",
) -> Path:
    """Save a network from its first tensor to its last ones.

    Args:
        path: the .tflite file.
        tensors: all of them.
        operators: of each its kind and that of its options, and the tensors it takes and makes.
        graphs: how often the graph is listed.
        outputs: how many tensors at the end are outputs.
        custom: name of the operator of kind 32.
        told: the options of that operator.
        metadata: what TFLITE_METADATA leads to.
        behind: the bytes of a last buffer, which lie behind the FlatBuffer.

    """
    builder = flatbuffers.Builder(2048)
    made, buffers = [], [table(builder, {})]
    for one in tensors:
        place = len(buffers) if one.values is not None else 0
        if one.values is not None:
            held = builder.CreateByteVector(one.values.tobytes())
            buffers.append(table(builder, {0: ("offset", held)}))
        fields: dict[int, tuple[str, Any]] = {
            0: ("offset", vector(builder, "Int32", one.shape)),
            1: ("Int8", one.kind),
            2: ("Uint32", place),
            3: ("offset", builder.CreateString(one.name)),
            5: ("Bool", one.variable),
        }
        if one.scales:
            steps: Fields = {
                2: ("offset", vector(builder, "Float32", one.scales)),
                3: ("offset", _zeros(builder, len(one.scales), one.zero)),
                6: ("Int32", one.axis),
            }
            fields[4] = ("offset", table(builder, steps))
        made.append(table(builder, fields))
    done, codes = [], []
    for place, (code, kind, taken, given) in enumerate(operators):
        said: Fields = {
            0: ("Uint32", place),
            1: ("offset", vector(builder, "Int32", taken)),
            2: ("offset", vector(builder, "Int32", given)),
        }
        # Without its beta a softmax makes all chances alike.
        given_options: Fields = {0: ("Float32", 1.0)} if kind == _SOFTMAX_OPTIONS else {}
        held_options = table(builder, given_options)
        options: Fields = {3: ("Uint8", kind), 4: ("offset", held_options)} if kind else {}
        if code == 32 and told is not None:
            options = {5: ("offset", builder.CreateByteVector(told))}
        done.append(table(builder, {**said, **options}))
        named: Fields = {}
        if code == 32 and custom is not None:
            named = {1: ("offset", builder.CreateString(custom))}
        codes.append(table(builder, {0: ("Int8", min(code, 127)), **named, 3: ("Int32", code)}))
    graph = table(
        builder,
        {
            0: ("offset", vector(builder, "UOffsetTRelative", made)),
            1: ("offset", vector(builder, "Int32", [0])),
            2: ("offset", vector(builder, "Int32", range(len(made) - outputs, len(made)))),
            3: ("offset", vector(builder, "UOffsetTRelative", done)),
        },
    )
    entries = []
    if metadata is not None:
        buffers.append(table(builder, {0: ("offset", vector(builder, "Byte", metadata))}))
        name = builder.CreateString("TFLITE_METADATA")
        entries.append(table(builder, {0: ("offset", name), 1: ("Uint32", len(buffers) - 1)}))
    if behind:
        buffers.append(table(builder, {1: ("Uint64", 4096), 2: ("Uint64", len(behind))}))
    model: dict[int, tuple[str, Any]] = {0: ("Uint32", 3)}
    for number, part in {1: codes, 2: [graph] * graphs, 4: buffers, 6: entries}.items():
        model[number] = ("offset", vector(builder, "UOffsetTRelative", part))
    builder.Finish(table(builder, model), file_identifier=b"TFL3")
    path.write_bytes(
        bytes(builder.Output()).ljust(4096, b"\0") + behind if behind else builder.Output()
    )
    return path


def metadata(labels: str | None, calibration: int | None = None) -> bytes:
    """Make a TFLITE_METADATA whose output has its labels in a file, or that says of no output.

    *calibration* is the kind of an operation on the output, of which 2 calibrates scores.
    """
    builder = flatbuffers.Builder(512)
    fields: dict[int, tuple[str, Any]] = {0: ("offset", builder.CreateString("tiny"))}
    if labels is not None:
        named = builder.CreateString(labels)
        file = table(builder, {0: ("offset", named), 2: ("Int8", 2)})
        files = vector(builder, "UOffsetTRelative", [file])
        said: dict[int, tuple[str, Any]] = {6: ("offset", files)}
        if calibration is not None:
            options = table(builder, {})
            unit = table(builder, {0: ("Uint8", calibration), 1: ("offset", options)})
            said[4] = ("offset", vector(builder, "UOffsetTRelative", [unit]))
        output = vector(builder, "UOffsetTRelative", [table(builder, said)])
        graph = table(builder, {3: ("offset", output)})
        fields[3] = ("offset", vector(builder, "UOffsetTRelative", [graph]))
    builder.Finish(table(builder, fields), file_identifier=b"M001")
    return bytes(builder.Output())


def save_ssd(
    path: Path,
    *,
    regular: bool = False,
    integers: bool = False,
    sharp: bool = False,
    most: int = 10,
    shaped: bool = True,
    quantized: bool = False,
    metadata: bytes | None = None,
) -> Path:
    """Save an SSD of 32 x 32 pixels and 3 classes that ends in TFLite_Detection_PostProcess.

    Args:
        path: the .tflite file.
        regular: suppress class by class.
        integers: uint8 steps before the operator, as in quantized files.
        sharp: boxes and scores do not depend on the picture: of class 1 a box in the middle.
        most: boxes that it returns.
        shaped: whether the file states the shapes of its outputs.
        quantized: they are int8, each in steps of its own.
        metadata: what TFLITE_METADATA leads to.

    """
    random = np.random.default_rng(5)
    grid = (np.mgrid[0:6, 0:6].reshape(2, -1).T + 0.5) / 6
    anchors = np.concatenate((grid, np.full((36, 2), 0.3)), axis=1).astype(np.float32)
    factors, shift = np.zeros((36 * 8, 32 * 32 * 3), np.float32), np.zeros(36 * 8, np.float32)
    if sharp:
        shift[144:] = -9
        shift[144 + 4 * 14 + 2] = 9
    else:
        factors[:] = random.normal(0, 0.05, factors.shape)
        factors -= factors.mean(axis=1, keepdims=True)
        shift[144:] = -1
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in (("max_detections", most), ("max_classes_per_detection", 1)):
            builder.Key(key)
            builder.Int(value)
        for key, value in (("num_classes", 3), ("detections_per_class", 100)):
            builder.Key(key)
            builder.Int(value)
        builder.Key("use_regular_nms")
        builder.Bool(regular)
        for key, least in (("nms_score_threshold", 0.1), ("nms_iou_threshold", 0.5)):
            builder.Key(key)
            builder.Float(least)
        for axis, divisor in zip("yxhw", (10.0, 10.0, 5.0, 5.0), strict=True):
            builder.Key(f"{axis}_scale")
            builder.Float(divisor)
    parts = [("boxes", slice(0, 144), 4), ("scores", slice(144, 288), 4)]
    tensors = [Tensor("x", (1, 32, 32, 3)), Tensor("anchors", (36, 4), values=anchors)]
    if integers:
        steps = np.rint(anchors * 200).astype(np.uint8)
        tensors[1] = Tensor("anchors", (36, 4), 3, (1 / 200,), values=steps)
    operators: list[Operator] = []
    ends = []
    for name, part, wide in parts:
        at = len(tensors)
        shape = np.array([1, 36, wide], np.int32)
        tensors += [
            Tensor(f"{name}.w", (144, 3072), values=factors[part]),
            Tensor(f"{name}.b", (144,), values=shift[part]),
            Tensor(f"{name}.s", (3,), 2, values=shape),
            Tensor(f"{name}.flat", (1, 144)),
            Tensor(f"{name}.raw", (1, 36, wide)),
        ]
        operators += [(9, 8, (0, at, at + 1), (at + 3,)), (22, 17, (at + 3, at + 2), (at + 4,))]
        ends.append(at + 4)
    tensors.append(Tensor("chances", (1, 36, 4)))
    operators.append((14, 0, (ends[1],), (len(tensors) - 1,)))
    ends[1] = len(tensors) - 1
    if integers:
        for place, (step, zero) in enumerate(((0.1, 130), (1 / 256, 0))):
            whole = tensors[ends[place]]
            tensors.append(
                replace(whole, name=f"{whole.name}.q", kind=3, scales=(step,), zero=zero)
            )
            operators.append((114, 0, (ends[place],), (len(tensors) - 1,)))
            ends[place] = len(tensors) - 1
    first, name = len(tensors), "TFLite_Detection_PostProcess"
    for place, sizes in enumerate(((1, most, 4), (1, most), (1, most), (1,))):
        tensors.append(Tensor(f"{name}:{place}" if place else name, sizes if shaped else ()))
    operators.append((32, 0, (*ends, 1), tuple(range(first, first + 4))))
    if quantized:
        _quantize(tensors, operators, first)
    told = bytes(builder.Finish())
    return save_tflite(
        path, tensors, operators, outputs=4, custom=name, told=told, metadata=metadata
    )


def _quantize(tensors: list[Tensor], operators: list[Operator], first: int) -> None:
    """Add an int8 output for each of the four outputs of an SSD from *first* on."""
    for place, (step, zero) in enumerate(((0.01, -60), (0.02, -128), (1 / 256, -128), (1, 0))):
        named = f"StatefulPartitionedCall:{3 - place}"
        tensors.append(
            replace(tensors[first + place], name=named, kind=9, scales=(step,), zero=zero)
        )
        operators.append((114, 0, (first + place,), (len(tensors) - 1,)))


def save_fomo(path: Path, size: int = 96, *, integers: bool = True) -> Path:
    """Save cells of 8 x 8 pixels: the mean of their colors, then a sharp softmax of these.

    Args:
        path: the .tflite file.
        size: of the picture, which is square; red is the background.
        integers: int8 with steps, as "quantized (int8)" is deployed; else floats.

    """
    builder = flatbuffers.Builder(2048)
    tensors = []
    for name, side, step in (("x", size, 255), ("mean", size // 8, 255), ("y", size // 8, 256)):
        fields: dict[int, tuple[str, Any]] = {
            0: ("offset", vector(builder, "Int32", [1, side, side, 3])),
            3: ("offset", builder.CreateString(name)),
        }
        if integers:
            steps: Fields = {
                2: ("offset", vector(builder, "Float32", [1 / step])),
                3: ("offset", vector(builder, "Int64", [-128])),
            }
            fields |= {1: ("Int8", 9), 4: ("offset", table(builder, steps))}
        tensors.append(table(builder, fields))
    pool = {1: ("Int32", 8), 2: ("Int32", 8), 3: ("Int32", 8), 4: ("Int32", 8)}
    options = [
        (5, table(builder, {0: ("Int8", 1), **pool})),
        (9, table(builder, {0: ("Float32", 20.0)})),
    ]
    operators = [
        table(
            builder,
            {
                0: ("Uint32", place),
                1: ("offset", vector(builder, "Int32", [place])),
                2: ("offset", vector(builder, "Int32", [place + 1])),
                3: ("Uint8", kind),
                4: ("offset", given),
            },
        )
        for place, (kind, given) in enumerate(options)
    ]
    codes = [
        table(builder, {0: ("Int8", code), 2: ("Int32", 1), 3: ("Int32", code)}) for code in (1, 25)
    ]
    parts = {0: tensors, 3: operators}
    graph: dict[int, tuple[str, Any]] = {
        number: ("offset", vector(builder, "UOffsetTRelative", part))
        for number, part in parts.items()
    }
    graph[1] = ("offset", vector(builder, "Int32", [0]))
    graph[2] = ("offset", vector(builder, "Int32", [2]))
    graphs = [table(builder, graph)]
    buffers = [table(builder, {})]
    model: dict[int, tuple[str, Any]] = {0: ("Uint32", 3)}
    for number, part in {1: codes, 2: graphs, 4: buffers}.items():
        model[number] = ("offset", vector(builder, "UOffsetTRelative", part))
    builder.Finish(table(builder, model), file_identifier=b"TFL3")
    path.write_bytes(builder.Output())
    return path


def save_constants(path: Path, picture: tuple[int, ...], outputs: Sequence[Tensor]) -> Path:
    """Save a network of a picture (1, H, W, 3) that gives these tensors' values, whatever it is."""
    tensors = [Tensor("x", picture)]
    operators = []
    for place, one in enumerate(outputs):
        shape = np.array(one.shape, np.int32)
        held = replace(one, name=f"{one.name}.value")
        tensors += [held, Tensor(f"{one.name}.shape", (len(shape),), 2, values=shape)]
        taken = (1 + 2 * place, 2 + 2 * place)
        operators.append((22, 0, taken, (1 + 2 * len(outputs) + place,)))
    ends = [replace(one, values=None) for one in outputs]
    return save_tflite(path, [*tensors, *ends], operators, outputs=len(ends))


def save_teachable(
    path: Path,
    classes: int,
    *,
    side: int = 224,
    colors: int = 3,
    hidden: int = 100,
    bias: float | None = None,
    integers: bool = False,
) -> Path:
    """Save a network that ends like those of Teachable Machine; brighter is of an earlier class.

    Args:
        path: the .tflite file.
        classes: how many it tells apart.
        side: of its pictures.
        colors: channels of its pictures.
        hidden: numbers that the layer before the last one makes.
        bias: of the last layer; None: it has none.
        integers: whether it takes unsigned bytes.

    """
    random = np.random.default_rng(5)
    taken, features = side * colors, 1280 if colors == 3 else 2304
    weights = [
        np.abs(random.normal(1, 1, (features, taken))) / taken,
        np.abs(random.normal(1, 1, (hidden, features))) / features,
        np.linspace(1, -1, classes)[:, None] * np.ones(hidden) / hidden,
    ]
    shape = (1, side, side, colors)
    tensors = [Tensor("picture", shape, 3, (1 / 127.5,), zero=128)] if integers else []
    operators: list[Operator] = []
    if integers:
        operators.append((6, 0, (0,), (1,)))
    at = len(tensors)
    tensors += [
        Tensor("x", shape),
        Tensor("axis", (1,), 2, values=np.array([1], np.int32)),
        Tensor("rows", (1, side, colors)),
    ]
    operators.append((40, 27, (at, at + 1), (at + 2,)))
    for place, weight in enumerate(weights):
        at, before = len(tensors), len(tensors) - 1
        tensors.append(Tensor(f"w{place}", weight.shape, values=weight.astype(np.float32)))
        offset = -1
        if bias is not None and place == 2:
            offset = len(tensors)
            tensors.append(Tensor("b", (classes,), values=np.full(classes, bias, np.float32)))
        tensors.append(Tensor(f"y{place}", (1, weight.shape[0])))
        operators.append((9, 8, (before, at, offset), (len(tensors) - 1,)))
    tensors.append(Tensor("chances", (1, classes)))
    operators.append((25, 9, (len(tensors) - 2,), (len(tensors) - 1,)))
    return save_tflite(path, tensors, operators)
