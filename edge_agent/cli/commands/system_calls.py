"""Programs of the system that `install` runs, and what it says meanwhile."""

from __future__ import annotations

import subprocess
import sys

from ...core.errors import AgentError


def run(*command: str) -> None:
    """Run a command.

    Raises:
        AgentError: it failed; with its last word.
    """
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise AgentError(
            f"{' '.join(command[:3])}: {words[-1] if words else f'status {done.returncode}'}"
        )


def output(*command: str) -> str:
    """Return what a command prints, whether it fails or not."""
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def progress(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)
