"""Layout and decoder of an exported network, inferred from its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import ModelError
from ...core.types import TensorSpec
from .facts import NetworkFacts


def picture_input(
    facts: NetworkFacts, where: str, *, usual: str | None = None
) -> tuple[TensorSpec, dict[str, Any]]:
    """Find the input that takes pictures.

    Returns:
        Its spec, and its keys in a manifest's [input]: layout, color if it is gray, tensor if there
        are other inputs.

    Raises:
        ModelError: no input takes pictures, or more than one.
    """
    pictures = [spec for spec in facts.inputs if len(spec.shape) == 4]
    if len(pictures) != 1:
        found = ", ".join(map(str, facts.inputs)) or "none"
        raise ModelError(f"{where}: expected one input of 4 dimensions for pictures, found {found}")
    spec = pictures[0]
    said: dict[str, Any] = {}
    if spec.shape[1] in {1, 3}:
        said["layout"], channels = "nchw", spec.shape[1]
    elif spec.shape[3] in {1, 3}:
        said["layout"], channels = "nhwc", spec.shape[3]
    elif usual is not None and spec.shape[1:] == (None, None, None):
        said["layout"], channels = usual, None
    else:
        raise ModelError(f"{where}: input {spec}: expected 1 or 3 channels, first or last")
    if channels == 1:
        said["color"] = "gray"
    if len(facts.inputs) > 1:
        said["tensor"] = spec.name
    return spec, said


def batch_words(spec: TensorSpec) -> str | None:
    """Return what a fixed batch costs, and how to do without; None: the input has none."""
    count = spec.shape[0] if len(spec.shape) in {3, 4} else None
    if count is None or count <= 1:
        return None
    return (
        f"batch: it takes {count} samples at once, and is given each one {count} times, which is "
        "as much more work; better, export it with a batch of 1"
    )


def picture_size(spec: TensorSpec, layout: str) -> tuple[int | None, int | None]:
    """Return the width and height of a picture input; None if the network leaves them open."""
    rows, columns = (2, 3) if layout == "nchw" else (1, 2)
    return spec.shape[columns], spec.shape[rows]


def yolo_decoder(
    outputs: Sequence[TensorSpec],
    classes: int,
    where: str,
    *,
    end_to_end: bool = False,
    objectness: bool = False,
    behind: int = 0,
) -> str:
    """Infer the decoder of a YOLO network from the shape of its output.

    Args:
        outputs: the network's outputs.
        classes: number of labels.
        where: prefix of errors.
        end_to_end: whether the exporter says that suppression is inside.
        objectness: whether the exporter is an older one, with rows of box, objectness, and classes.
        behind: how many numbers the task adds to a row.

    Raises:
        ModelError: it cannot be decoded; says expected and found.
    """
    found = ", ".join(map(str, outputs))
    if len(outputs) != 1 or len(outputs[0].shape) != 3:
        raise ModelError(
            f"{where}: expected one output of 3 dimensions, found {found}; networks with anchors "
            "outside are not supported: export it with them inside"
        )
    _, rows, columns = outputs[0].shape
    rows, columns = (None if size is None else size - behind for size in (rows, columns))
    if columns == 5 + classes and (objectness or (columns != 6 and not behind)):
        return "yolov5"
    # No picture has as few as 6 cells.
    if not objectness and columns == 6 and (not behind or 4 + classes != rows):
        return "yolo-e2e"
    if 4 + classes == rows:
        return "yolov8"
    if rows is None and columns is None:
        # All sizes open: only the exporter can know.
        return "yolov5" if objectness else "yolo-e2e" if end_to_end else "yolov8"
    if columns == 4 + classes:
        # No YOLO exporter writes such rows; RT-DETR's have boxes in 0..1.
        raise ModelError(
            f"{where}: output {found}: rows of {columns} are RT-DETR's or another family's, and "
            "its metadata does not say which; name the decoder in a model.toml"
        )
    raise ModelError(
        f"{where}: output {found}: for {classes} labels expected [1, {4 + classes + behind}, N], "
        f"[1, N, {5 + classes + behind}] or [1, N, {6 + behind}]; say what it is in a model.toml, "
        "of which `edge-agent describe` prints a draft"
    )


def numbers(text: str, where: str) -> list[float]:
    """Parse numbers separated by spaces, commas, or brackets.

    Raises:
        ModelError: they are not numbers.
    """
    words = text.replace(",", " ").strip("[]() ").split()
    try:
        return [float(word) for word in words]
    except ValueError:
        raise ModelError(f"{where}: expected numbers, found {text[:60]!r}") from None


def filled(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section without entries of None, as manifests leave out unneeded keys."""
    return {key: value for key, value in section.items() if value is not None}
