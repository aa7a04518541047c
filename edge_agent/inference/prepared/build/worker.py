"""Makes the artifact of a model, in a process of its own: run as a module by `cache`.

What comes out of it gives the network's own numbers bit for bit, or is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from ....core.child import answer_question
from ...engines.engine import EngineChoice
from ...engines.registry import capabilities
from ..artifact import FILE, encode
from ..digests import sha256


def make(question: Mapping[str, Any]) -> dict[str, Any]:
    """Write an artifact to a folder that is there and empty.

    Args:
        question: `model`: folder of the model; `choice`: the engine's, as a mapping; `kind` of
            sample; `key` of the artifact; `head_ms`; `budget_mb`; `folder`: where to write it.

    Returns:
        The strategy it will be loaded by, and why.

    Raises:
        AgentError: the model cannot be prepared.

    """
    from ....models.manifest import load

    model = load(Path(question["model"]))
    choice = EngineChoice(**question["choice"])
    folder = Path(question["folder"])
    maker = import_module(capabilities(choice.engine).maker_module)
    table: dict[str, Any] = maker.make_artifact(
        model,
        choice,
        question["kind"],
        folder,
        head_ms=question["head_ms"],
        budget_mb=question["budget_mb"],
    )
    table["key"] = question["key"]
    table["model"] = question["model"]
    table["kind"] = question["kind"]
    table["files"] = _files(folder)
    table["sha256"] = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    (folder / FILE).write_bytes(encode(table))
    return {"strategy": table["decision"], "why": table["why"]}


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and checksum of every file; of the weights the checksums are by stage."""
    files = {}
    for path in sorted(folder.iterdir()):
        digest = xxh3_64_hexdigest(path.read_bytes()) if path.suffix == ".onnx" else ""
        files[path.name] = (path.stat().st_size, digest)
    return files


if __name__ == "__main__":
    answer_question(make, background=True)
