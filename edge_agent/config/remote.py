"""The record of `[remote]`: what of the settings may be changed from afar."""

from __future__ import annotations

from typing import Any

from ..core.codec import storable
from ..core.frozen import record

_STRICT: Any = {"extra": "forbid"}


@storable
@record(kw_only=True)
class Remote:
    """What the commands `set` and `configure` may change of pipelines."""

    __pydantic_config__ = _STRICT
    may: tuple[str, ...] = (
        *("enabled", "rate", "threshold", "thresholds", "labels", "zones", "lines", "rules"),
        *("masks", "roi", "motion", "snapshot", "min_box"),
    )
    """Keys of a pipeline; "pipelines": that there are others."""
