"""`edge-agent describe`: shows the facts in a model file, and the questions it leaves open."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.text import printable
from ...models.describing import Description, describe
from ...models.importing import import_model, manifest_table
from ..options import Options

if TYPE_CHECKING:
    from ...core.types import TensorSpec

_SHOWN = 100
"""Characters shown of a metadata entry."""
_FEW = 6
"""Entries shown of a list."""


EXAMPLES = (
    "edge-agent describe yolov8n.onnx",
    "edge-agent describe parts/ --json",
    "edge-agent describe parts.onnx --draft  a manifest to complete",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "model", metavar="MODEL", help="model folder, packed .tar, .onnx, .xml or .tflite"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument(
        "--draft", action="store_true", help="the manifest alone, with what is to decide in it"
    )


def main(options: Options) -> int:
    """Describe; 0 even if something is missing, 1 if devices refuse it or it does not fit."""
    path = Path(options.model)
    described = describe(path)
    if options.json:
        print(json.dumps(_json(described)))
    elif options.draft:
        for line in (described.draft or _whole(described)).splitlines():
            print(printable(line))
    else:
        _print(described)
    if described.manifest is not None:
        from ...inference.fit import check_fit

        # It may be in a package.
        with import_model(path) as imported:
            check_fit(imported.folder, described.facts)
    return 1 if described.wrong else 0


def _json(described: Description) -> dict[str, Any]:
    facts, manifest = described.facts, described.manifest
    return {
        "file": described.file,
        "format": facts.kind,
        "quantized": facts.quantized,
        "nodes": facts.nodes,
        "weight_bytes": facts.weight_bytes,
        "inputs": [_tensor(spec) for spec in facts.inputs],
        "outputs": [_tensor(spec) for spec in facts.outputs],
        "metadata": dict(facts.metadata),
        "manifest": None if manifest is None else manifest_table(manifest),
        "draft": described.draft,
        "labels": described.labels,
        "guessed": list(described.guessed),
        "missing": list(described.missing),
        "notes": list(described.notes),
        "wrong": list(described.wrong),
    }


def _whole(described: Description) -> str:
    import tomli_w

    return "" if described.manifest is None else tomli_w.dumps(manifest_table(described.manifest))


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}


def _print(described: Description) -> None:
    facts = described.facts
    kind = {"onnx": "ONNX", "ir": "OpenVINO IR", "tflite": "TensorFlow Lite"}.get(
        facts.kind, facts.kind
    )
    numbers = "integers (quantized)" if facts.quantized else "floats"
    print(
        printable(
            f"file     {described.file}: {kind}, computes with {numbers}, {facts.nodes} operators, "
            f"{facts.weight_bytes / 1e6:.1f} MB of weights"
        )
    )
    for spec in facts.inputs:
        print(printable(f"input    {spec}"))
    for spec in facts.outputs:
        print(printable(f"output   {spec}"))
    for key, text in facts.metadata.items():
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
        print(printable(f"says     {key}: {shown}"))
    if described.manifest is None:
        print("manifest none follows from this; a draft:")
        for line in described.draft.splitlines():
            print(f"         {printable(line)}".rstrip())
    else:
        print("manifest")
        for line in _toml(manifest_table(described.manifest)):
            print(f"         {printable(line)}".rstrip())
    for guess in described.guessed:
        print(printable(f"guessed  {guess}"))
    for lack in described.missing:
        print(printable(f"missing  {lack}"))
    for note in described.notes:
        print(printable(f"note     {note}"))
    for fault in described.wrong:
        print(printable(f"wrong    {fault}"))


def _toml(table: dict[str, Any]) -> list[str]:
    """Return a manifest's lines, with each list on one line and long ones shortened."""
    import tomli_w

    lines: list[str] = []
    for line in tomli_w.dumps(_shortened(table)).splitlines():
        if lines and lines[-1].endswith(("[", ",")):
            lines[-1] += line.strip() if line.strip() == "]" else f" {line.strip()}"
        else:
            lines.append(line)
    return [line.replace("[ ", "[").replace(",]", "]") for line in lines]


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    if isinstance(value, list) and len(value) > _FEW:
        return [*value[: _FEW - 1], f"… {len(value)} in all"]
    return value
