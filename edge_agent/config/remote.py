"""The record of `[remote]`: what of the settings may be changed from afar."""

from __future__ import annotations

from ..core.codec import storable
from ..core.frozen import record


@storable
@record(kw_only=True)
class Remote:
    """What the commands `set` and `configure` may change of pipelines."""

    may: tuple[str, ...] = (
        *("enabled", "rate", "threshold", "thresholds", "labels", "zones", "lines", "rules"),
        *("masks", "roi", "motion", "snapshot", "min_box"),
    )
    """Keys of a pipeline; "pipelines": that there are others."""
