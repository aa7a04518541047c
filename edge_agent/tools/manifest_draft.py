"""The manifest of a network that was converted: by the same knowledge as `describe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from ..models.files.facts import NetworkFacts
from ..models.files.guess import draft_of
from ..models.files.infer_layout import picture_input, picture_size
from ..models.files.metadata import manifest_of
from ..models.importing import draft_text, manifest_table, write_manifest
from ..models.manifest import MANIFEST

LABELS = "labels.txt"
FEW_LABELS = 10
"""More have a file of their own."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """What was written as model.toml."""

    assumed: tuple[str, ...]
    left: tuple[str, ...]
    """What is to be decided."""
    input: Mapping[str, Any] = field(default_factory=dict)
    """Its [input]."""


def draft_manifest(
    folder: Path, facts: NetworkFacts, name: str, sizes: Sequence[Sequence[int]]
) -> Drafted:
    """Write the manifest that follows from a network, or a draft of it.

    Args:
        folder: where the network's file lies.
        facts: of the network.
        name: of the model.
        sizes: that its inputs were exported with.

    Raises:
        ModelError: its exporter says that it is something that is not supported.
    """
    network = facts.files[0]
    try:
        manifest, assumed = manifest_of(network, name, "1")
    except ModelError:
        if network.suffix == ".onnx" and facts.metadata:
            raise  # its exporter says what it is, and that it is not supported
        draft = draft_of(facts)
        said = dict(draft.keys)
        assumptions = list(draft.assumed)
        known = _open_size(facts, sizes)
        if known:
            said["input"] = {**said.get("input", {}), **known}
            assumptions.append("width and height: those of the example it was exported with")
        draft = replace(draft, keys=said, assumed=tuple(assumptions))
        text = draft_text(draft, name, "1", network.name)
        (folder / MANIFEST).write_text(text, encoding="utf-8")
        return Drafted(draft.assumed, draft.questions, said.get("input", {}))
    labels = manifest.output.labels
    if len(labels) > FEW_LABELS and not isinstance(labels, str) and "\n" not in "".join(labels):
        (folder / LABELS).write_text("\n".join(labels) + "\n", encoding="utf-8")
        manifest = replace(manifest, output=replace(manifest.output, labels=LABELS))
    write_manifest(manifest, folder)
    return Drafted(tuple(assumed), (), manifest_table(manifest).get("input", {}))


def _open_size(facts: NetworkFacts, sizes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the width and height of a picture that the network leaves open; else nothing."""
    try:
        spec, said = picture_input(facts, "")
    except ModelError:
        return {}
    if None not in picture_size(spec, said["layout"]):
        return {}
    index = next(n for n, one in enumerate(facts.inputs) if one.name == spec.name)
    rows, columns = (2, 3) if said["layout"] == "nchw" else (1, 2)
    return {"width": int(sizes[index][columns]), "height": int(sizes[index][rows])}
