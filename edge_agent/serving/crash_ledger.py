"""Ledger of the crashes and hangs that each model has caused on each engine, over restarts.

Without it a model whose engine crashes or hangs at every start would have the service manager
restart the agent for ever. After LIMIT times in a row the pair is left alone: the next engine of
the profile serves the model, and where there is none the agent runs without it and reports why. A
run that goes well clears the counts below the limit.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.flight_recorder import PreviousCrash, short_name
from ..core.state_file import StateFile

log = logging.getLogger(__name__)

FILE = "crashes.json"
SCHEMA = 1
LIMIT = 3
"""Times in a row, after which a model is not loaded on that engine any more."""
GOOD_SECONDS = 300.0
"""A run that has lasted so long is a good one."""


class CrashLedger:
    """Counts crashes by model and engine."""

    def __init__(self, state: Path) -> None:
        """Read the counts.

        Args:
            state: the state folder.
        """
        self._file = StateFile(state / FILE, "crashes before this start")
        self._known = self._file.read(_parse) or {}

    def add(self, last: PreviousCrash) -> None:
        """Count an abnormal end of the last run against the models in use at that moment."""
        for each in last.calls:
            times = self._times(each.target) + 1
            verb = "loading" if each.kind == "load" else "running"
            why = f"the agent {last.why} while {verb} it"
            self._known[each.target] = (times, why)
            if times >= LIMIT:
                log.error(
                    "model %s: %s, %d times in a row: it is left alone",
                    short_name(each.target),
                    why,
                    times,
                )
            else:
                log.warning(
                    "model %s: %s (%d of %d times)", short_name(each.target), why, times, LIMIT
                )
        if last.calls:
            self._save()

    def barred(self, what: str) -> str | None:
        """Return why a model may not be loaded on an engine, or None if it may.

        Args:
            what: model and engine as `core.flight_recorder.call_target` names them.
        """
        times, why = self._known.get(what, (0, ""))
        if times < LIMIT:
            return None
        return (
            f"{why}, {times} times in a row; use another version or engine, "
            f"or remove {self._file.path} and restart to try it again"
        )

    def problems(self) -> list[str]:
        """List the crashes that are counted and below the limit."""
        return [
            f"model {short_name(what)}: {why} ({times} of {LIMIT} times)"
            for what, (times, why) in self._known.items()
            if times < LIMIT
        ]

    def forgive(self) -> None:
        """Clear the counts below the limit: this run goes well."""
        kept = {what: entry for what, entry in self._known.items() if entry[0] >= LIMIT}
        if kept != self._known:
            self._known = kept
            self._save()

    def _times(self, what: str) -> int:
        return self._known.get(what, (0, ""))[0]

    def _save(self) -> None:
        counts = {what: [times, why] for what, (times, why) in self._known.items()}
        self._file.save({"schema": SCHEMA, "agent": __version__, "counts": counts})


def _parse(content: Any) -> dict[str, tuple[int, str]]:
    """Parse the counts; those of another version of this program are not used."""
    if content["schema"] != SCHEMA or content["agent"] != __version__:
        return {}
    return {str(what): (int(times), str(why)) for what, (times, why) in content["counts"].items()}
