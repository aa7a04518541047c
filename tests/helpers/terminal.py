"""A terminal of a given size with a command in it, as its user sees it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pyte
import pytest

from tests.helpers.support import CHECKOUT, PATIENCE


class Terminal:
    """Runs `edge-agent` in a pseudo-terminal; a context, at whose end the command is ended."""

    def __init__(
        self,
        *arguments: str,
        columns: int,
        lines: int,
        cwd: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=10000)
        self.raw = b""
        """All that the command has written."""
        self.screens: list[list[str]] = []
        """What was to be seen after each piece of output."""
        self._stream = pyte.Stream(self.screen)
        self._changed = threading.Condition()
        self._over = False
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        kept = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edge_agent", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={
                **kept,
                "TERM": "xterm-256color",
                "PYTHONPATH": str(CHECKOUT),
                **(environ or {}),
            },
            # Ctrl-C, typed, reaches who has this terminal.
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(theirs)
        self._ours = ours
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                data = b""  # the other side has been closed
            with self._changed:
                self._over = not data
                self.raw += data
                self._stream.feed(decoder.decode(data))
                self.screens.append([line.rstrip() for line in self.screen.display])
                self._changed.notify_all()
            if not data:
                return

    @property
    def display(self) -> list[str]:
        """What is to be seen now, without the spaces at the ends of lines."""
        with self._changed:
            return [line.rstrip() for line in self.screen.display]

    @property
    def scrolled(self) -> int:
        """How many lines have left the screen at its top."""
        with self._changed:
            return len(self.screen.history.top)

    @property
    def text(self) -> str:
        """All lines, those that have left the screen as well."""
        with self._changed:
            gone = [
                "".join(line[column].data for column in range(self.screen.columns)).rstrip()
                for line in self.screen.history.top
            ]
        return "\n".join(gone + self.display)

    def wait_for(self, wanted: Callable[[list[str]], Any], what: str) -> Any:
        """Wait until *wanted* finds what it looks for on the screen; give it."""
        found: Any = None

        def look() -> bool:
            nonlocal found
            found = wanted([line.rstrip() for line in self.screen.display])
            return bool(found) or self._over

        with self._changed:
            self._changed.wait_for(look, PATIENCE)
        if not found:
            state = f"status {self.process.poll()}, reading: {self._reader.is_alive()}"
            shown = "\n".join(self.display)
            pytest.fail(f"waited in vain for {what} ({state}); on the screen:\n{shown}")
        return found

    def press(self, keys: str) -> None:
        """Type something; the character 3 is Ctrl-C."""
        os.write(self._ours, keys.encode())

    def wait(self) -> int:
        """Wait until the command has ended and all of its output is here; give its status."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Asked first: killed, it would leave what it has started.
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(PATIENCE)
        os.close(self._ours)
