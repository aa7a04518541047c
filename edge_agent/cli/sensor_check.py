"""What `check` says of a sensor's readings beside the model that takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.errors import ModelError
from ..core.types import Reading
from ..models.manifest import InputSpec, ModelFolder

if TYPE_CHECKING:
    from ..config.settings import Pipeline
    from ..sources.source import Source
    from ..sources.spec import SourceSpec


def misfit(spec: InputSpec, reading: Reading) -> str | None:
    """Return why a model cannot take readings like this one, as the pipeline would say it."""
    from ..inference.preprocess.windowing import Windower

    try:
        windower = Windower(spec, reading.columns)
        for part in windower.usable(reading):
            if isinstance(part, Reading):
                windower.push(part)
    except ModelError as problem:
        return str(problem)
    return None


def misread(pipeline: Pipeline, source: Source) -> list[str]:
    """Return why values that the settings name are no numbers in a file."""
    unread: Mapping[str, str] = getattr(source, "unread", {})
    return [unread[name] for name in sorted(pipeline.named_values & unread.keys())]


def paces(spec: SourceSpec, found: Sequence[ModelFolder | None]) -> Iterator[str]:
    """Yield a line for each model whose rate differs from that at which a recording plays."""
    paced = spec.options.get("rate")
    if spec.kind != "signal" or spec.live or not paced:
        return
    for folder in found:
        known = None if folder is None else folder.manifest.input.rate_hz
        if folder is not None and known and float(paced) != known:
            yield (
                f"?rate={paced:g} plays it at {float(paced) / known:.3g} times the {known:g} "
                f"readings a second that {folder.manifest.id} takes; its times are off"
            )
