"""What checks of settings may know of where a pipeline runs."""

from __future__ import annotations

from collections.abc import Callable

from ..core.frozen import record


@record(kw_only=True)
class Surroundings:
    """The pictures, topics and name of the device that a pipeline runs on."""

    size: tuple[int, int] | None = None
    """Width and height of the pictures from its camera or clip; None: not known, or they differ."""
    reads: Callable[[str], bool] = lambda _topic: False
    """Whether a source of this device reads a topic."""
    device: str = ""
