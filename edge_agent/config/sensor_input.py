"""The sensor input of a pipeline without a model: `[pipelines.input]`, and its checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..core.codec import storable
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.frozen import record
from ..core.names import READINGS
from ..models.transforms import Stats, stats_problems

if TYPE_CHECKING:
    from ..models.manifest import InputSpec

_STRICT: Any = {"extra": "forbid"}


@storable
@record(kw_only=True)
class SensorInput:
    """The sensor values to publish: as they arrive, or statistics of windows."""

    __pydantic_config__ = _STRICT
    channels: tuple[int | str, ...] = ()
    """Empty: all."""
    window: Annotated[int, Plain(), Ge(1), Le(10_000_000)] | None = None
    """Samples; this key and all below it are as in a manifest's `[input]`."""
    hop: Annotated[int, Plain(), Ge(1), Le(10_000_000)] | None = None
    rate_hz: Annotated[float, Plain(), Gt(0), Le(1e9)] | None = None
    resample_hz: Annotated[float, Plain(), Ge(0), Le(1e6)] = 0.0
    stats: Stats | None = None

    @property
    def spec(self) -> InputSpec:
        """The same in the form of a manifest."""
        from ..models.manifest import InputSpec

        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return InputSpec(**given, transform="none" if self.stats is None else "stats")


def sensor_problems(spec: SensorInput | None, *, has_no_model: bool) -> Iterator[tuple[str, str]]:
    """Yield the problems of the input: key of the pipeline and error text."""
    if spec is None:
        return
    if not has_no_model:
        yield "input", f'is for model = "{READINGS}"; the manifest describes the input of a model'
    if spec.stats is not None:
        rate = spec.resample_hz or spec.rate_hz
        for key, text in stats_problems(spec.stats.of, spec.window, rate):
            yield f"input.{key}", text
    elif spec.window is not None:
        yield "input.stats", 'is missing; set the statistics to publish, such as { of = ["rms"] }'
    elif spec.hop or spec.rate_hz or spec.resample_hz:
        yield "input.window", "is missing; `hop`, `rate_hz` and `resample_hz` are for windows"


def fields_left(source: str, spec: SensorInput | None) -> tuple[str, ...]:
    """Return the names of all values that `?field=` of a sensor leaves; empty: it leaves any."""
    if "field=" not in source:
        return ()
    from ..sources.spec import parse_source

    options = parse_source(source, Path()).options
    left: tuple[str, ...] = options["field"] if options.get("format") == "json" else ()
    of = spec.stats.of if spec is not None and spec.stats is not None else ()
    return tuple([f"{key}.{each}" for key in left for each in of]) if of else left
