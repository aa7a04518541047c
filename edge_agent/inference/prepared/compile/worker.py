"""Makes and measures the artifact of a model, in a process of its own: run by `cache`.

What comes out of it gives the network's own numbers bit for bit, or is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from ....core.child import answer_question, run_in_background
from ....core.files import disk_errors, replace_file
from ...engines.engine import EngineChoice
from ...engines.registry import capabilities
from ..artifact import FILE, encode, read
from ..digests import sha256


def make(question: Mapping[str, Any]) -> dict[str, Any]:
    """Write an artifact to a folder that is there and empty.

    Args:
        question: `model`: folder of the model; `choice`: the engine's, as a mapping; `kind` of
            sample; `key` of the artifact; `budget_mb`; `folder`: where to write it; `urgent`:
            with the agent's own priority.

    Returns:
        The strategy it will be loaded by, and why.

    Raises:
        AgentError: the model cannot be prepared.
    """
    from ....models.manifest import load

    model = load(Path(question["model"]))
    choice = EngineChoice(**question["choice"])
    folder = Path(question["folder"])
    table: dict[str, Any] = _maker(choice).make_artifact(
        model, choice, question["kind"], folder, budget_mb=question["budget_mb"]
    )
    table["key"] = question["key"]
    table["model"] = question["model"]
    table["kind"] = question["kind"]
    table["files"] = _files(folder)
    table["sha256"] = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    (folder / FILE).write_bytes(encode(table))
    return {"strategy": table["decision"], "why": table["why"]}


def measure(question: Mapping[str, Any]) -> dict[str, Any]:
    """Measure an artifact that is in its place; write what was found to its table.

    Who runs it goes on running it: only its table changes, in one step.

    Args:
        question: as for `make`; `folder`: of the artifact; `head_ms`: of a start, or None.

    Returns:
        The strategy it will be loaded by, and why.

    Raises:
        AgentError: it cannot be measured; nothing has changed.
    """
    from ....models.manifest import load

    choice = EngineChoice(**question["choice"])
    artifact = read(question["folder"])
    table = _maker(choice).measure_artifact(
        load(Path(question["model"])),
        choice,
        question["kind"],
        artifact,
        head_ms=question["head_ms"],
        budget_mb=question["budget_mb"],
    )
    folder = Path(artifact.folder)
    with disk_errors(f"{folder}: measuring it"):
        replace_file(folder / FILE, encode(table))
    return {"strategy": table["decision"], "why": table["why"]}


def _maker(choice: EngineChoice) -> Any:
    """Return the module that makes artifacts for an engine."""
    return import_module(capabilities(choice.engine).maker_module)


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and checksum of every file; of the weights the checksums are by stage."""
    files = {}
    for path in sorted(folder.iterdir()):
        digest = xxh3_64_hexdigest(path.read_bytes()) if path.suffix == ".onnx" else ""
        files[path.name] = (path.stat().st_size, digest)
    return files


_TASKS = {"make": make, "measure": measure}


def _work(question: Mapping[str, Any]) -> dict[str, Any]:
    # What has been cut off before has to be done before it is cut off again.
    run_in_background(0 if question["urgent"] else 10)
    return _TASKS[question["task"]](question)


if __name__ == "__main__":
    answer_question(_work)
