"""Keys of a manifest that have no effect."""

from __future__ import annotations

from collections.abc import Mapping

from .manifest import InputSpec, Manifest
from .questions import undecided

_OF_PICTURES: tuple[str, ...] = (
    *("color", "width", "height", "resize", "crop_ratio", "interpolation"),
    *("antialias", "rounding", "anchor", "pad"),
)
_OF_SIGNALS: tuple[str, ...] = ("every", "hop", "lead", "resample_hz")
"""Keys of `[input]` that only matter for one kind of sample."""
_OF_TASKS: Mapping[str, frozenset[str]] = {
    "points": frozenset({"keypoints"}),
    "mask": frozenset({"instance-segmentation", "segmentation"}),
    "vector": frozenset({"embedding"}),
}
"""Keys of `[output]` that only matter for some tasks."""


def doubtful_keys(manifest: Manifest) -> list[str]:
    """List, one line each, which keys have no effect, and which are not decided yet."""
    lines = (idle_keys(manifest), undecided(manifest.to_decide))
    return [line for line in lines if line is not None]


def idle_keys(manifest: Manifest) -> str | None:
    """Return which keys have no effect, and why; None: all keys given have one."""
    spec, default = manifest.input, InputSpec()
    for key, tasks in _OF_TASKS.items():
        if getattr(manifest.output, key) and manifest.task not in tasks:
            return f"output.{key}: no effect: it is for task {' and '.join(sorted(tasks))}"
    keys, what = _OF_SIGNALS, "pictures, these are for windows of sensor data: give `window`"
    if spec.is_signal:
        keys, what = _OF_PICTURES, "windows of sensor data, these are for pictures"
    found = [f"input.{key}" for key in keys if getattr(spec, key) != getattr(default, key)]
    if found:
        return f"{', '.join(found)}: no effect: the model takes {what}"
    if spec.resize == "letterbox" and spec.crop_ratio != 1:
        return 'input.crop_ratio: no effect: nothing is cut with input.resize = "letterbox"'
    if spec.max_tokens is not None and not spec.tokenizer:
        return "input.max_tokens: no effect without input.tokenizer"
    if spec.logmel is not None and spec.transform not in {"logmel", "mfcc"}:
        return 'input.logmel: no effect without input.transform = "logmel" or "mfcc"'
    for table in ("mfe", "spectral", "stats"):
        if getattr(spec, table) is not None and spec.transform != table:
            return f'input.{table}: no effect without input.transform = "{table}"'
    return None
