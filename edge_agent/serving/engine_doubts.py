"""Which engines compute a model rightly on this device and which do not, kept over restarts.

Known by what decides the numbers: the files of the model, the engine's version and options, and the
processor.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from ..core.state_file import StateFile
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import installed
from ..inference.prepared.artifact import processor
from ..inference.prepared.digests import model_digest

log = logging.getLogger(__name__)

FILE = "engines.json"
MOST = 200
"""Entries; the oldest go first."""


class EngineDoubts:
    """Remembers what engines were found to be worth."""

    def __init__(self, state: Path) -> None:
        """Read what is known.

        Args:
            state: the state folder.
        """
        self._state = state
        self._file = StateFile(state / FILE, "which engines compute a model wrongly")
        self._known: dict[str, str] = self._file.read(_parse) or {}

    def add(self, folder: Path, choice: EngineChoice, why: str) -> None:
        """Record that an engine computes a model wrongly."""
        self._record(folder, choice, why)

    def clear(self, folder: Path, choice: EngineChoice) -> None:
        """Record that an engine computes a model as it should."""
        self._record(folder, choice, "")

    def why(self, folder: Path, choice: EngineChoice) -> str | None:
        """Return why an engine must not serve a model, or None if nothing speaks against it."""
        why = self._found(folder, choice)
        return f"computes it wrongly here: {why}" if why else None

    def sound(self, folder: Path, choice: EngineChoice) -> bool:
        """Whether an engine is known to compute a model as it should."""
        return self._found(folder, choice) == ""

    def _found(self, folder: Path, choice: EngineChoice) -> str | None:
        """Return what is known: empty where all is well; None: nothing."""
        if not self._known:
            return None
        try:
            return self._known.get(self._key(folder, choice))
        except ModelError:
            return None  # what is wrong with its files is reported when they are loaded

    def _record(self, folder: Path, choice: EngineChoice, why: str) -> None:
        try:
            key = self._key(folder, choice)
        except ModelError as problem:
            log.warning("%s: %s", folder, problem)
            return
        others = {known: words for known, words in self._known.items() if known != key}
        self._known = dict([*others.items(), (key, why)][-MOST:])
        self._file.save({"schema": 1, "found": self._known})

    def _key(self, folder: Path, choice: EngineChoice) -> str:
        """Name a model and an engine; how many threads it has changes no number."""
        options = json.dumps(dict(choice.options), sort_keys=True)
        words = (
            model_digest(self._state, folder),
            *choice.place,
            choice.precision,
            options,
            installed().get(choice.engine),
            processor(),
        )
        return " ".join(str(word) for word in words)


def _parse(content: Any) -> dict[str, str]:
    return {str(key): str(why) for key, why in content["found"].items()}
