"""The lines of `edge-agent check`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..core.errors import AgentError, SourceInUseError
from ..core.text import printable


class Report:
    """Prints a line for each check."""

    def __init__(self) -> None:
        self.failed = 0
        self._color = sys.stdout.isatty()

    def line(self, mark: str, subject: str, text: str) -> None:
        shade = {"ok": 32, "FAIL": 31, "note": 33}[mark]
        shown = f"\033[{shade}m{mark:4}\033[0m" if self._color else f"{mark:4}"
        print(f"{shown}  {printable(f'{subject}: {text}')}")
        self.failed += mark == "FAIL"

    def tried(self, subject: str, look: Callable[[], str]) -> bool:
        """Do a check; report the finding or the problem."""
        try:
            self.line("ok", subject, look())
        except AgentError as problem:
            # If the subject ends with the error's first word, that is shown once.
            name = subject.rpartition(" ")[2]
            mark = "note" if isinstance(problem, SourceInUseError) else "FAIL"
            self.line(mark, subject, str(problem).removeprefix(f"{name}: "))
            return False
        return True
