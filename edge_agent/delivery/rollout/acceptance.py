"""Acceptance: the bounds that a candidate must meet, and the watch over one that serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...config.settings import Trial
from ...core.backoff import Backoff
from ...inference.model import Model
from ...models.manifest import ModelFolder

MOST_ERRORS = 3
"""Failed frames that end a version's probation."""
RECENT, FEWEST = 100, 10
"""Number of inferences whose median time is judged, and the least number needed."""


def bounds_of(folder: ModelFolder, device: Trial) -> Trial:
    """Return for each bound the stricter of the manifest's and the device's."""
    own = folder.manifest.trial
    limits = [limit for limit in (device.max_infer_ms, own.max_infer_ms or 0.0) if limit > 0]
    return Trial(
        golden=device.golden or bool(own.golden),
        shadow_frames=max(device.shadow_frames, own.shadow_frames or 0),
        min_agreement=max(device.min_agreement, own.min_agreement or 0.0),
        max_infer_ms=min(limits, default=0.0),
        probation_s=max(device.probation_s, own.probation_s or 0.0),
        timeout_s=min(device.timeout_s, own.timeout_s or device.timeout_s),
    )


@dataclass(slots=True, eq=False)
class Watch:
    """The criteria for a version on probation."""

    serving: Callable[[], list[Model]]
    """Lists its models in memory: they may be loaded anew meanwhile, and go on with the counts."""
    until: float
    """When it ends, monotonic time."""
    bounds: Trial
    broken: str | None = None
    """Why another version serves in its place, its files having been damaged."""
    ends: int = 0
    """How often its process has ended by itself, where it has one, and why it did."""
    ended: str = ""
    inferred_before: int = 0
    """Frames it had inferred when the watch began."""
    again: float = 0.0
    """When its end is tried again, monotonic time, where that could not be written."""
    pauses: Backoff = field(default_factory=lambda: Backoff(first=0.5, most=10.0))

    _latest: list[Model] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inferred_before = sum(model.stats.inferred for model in self.models)

    def put_off(self) -> bool:
        """Have its end wait; return whether it does so for the first time."""
        first, self.again = not self.again, time.monotonic() + self.pauses.pause()
        return first

    @property
    def models(self) -> list[Model]:
        """Its models, also if they are unloaded now because they are idle."""
        self._latest = self.serving() or self._latest
        return self._latest

    @property
    def stuck(self) -> bool:
        """Whether frames were given to it, or would be, but none has been inferred."""
        return not self.inferred and any(model.users or model.stats.misfit for model in self.models)

    @property
    def inferred(self) -> int:
        """Frames it has inferred since the watch began."""
        return sum(model.stats.inferred for model in self.models) - self.inferred_before

    @property
    def fault(self) -> str | None:
        """Why it fails its probation, or None so far."""
        if self.broken is not None:
            return self.broken
        if self.ends >= MOST_ERRORS:
            return f"{self.ends} times during its probation: {self.ended}"
        limit = self.bounds.max_infer_ms
        for model in self.models:
            if model.stats.errors >= MOST_ERRORS:
                frames = f"failed on {model.stats.errors} frames during its probation"
                return model.stats.misfit or frames
            recent = sorted(list(model.stats.infer_ms)[-RECENT:])
            if limit and len(recent) >= FEWEST and recent[len(recent) // 2] > limit:
                return (
                    f"too slow: {recent[len(recent) // 2]:.1f} ms, at most {limit:g} ms are allowed"
                )
        return None
