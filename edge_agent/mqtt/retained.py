"""Which retained topics this device has left on the broker, remembered over restarts.

Without it, what a pipeline said last would stay there for ever once it is taken out of the
settings of an agent that is not running.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from ..core.files import replace_file

log = logging.getLogger(__name__)


class Announced:
    """The topics of pipelines and models."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._topics: set[str] = set()
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            self._topics = {topic for topic in read if isinstance(topic, str)}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError):
            log.warning("%s: damaged; what is retained of before stays on the broker", path)

    def keep(self, topics: Iterable[str]) -> set[str]:
        """Remember that these are all there are; gives those that were there and are gone."""
        now = set(topics)
        gone = self._topics - now
        if now != self._topics:
            self._topics = now
            try:
                replace_file(self._path, json.dumps(sorted(now)).encode())
            except OSError as problem:
                log.warning("%s: cannot be written: %s", self._path, problem.strerror)
        return gone
