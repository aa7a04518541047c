"""Follows a model that is arriving, until it has run on a live frame or it is clear that it cannot.

In the child process of a trial. What was found counts only if the whole network, when it is there,
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
from .growing_file import Arriving
from .members import model_of, unpack_early
from .news import NEWS
from .onnx_stream import OnnxFile
from .stages import StagedEngine

if TYPE_CHECKING:
    from ...core.types import Kind
    from ...inference.compare import Agreement

GOLDEN = "golden.npz"


@dataclass(slots=True, eq=False)
class Followed:
    """What came of it."""

    why: str = ""
    """Why it could not be followed; empty: it could."""
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
    news: socket.socket,
    wish: Callable[[int, int], None],
    frame: Callable[[Sequence[TensorSpec]], Tensors | None],
) -> Followed:
    """Run the model as its stages come.

    Args:
        question: `folder`, for what comes before the network; `choice`; `kind` of sample, or None
            where nobody gives it any; `golden`.
        news: brings the file that is being filled, then how far it is, in records of `NEWS`.
        wish: asks for bytes before their turn.
        frame: gives the newest frame of a pipeline that uses this model, as inputs of it.

    """
    found = Followed()
    try:
        _follow(question, news, wish, frame, found)
    except AgentError as problem:
        found.why = str(problem)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the whole model decides
        found.why = f"{type(problem).__name__}: {problem}"
    return found


def _follow(
    question: Mapping[str, Any],
    news: socket.socket,
    wish: Callable[[int, int], None],
    frame: Callable[[Sequence[TensorSpec]], Tensors | None],
    found: Followed,
) -> None:
    _, (descriptor,), _, _ = socket.recv_fds(news, NEWS.size, 1)
    data = Arriving(descriptor)
    threading.Thread(target=_listen, args=(news, data), name="news", daemon=True).start()
    folder = Path(question["folder"])
    network, begin, end = unpack_early(data, folder)
    file = OnnxFile(data, begin, end)
    data.wish(*file.tail)
    wish(*file.tail)
    engine = StagedEngine(data, file, EngineChoice(**question["choice"]))
    try:
        judge = threading.Thread(
            target=_golden, args=(question, network, engine, found), name="golden", daemon=True
        )
        if question["golden"] and (folder / GOLDEN).is_file():
            judge.start()
        engine.near.wait()
        tensors = frame(engine.inputs)
        if tensors is not None:
            engine.infer(tensors)
            found.first_at = time.monotonic()
        if judge.ident is not None:
            judge.join()
        found.label, found.stages = engine.label, engine.stages
        found.runs = list(engine.runs)
    finally:
        engine.close()


def _golden(
    question: Mapping[str, Any], network: Path, engine: StagedEngine, found: Followed
) -> None:
    """Run the golden inputs; each waits at a stage until it is there."""
    # Not before: most packages have none, and to import all this takes as long as some stages.
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
        return  # is said, in the same words, by the judge of the whole model


def _listen(news: socket.socket, data: Arriving) -> None:
    """Take the news of what has arrived, until there is no more."""
    while record := news.recv(NEWS.size):
        have, granted = NEWS.unpack(record)
        data.grow(have, granted=granted)
