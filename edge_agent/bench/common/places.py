"""Where the benchmarks keep what they make."""

from __future__ import annotations

import os
from pathlib import Path

from ...core.errors import UsageError


def cache_folder() -> Path:
    """Return the cache folder (XDG Base Directory Specification), creating it where needed.

    It is on a disk, unlike /tmp on many systems: reading from it is what is measured.

    Raises:
        UsageError: there is no home to keep it in, or it cannot be written.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if given.startswith("/") else Path.home() / ".cache"
        folder = base / "edge-agent" / "bench"
        folder.mkdir(parents=True, exist_ok=True)
    except RuntimeError:
        raise UsageError(
            "no home folder to keep generated models in; set XDG_CACHE_HOME to a folder"
        ) from None
    except OSError as problem:
        raise UsageError(
            f"{folder}: {problem.strerror}; set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    return folder
