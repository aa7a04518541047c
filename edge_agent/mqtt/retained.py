"""Which retained topics this device has left on the broker, remembered over restarts.

Without it, what a pipeline said last would stay there for ever once it is taken out of the
settings of an agent that is not running.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.state_file import StateFile


class Announced:
    """The topics of pipelines and models."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, "retained topics of before, which stay on the broker,")
        self._topics = self._file.read(_parse) or set()

    def keep(self, topics: Iterable[str]) -> set[str]:
        """Remember that these are all there are; gives those that were there and are gone."""
        now = set(topics)
        gone = self._topics - now
        if now != self._topics:
            self._topics = now
            self._file.save(sorted(now))
        return gone


def _parse(content: Any) -> set[str]:
    return {topic for topic in content if isinstance(topic, str)}
