"""Makes the artifact of a model, in a separate process started by `cache`.

The result gives the network's own numbers bit for bit, or is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from ....core.child import answer_question, run_in_background
from ....core.files import sha256
from ....models.manifest import load
from ...engines.engine import EngineChoice
from ...engines.registry import capabilities
from ..artifact import FILE, encode


def make(question: Mapping[str, Any]) -> None:
    """Write an artifact to an existing empty folder.

    Args:
        question: `model`: folder of the model; `choice`: the engine choice, as a mapping; `kind`
            of sample; `key` of the artifact; `budget_mb`; `folder`: where to write it; `urgent`:
            whether to run with the agent's own priority.

    Raises:
        AgentError: the model cannot be prepared.
    """
    # After an interruption it must be finished before the next one.
    run_in_background(0 if question["urgent"] else 10)
    choice = EngineChoice(**question["choice"])
    folder = Path(question["folder"])
    maker: Any = import_module(capabilities(choice.engine).maker_module)
    table: dict[str, Any] = maker.make_artifact(
        load(Path(question["model"])),
        choice,
        question["kind"],
        folder,
        budget_mb=question["budget_mb"],
    )
    table |= {name: question[name] for name in ("key", "model", "kind")}
    table["files"] = _files(folder)
    table["sha256"] = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    (folder / FILE).write_bytes(encode(table))


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size and checksum of every file; checksums of the weights are by stage."""
    files = {}
    for path in sorted(folder.iterdir()):
        digest = xxh3_64_hexdigest(path.read_bytes()) if path.suffix == ".onnx" else ""
        files[path.name] = (path.stat().st_size, digest)
    return files


if __name__ == "__main__":
    answer_question(make)
