"""The image projects of Teachable Machine, whose zip holds a .tflite and its labels.

Its labels.txt has a number from 0 on before each label; but so have those of others, whose networks
were trained otherwise. What tells its networks is their end, which alone it trains: a layer of 100,
then one without a bias. Sources: github.com/googlecreativelab/teachablemachine-community, its
libraries/image and snippets for Python, and what it exports.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.text import counted, labels_in
from ...core.types import TensorSpec
from ..manifest import MAX_LABEL_BYTES
from . import infer_layout
from .facts import NEUTRAL, Draft, NetworkFacts
from .flatbuffer import Buffer, Table
from .guess_picture import LABELS
from .tflite_operators import NAMES
from .tflite_ssd import is_background

_FEATURES: Mapping[tuple[int | None, ...], int] = {(224, 224, 3): 1280, (96, 96, 1): 2304}
"""Numbers that a picture becomes before the end, by its shape: standard, and for small boards."""
_HIDDEN = 100
_FILE = "model_unquant.tflite"
"""The name of the file in its zip."""


def teachable_machine(network: Path, facts: NetworkFacts) -> Draft | None:
    """Describe one of its models; without its labels they are a question. None: it is another's."""
    spec, picture = infer_layout.picture_input(facts, str(network))
    integers = "int" in spec.dtype
    labels, asked = labels_beside(network, classes_of(facts.outputs[0]))
    # Pixels fill the range of integers whoever has trained it; the size of floats is not known.
    named = integers and bool(labels) and network.name == _FILE
    if not named and not _ends_like_theirs(network, spec, facts.outputs[0]):
        return None
    mean = {"int8": 128, "uint8": 0}.get(spec.dtype, 127.5)
    color, range_ = picture.get("color", "rgb"), "bytes" if integers else "-1..1"
    picture |= {"color": color, "mean": mean, "scale": 1 if integers else 127.5}
    how = "by the name of its file and its labels" if named else "by the layers that it ends in"
    prepared = (
        f"input: the middle square, {color} in {range_}, as its own code for Python has it; that "
        "makes pictures smaller by PIL's LANCZOS, here it is as by PIL's BILINEAR"
    )
    return Draft(
        "Teachable Machine's",
        {
            "task": "classification",
            "input": {**picture, "resize": "crop", "antialias": True},
            "output": {"decoder": "softmax"} | ({"labels": labels} if labels else {}),
        },
        (f"family: Teachable Machine, {how}", prepared),
        () if labels else (asked,),
    )


def labels_beside(network: Path, classes: int | None, *names: str) -> tuple[tuple[str, ...], str]:
    """Read the file with labels beside a network, with or without numbers before them.

    Args:
        network: a file.
        classes: how many it tells apart; None: it is unknown.
        names: names that the file may have, besides labels.txt.

    Returns:
        The labels, or none; and then the question that this leaves.
    """
    found = [each for name in ("labels.txt", *names) if (each := network.with_name(name)).is_file()]
    if not found:
        return (), LABELS
    beside = found[0]
    asked = f"{LABELS}; the {beside.name} beside it"
    if beside.stat().st_size > MAX_LABEL_BYTES:
        return (), f"{asked} is larger than {MAX_LABEL_BYTES >> 20} MiB"
    try:
        labels = labels_in(beside.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        return (), f"{asked} is not UTF-8 text; save it as UTF-8"
    if "" in labels:
        return (), f"{asked} names nothing in line {labels.index('') + 1}"
    if len(labels) - 1 == classes and is_background(labels[0]):
        labels = labels[1:]  # which has no number in such networks
    if len(labels) != classes:
        has = f"{classes} classes" if classes else "other outputs"
        return (), f"{asked} has {counted(len(labels), 'line')}, the network has {has}"
    return labels, ""


def classes_of(output: TensorSpec) -> int | None:
    """Return how many classes a classifier's output is of; None: it does not say."""
    return output.shape[1] if len(output.shape) == 2 else None


def _ends_like_theirs(network: Path, spec: TensorSpec, output: TensorSpec) -> bool:
    """Whether a checked file ends in the layers that Teachable Machine puts behind its networks."""
    features, classes = _FEATURES.get(spec.shape[1:]), output.shape[1:]
    if features is None:
        return False
    with network.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _last_layers(data) == [(*classes, _HIDDEN), (_HIDDEN, features)]


def _last_layers(data: Buffer) -> list[tuple[int, ...]]:
    """Return the shapes of the last two layers before a softmax; []: these are not the last.

    The last one must be without a bias, for which some converters write zeros.
    """
    model = Table.root(data)
    codes = [max(one.number(0, "<b"), one.number(3, "<i")) for one in model.tables(1)]
    (graph,) = model.tables(2)
    tensors, buffers = graph.tables(0), model.tables(4)
    makers = {int(made): one for one in graph.tables(3) for made in one.numbers(2, "<i")}
    expected = ["FullyConnected", "FullyConnected", "Softmax"]
    shapes: list[tuple[int, ...]] = []
    at = int(graph.numbers(2, "<i")[0])
    while expected and (maker := makers.get(at)) is not None:
        name, taken = NAMES.get(codes[maker.number(0, "<I")]), maker.numbers(1, "<i")
        at = int(taken[0]) if taken else -1
        if name in NEUTRAL:
            continue
        if name != expected.pop():
            return []
        if name == "FullyConnected" and len(taken) > 1:
            shapes.append(tuple(map(int, tensors[int(taken[1])].numbers(0, "<i"))))
            bias = [tensors[int(each)] for each in taken[2:] if each != -1]
            if len(shapes) == 1 and not all(_is_nought(each, buffers) for each in bias):
                return []
    return shapes


def _is_nought(tensor: Table, buffers: Sequence[Table]) -> bool:
    """Whether a tensor is a constant of zeros."""
    place = tensor.number(2, "<I")
    start, count = (buffers[place].vector(0, "<B") if place < len(buffers) else None) or (0, 0)
    return bool(count) and not tensor.data[start : start + count].strip(b"\0")
