"""One try to read a source: a thread that opens it, and that may hang in a driver."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from ...sources.source import OPEN_SECONDS


@dataclass(slots=True, eq=False)
class Attempt:
    """One capture thread; it may get stuck in a driver and be left behind."""

    closing: threading.Event = field(default_factory=threading.Event)
    beat: float = field(default_factory=time.monotonic)
    """When it last made progress."""
    limit: float = OPEN_SECONDS
    opening: bool = False
    """Whether it is opening its source."""
    late: bool = False
    """Whether that took so long that the source was reported as lost."""
    began: float = field(default_factory=time.monotonic)
    thread: threading.Thread | None = None
    abandoned: bool = False
    """Whether its thread hangs in a driver."""

    def alive(self) -> None:
        """Record that its thread is not inside a driver."""
        self.beat = time.monotonic()
