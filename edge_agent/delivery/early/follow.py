"""Runs a model while it arrives, in the child process of its trial.

What comes before the network in the package is unpacked into a folder, so that it is read as usual.
What the stages give counts only if the complete network gives the same numbers bit for bit:
`Followed.same`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.containment import reason
from ...core.errors import AgentError, ModelError
from ...core.types import Array, Tensors, TensorSpec
from ...inference.engines.engine import EngineChoice
from ...models.manifest import GOLDEN
from ...models.packages.ustar import TarReader
from .growing_file import PROGRESS, GrowingFile, UnfitError
from .onnx_stream import OnnxFile
from .stages import StagedEngine

if TYPE_CHECKING:
    from ...inference.agreement import Agreement
    from ...models.manifest import ModelFolder

MAX_EARLY_BYTES = 16 * 2**20
"""Of labels and golden inputs before the network; with more, following it is not worth it."""
LEAST_NETWORK = 2**20


@dataclass(slots=True, eq=False)
class Followed:
    """What was found."""

    why: str = ""
    """Why it could not run; empty: it could."""
    label: str = ""
    stages: int = 0
    first_at: float | None = None
    """Monotonic clock when a live frame had been inferred."""
    agreement: Agreement | None = None
    """With the golden outputs, where there are any."""
    runs: list[tuple[Tensors, dict[str, Array]]] = field(default_factory=list)

    def same(self, run: Callable[[Tensors], Mapping[str, Array]]) -> bool:
        """Whether a network gives the same numbers, bit for bit."""
        for tensors, outputs in self.runs:
            found = run(tensors)
            if found.keys() != outputs.keys():
                return False
            for name, array in outputs.items():
                other = found[name]
                if (array.dtype, array.shape) != (other.dtype, other.shape):
                    return False
                if array.tobytes() != other.tobytes():
                    return False
        return bool(self.runs)


def follow(
    question: Mapping[str, Any],
    progress: socket.socket,
    wish: Callable[[int, int], None],
    frame: Callable[[Sequence[TensorSpec]], Tensors | None],
) -> Followed:
    """Run the model as its stages are built.

    Args:
        question: `folder`, for what comes before the network; `choice`; `kind` of sample, or None
            where no pipeline gives it any; `golden`.
        progress: brings the file that is being filled, then how far it is, in records of
            `PROGRESS`.
        wish: requests bytes before their turn.
        frame: returns the newest frame of a pipeline that uses this model, as its inputs.
    """
    found = Followed()
    try:
        _follow(question, progress, wish, frame, found)
    except AgentError as problem:
        found.why = str(problem)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the complete model decides
        found.why = reason(problem)
    return found


def _follow(
    question: Mapping[str, Any],
    progress: socket.socket,
    wish: Callable[[int, int], None],
    frame: Callable[[Sequence[TensorSpec]], Tensors | None],
    found: Followed,
) -> None:
    _, (descriptor,), _, _ = socket.recv_fds(progress, PROGRESS.size, 1)
    data = GrowingFile(descriptor)
    threading.Thread(target=_listen, args=(progress, data), name="progress", daemon=True).start()
    folder = Path(question["folder"])
    network, begin, end = unpack_early(data, folder)
    file = OnnxFile(data, begin, end)
    data.wish(*file.tail)
    wish(*file.tail)
    engine = StagedEngine(data, file, EngineChoice(**question["choice"]))
    try:
        golden = threading.Thread(
            target=_golden, args=(question, network, engine, found), name="golden", daemon=True
        )
        if question["golden"] and (folder / GOLDEN).is_file():
            golden.start()
        engine.near.wait()
        tensors = frame(engine.inputs)
        if tensors is not None:
            engine.infer(tensors)
            found.first_at = time.monotonic()
        if golden.ident is not None:
            golden.join()
        found.label, found.stages = engine.label, engine.stages
        found.runs = list(engine.runs)
    finally:
        engine.close()


def _golden(
    question: Mapping[str, Any], network: Path, engine: StagedEngine, found: Followed
) -> None:
    """Run the golden inputs; each run waits for the stages."""
    # Imported only now: most packages have no golden inputs, and this takes as long as some stages.
    from ...inference.golden import compare_golden
    from ...inference.model import assemble
    from ...inference.preprocess.inputs import fixed_shapes

    try:
        folder = model_of(Path(question["folder"]), network)
        kind = question["kind"] or folder.manifest.input.kind
        engine.fix(fixed_shapes(folder.manifest.input, kind))
        choice = EngineChoice(**question["choice"])
        found.agreement = compare_golden(assemble(folder, choice, engine, kind))
    except AgentError:
        return  # the trial of the complete model reports it, in the same words


def _listen(progress: socket.socket, data: GrowingFile) -> None:
    """Read how far the file is, until the agent closes its end."""
    while record := progress.recv(PROGRESS.size):
        have, granted = PROGRESS.unpack(record)
        data.grow(have, granted=granted)


# What comes before the network


def unpack_early(data: GrowingFile, folder: Path) -> tuple[Path, int, int]:
    """Wait until the network begins.

    Args:
        data: the members of the package.
        folder: for what comes before; the network is an empty file there.

    Returns:
        That file, and where its content begins and ends in *data*.

    Raises:
        UnfitError: it does not come last enough, or is no larger ONNX file.
        ModelError: the package is not as it should be.
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
            return place, at, at + member.size
        if at + member.size > MAX_EARLY_BYTES:
            raise UnfitError(f"{member.name} comes before the network and is large")
        with place.open("wb") as file:
            file.writelines(reader.content())
    raise UnfitError("there is no ONNX file")


def model_of(folder: Path, network: Path) -> ModelFolder:
    """Load the model folder of what came before the network.

    Raises:
        UnfitError: that is not enough.
    """
    from ...models.manifest import MANIFEST, load

    if not (folder / MANIFEST).is_file():
        raise UnfitError(f"{MANIFEST} comes after the network")
    try:
        model = load(folder)
    except ModelError as problem:
        # What it misses may still come.
        raise UnfitError(str(problem)) from None
    if model.network != network:
        raise UnfitError(f"its network is {model.manifest.file}")
    return model
