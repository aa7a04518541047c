"""The file of weights: tensors in the order in which they are needed, each where a page begins."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from ....models.files.onnx_reader import map_file
from ..artifact import WEIGHTS
from .mapped_network import MappedNetwork, location, names, refer, tensors

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto

PAGE = 4096
ALIGNED = "aligned.bin"
_LINE = 64
"""Tensors smaller than a page begin where a line of the cache does."""
_PIECE = 8 * 1024 * 1024


class Layout(NamedTuple):
    """A file of weights that has been written."""

    size: int
    shared: int
    """Bytes at its beginning that more than one stage needs."""
    starts: dict[int, int]
    """By the number of a stage's first node: where its own weights begin, at a page."""


def lay_out(graph: GraphProto, source: mmap.mmap, folder: Path, places: Sequence[int]) -> Layout:
    """Write the weights of a graph in order of execution; the graph refers to them there.

    Args:
        graph: of which every large tensor lies in *source*; changed in place.
        source: the weights as the engine has written them.
        folder: where to write the file.
        places: numbers of the nodes before which it may be cut.
    """
    external = {tensor.name: tensor for tensor in tensors(graph) if location(tensor)[0]}
    bounds = [0, *sorted(places), len(graph.node)]
    users: dict[str, list[int]] = {}
    for stage, (first, last) in enumerate(pairwise(bounds)):
        for node in graph.node[first:last]:
            # A tensor within a branch belongs to the node that has the branch.
            inner = [t.name for a in node.attribute if a.HasField("g") for t in tensors(a.g)]
            for name in (*names(node), *inner):
                if name in external and stage not in users.setdefault(name, []):
                    users[name].append(stage)
    shared = [name for name, stages in users.items() if len(stages) > 1]
    starts: dict[int, int] = {}
    with (folder / WEIGHTS).open("wb") as file:
        at = _append(file, 0, [external[name] for name in shared], source)
        end = at
        for stage, first in enumerate(bounds[:-1]):
            at = _pad(file, at, PAGE)
            starts[first] = at
            own = [external[name] for name, stages in users.items() if stages == [stage]]
            at = _append(file, at, own, source)
        at = _pad(file, at, PAGE)
    return Layout(at, end + -end % PAGE, starts)


def align(network: MappedNetwork, folder: Path) -> None:
    """Copy a network's weights to one file, so that an engine can use them where they lie.

    In an ONNX file tensors begin anywhere; those that do not begin at a multiple of their numbers'
    size are copied to memory by the engine: too much, where the network does not fit there.
    """
    found = [tensor for tensor in tensors(network.model.graph) if location(tensor)[0]]
    at = 0
    with (folder / ALIGNED).open("wb") as file:
        for tensor in found:
            at = _append(file, at, [tensor], network.files[location(tensor)[0]], ALIGNED)
    if found:
        network.files = {ALIGNED: map_file(folder / ALIGNED)}


def _append(
    file: IO[bytes], at: int, wanted: Sequence[TensorProto], source: mmap.mmap, name: str = WEIGHTS
) -> int:
    """Copy tensors behind each other, piece by piece; return the place behind the last."""
    for tensor in wanted:
        _, offset, length = location(tensor)
        at = _pad(file, at, PAGE if length >= PAGE else _LINE)
        refer(tensor, name, at, length)
        for first in range(offset, offset + length, _PIECE):
            file.write(source[first : min(first + _PIECE, offset + length)])
        at += length
    return at


def _pad(file: IO[bytes], at: int, size: int) -> int:
    """Fill up with zeros to the next multiple of a size."""
    file.write(bytes(-at % size))
    return at + -at % size
