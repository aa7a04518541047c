"""Which versions are on their way to serve, and how far they are.

Filled by the deployer's thread, and by whoever submits a candidate; asked by any thread.
"""

from __future__ import annotations

from typing import Any, Literal

from ...core.errors import ModelError
from ...core.names import is_name
from ...models.store.catalog import Library
from ...models.store.pointers import same_version
from .candidate import Candidate
from .probation import Probations
from .trial_marks import Mark


class Underway:
    """From "it has arrived" to the end of its probation."""

    def __init__(self, library: Library, probations: Probations) -> None:
        self._library = library
        self._probations = probations
        self._submitted: list[Candidate] = []
        """On their way to the deployer's thread, or being installed by it."""
        self._candidates: dict[str, Candidate] = {}
        """In that thread's hands, by the name of the model."""
        self.unresumed: dict[str, Mark] = {}
        """Probations from before the start, until the models are loaded."""

    # A candidate's way

    def submit(self, candidate: Candidate) -> None:
        """Note that it is here; its turn comes."""
        self._submitted.append(candidate)

    def begin(self, candidate: Candidate) -> None:
        """Show it as its model's candidate, if it has a name yet."""
        if is_name(candidate.name):
            self._candidates[candidate.name] = candidate

    def installed(self, candidate: Candidate) -> None:
        """Show it under the name that it has in the store."""
        self._candidates[candidate.name] = candidate
        self._submitted.remove(candidate)

    def leave(self, candidate: Candidate) -> None:
        """Show it no longer; may be called twice."""
        self._candidates.pop(candidate.name, None)
        if candidate in self._submitted:
            self._submitted.remove(candidate)

    def abort(self, name: str, why: str) -> None:
        """Have a model's candidate, if there is one, go no further."""
        candidate = self._candidates.get(name)
        if candidate is not None:
            candidate.aborted = why

    # Questions

    def watches(self, name: str) -> bool:
        """Whether a version of a model is on its way to serve, or on probation."""
        return (
            name in self._candidates
            or self._probations.of(name) is not None
            or name in self.unresumed
            or any(candidate.name == name for candidate in list(self._submitted))
        )

    def standing(self, name: str, version: str) -> str | None:
        """Say how far a version is that is here already, as section 5 has it."""
        mark = self.unresumed.get(name)
        if mark is not None and same_version(mark.version, version):
            return "preparing"  # whether it stays live is about to be decided
        for candidate in (self._candidates.get(name), *list(self._submitted)):
            if (
                candidate is not None
                and candidate.name == name
                and same_version(candidate.version, version)
            ):
                return candidate.phase
        return self.serves(name, version)

    def serves(self, name: str, version: str) -> Literal["live", "probation"] | None:
        """Say whether a version serves."""
        if self._probations.serves(name, version):
            return "probation"
        try:
            live = self._library.live(name).manifest.version
        except ModelError:
            return None
        return "live" if same_version(live, version) else None

    def state(self, name: str) -> dict[str, Any]:
        """Give what the model's topic says of its candidate; empty where there is none."""
        candidate, probation = self._candidates.get(name), self._probations.of(name)
        if candidate is not None:
            version, phase = candidate.version, candidate.phase
        elif probation is not None:
            version, phase = probation.candidate.version, "probation"
        else:
            return {}
        return {"candidate": {"version": version, "phase": phase, "percent": 100.0}}

    def names(self) -> set[str]:
        """Name the models that have a candidate, or a version on probation."""
        return set(self._candidates) | self._probations.names()
