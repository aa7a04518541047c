"""How `edge-agent add` and an agent at work on the same state_dir speak: by small files.

`add` puts the version into the store and leaves a request; the agent tries the version as if it
had been pushed, and leaves the answer beside the request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ..core.errors import ModelError
from ..core.files import copy_owner
from ..core.names import is_name, is_version
from ..core.state_file import StateFile
from ..models.store.store import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
ENDED = frozenset({"live", "probation", "rejected"})
"""After one of these nobody listens any more."""


class Added:
    """The folder of requests; both sides have one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "added"
        self._open: set[Path] = set()
        """Of the agent: requests that have no final answer yet."""

    # In `add`

    def ask(self, name: str, version: str) -> Path:
        """Leave a request."""
        if not self._folder.is_dir():
            self._folder.mkdir(exist_ok=True)
            copy_owner(self._folder, self._store.root)
        request = self._folder / f"{name}@{version}.request"
        self._answer_of(request).unlink(missing_ok=True)
        StateFile(request).write({"name": name, "version": version})
        copy_owner(request, self._store.root)
        return request

    def wait(self, request: Path, say: Callable[[str], None], timeout: float) -> None:
        """Wait until the version serves.

        Raises:
            ModelError: it was rejected, or the agent has gone.

        """
        deadline = time.monotonic() + timeout
        said = ""
        while time.monotonic() < deadline:
            answer = self._read(self._answer_of(request))
            state = str(answer.get("state", ""))
            if state and state != said:
                said = state
                deadline = time.monotonic() + timeout
                say(state)
            if state in {"live", "probation"}:
                return
            if state == "rejected":
                raise ModelError(str(answer.get("why") or "rejected"))
            if not self._store.has_agent():
                raise ModelError("the agent has ended; it tries the model at its next start")
            time.sleep(POLL_SECONDS)
        raise ModelError(f"the agent has said nothing for {timeout:.0f} s")

    def forget(self, request: Path) -> None:
        """Clean up after oneself."""
        request.unlink(missing_ok=True)
        self._answer_of(request).unlink(missing_ok=True)

    # In the agent

    def requests(self) -> list[tuple[str, str, Path]]:
        """Take the requests there are: name, version and where."""
        found = []
        if not self._folder.is_dir():
            return []
        for request in sorted(self._folder.glob("*.request")):
            asked = self._read(request)
            name, version = str(asked.get("name", "")), str(asked.get("version", ""))
            request.unlink(missing_ok=True)
            if is_name(name) and is_version(version):
                found.append((name, version, request))
                self._open.add(request)
        return found

    def answer(self, request: Path, state: str, why: str | None) -> None:
        """Say how far it is, until it has ended."""
        if request not in self._open:
            return
        if state in ENDED:
            self._open.discard(request)
        try:
            StateFile(self._answer_of(request)).write({"state": state, "why": why})
        except OSError as problem:
            log.warning("%s: cannot be answered: %s", request, problem.strerror)

    def clear(self) -> None:
        """Remove answers that nobody has waited for until an agent before us gave them."""
        for answer in self._folder.glob("*.answer"):
            answer.unlink(missing_ok=True)

    @staticmethod
    def _answer_of(request: Path) -> Path:
        return request.with_suffix(".answer")

    @staticmethod
    def _read(path: Path) -> dict[str, object]:
        return StateFile(path).read(dict) or {}
