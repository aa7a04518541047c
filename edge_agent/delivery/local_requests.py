"""Requests from `edge-agent add` to the agent running on the same state_dir, as small files.

`add` puts the version into the store and writes a request; the agent tries the version as if it
had been pushed, and writes its state beside the request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..core.errors import ModelError
from ..core.files import copy_owner
from ..core.names import is_name, is_version
from ..core.state_file import StateFile
from ..models.store.store import Store
from .protocol import ENDED

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1


class LocalRequests:
    """The folder of requests; both sides open it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "added"
        self._open: set[Path] = set()
        """In the agent: requests without a final answer yet."""

    # In `add`

    def request(self, name: str, version: str) -> Path:
        """Write a request; return its path."""
        if not self._folder.is_dir():
            self._folder.mkdir(exist_ok=True)
            copy_owner(self._folder, self._store.root)
        request = self._folder / f"{name}@{version}.request"
        self._answer_of(request).unlink(missing_ok=True)
        StateFile(request).write({"name": name, "version": version})
        copy_owner(request, self._store.root)
        return request

    def wait(self, request: Path, on_state: Callable[[str], None], timeout: float) -> None:
        """Wait until the version serves, at most *timeout* seconds for each new state.

        Raises:
            ModelError: it was rejected, or the agent has ended.
        """
        deadline = time.monotonic() + timeout
        last = ""
        while time.monotonic() < deadline:
            answer = self._read(self._answer_of(request))
            state = str(answer.get("state", ""))
            if state and state != last:
                last = state
                deadline = time.monotonic() + timeout
                on_state(state)
            if state in {"live", "probation"}:
                return
            if state == "rejected":
                raise ModelError(str(answer.get("why") or "rejected"))
            if not self._store.has_agent():
                raise ModelError("the agent has ended; it tries the model at its next start")
            time.sleep(POLL_SECONDS)
        raise ModelError(f"the agent has not reported for {timeout:.0f} s")

    def forget(self, request: Path) -> None:
        """Remove a request and its answer."""
        request.unlink(missing_ok=True)
        self._answer_of(request).unlink(missing_ok=True)

    # In the agent

    def take(self) -> list[tuple[str, str, Path]]:
        """Remove the waiting requests, and return name, version, and path of each."""
        found = []
        try:
            requests = sorted(self._folder.glob("*.request"))
        except OSError:  # of a broken disk; whoever asked is told that nothing happens
            return []
        for request in requests:
            content = self._read(request)
            name, version = str(content.get("name", "")), str(content.get("version", ""))
            try:
                request.unlink(missing_ok=True)
            except OSError:  # the disk has become read-only: it would be found again and again
                continue
            if is_name(name) and is_version(version):
                found.append((name, version, request))
                self._open.add(request)
        return found

    def answer(self, request: Path, state: str, why: str | None) -> None:
        """Write the state of a version, until the final one."""
        if request not in self._open:
            return
        if state in ENDED:
            self._open.discard(request)
        try:
            StateFile(self._answer_of(request)).write({"state": state, "why": why})
        except OSError as problem:
            log.warning("%s: answer cannot be written: %s", request, problem.strerror)

    def clear(self) -> None:
        """Remove answers that an earlier agent wrote too late to be read."""
        with suppress(OSError):
            for answer in self._folder.glob("*.answer"):
                answer.unlink(missing_ok=True)

    @staticmethod
    def _answer_of(request: Path) -> Path:
        return request.with_suffix(".answer")

    @staticmethod
    def _read(path: Path) -> dict[str, object]:
        return StateFile(path).read(dict) or {}
