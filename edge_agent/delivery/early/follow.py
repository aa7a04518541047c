"""Runs a model that is arriving, until it has run on a live frame or it is clear that it cannot.

In the child process of a trial. The outcome counts only if the whole network, when it is there,
gives the same numbers bit for bit: `Followed.same`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import AgentError
from ...core.types import Array, Tensors, TensorSpec
from ...inference.engines.protocol import EngineChoice
from .growing_file import PROGRESS, Arriving
from .members import model_of, unpack_early
from .onnx_stream import OnnxFile
from .stages import StagedEngine

if TYPE_CHECKING:
    from ...core.types import Kind
    from ...inference.compare import Agreement

GOLDEN = "golden.npz"


@dataclass(slots=True, eq=False)
class Followed:
    """How far a model has run before it was whole."""

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
    reports: socket.socket,
    wish: Callable[[int, int], None],
    frame: Callable[[Sequence[TensorSpec]], Tensors | None],
) -> Followed:
    """Run the model as its stages come.

    Args:
        question: `folder`, for what comes before the network; `choice`; `kind` of sample, or None
            where no pipeline uses it; `golden`.
        reports: brings the file that is being filled, then how far it is, in records of `PROGRESS`.
        wish: asks for bytes before their turn.
        frame: returns the newest frame of a pipeline that uses this model, as inputs of it.

    """
    found = Followed()
    try:
        _follow(question, reports, wish, frame, found)
    except AgentError as problem:
        found.why = str(problem)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the whole model decides
        found.why = f"{type(problem).__name__}: {problem}"
    return found


def _follow(
    question: Mapping[str, Any],
    reports: socket.socket,
    wish: Callable[[int, int], None],
    frame: Callable[[Sequence[TensorSpec]], Tensors | None],
    found: Followed,
) -> None:
    _, (descriptor,), _, _ = socket.recv_fds(reports, PROGRESS.size, 1)
    data = Arriving(descriptor)
    threading.Thread(target=_listen, args=(reports, data), name="reports", daemon=True).start()
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
    """Run the golden inputs; each waits at a stage until it is there."""
    # Imported here: most packages have none, and all this takes as long to import as some stages.
    from ...inference.golden import compare_golden
    from ...inference.model import assemble
    from ...inference.preprocess.inputs import fixed_shapes

    try:
        folder = model_of(Path(question["folder"]), network)
        own: Kind = "signal" if folder.manifest.input.is_signal else "picture"
        kind = question["kind"] or own
        engine.fix(fixed_shapes(folder.manifest.input, kind))
        choice = EngineChoice(**question["choice"])
        found.agreement = compare_golden(assemble(folder, choice, engine, kind))
    except AgentError:
        return  # the trial of the whole model reports it, in the same words


def _listen(reports: socket.socket, data: Arriving) -> None:
    """Read reports of what has arrived, until there are no more."""
    while report := reports.recv(PROGRESS.size):
        have, granted = PROGRESS.unpack(report)
        data.grow(have, granted=granted)
