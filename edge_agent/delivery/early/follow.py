"""Runs a model while it arrives, in the child process of its trial.

Files before the network in the package are unpacked into a folder, so that they are read as usual.
The stages' outputs only count if the complete network gives the same numbers bit for bit:
`Followed.same`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.containment import reason
from ...core.errors import AgentError
from ...core.types import Array, Tensors
from ...inference.engines.engine import EngineChoice
from ...inference.engines.ort import label_of
from ...models.files.protobuf import DamagedError
from ...models.packages.ustar import TarReader
from .onnx_stream import GrowingFile, OnnxFile, UnfitError
from .stages import Frame, StagedNetwork

MAX_EARLY_BYTES = 16 * 2**20
"""Most bytes of labels and golden inputs before the network; with more, it is not worthwhile."""
LEAST_NETWORK = 2**20


@dataclass(slots=True, eq=False)
class Followed:
    """The result of running a model while it arrives."""

    why: str = ""
    """Why it could not run; empty: it could."""
    label: str = ""
    stages: int = 0
    first_at: float | None = None
    """Monotonic time when a live frame had been inferred."""
    inputs: Tensors = field(default_factory=dict)
    """That frame, as inputs of the network."""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    """The outputs for that frame."""

    def same(self, found: Mapping[str, Array]) -> bool:
        """Whether another network's outputs equal these, bit for bit."""
        return found.keys() == self.outputs.keys() and all(
            (array.dtype, array.shape) == (found[name].dtype, found[name].shape)
            and array.tobytes() == found[name].tobytes()
            for name, array in self.outputs.items()
        )


def follow(
    question: Mapping[str, Any],
    progress: socket.socket,
    wish: Callable[[int, int], None],
    frame: Frame,
) -> Followed:
    """Run a live frame through the model as its stages are built.

    The *question* has the `folder` for the files before the network, and the `choice`; *progress*
    is the socket for `GrowingFile`; *wish* requests bytes early.
    """
    found = Followed(label=label_of())
    try:
        data = GrowingFile(progress)
        begin, end = unpack_early(data, Path(question["folder"]))
        file = OnnxFile(data, begin, end)
        data.wish(*file.tail)
        wish(*file.tail)
        network = StagedNetwork(data, file, EngineChoice(**question["choice"]))
        found.inputs, found.outputs = network.infer(frame)
        found.first_at, found.stages = time.monotonic(), network.built
    except (AgentError, DamagedError) as problem:
        found.why = str(problem)
    except Exception as problem:  # noqa: BLE001 - in any case the complete model decides
        found.why = reason(problem)
    return found


def unpack_early(data: GrowingFile, folder: Path) -> tuple[int, int]:
    """Unpack the files before the network; return where the network begins and ends in *data*.

    Raises:
        UnfitError: too much comes before it, or it is not an ONNX file of some size.
        ModelError: the package is malformed.
    """
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        found = data.read(at, at + count)
        at += len(found)
        return found

    reader = TarReader(read, data.length, "package")
    while (member := reader.next()) is not None:
        if member.kind == "folder":
            continue
        place = folder / member.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix == ".onnx":
            if member.size < LEAST_NETWORK:
                raise UnfitError(f"{member.name} has {member.size} bytes only")
            place.touch()
            return at, at + member.size
        if at + member.size > MAX_EARLY_BYTES:
            raise UnfitError(f"{member.name} comes before the network and is large")
        with place.open("wb") as file:
            file.writelines(reader.content())
    raise UnfitError("there is no ONNX file")
