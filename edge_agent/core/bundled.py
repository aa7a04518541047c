"""Models, clips, profiles, units and tested versions that come with the program."""

from __future__ import annotations

from pathlib import Path

from .errors import UsageError


def bundled(kind: str) -> Path:
    """Return a bundled folder: next to the code in a wheel, at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "_bundled" / kind, package.parent / kind):
        if place.is_dir():
            return place
    raise UsageError(f"the installation lacks its folder '{kind}'; install edge-agent again")


def constraints() -> Path:
    """Return the file that pins the exact versions the tests ran with."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_bundled" / "constraints.txt"
    return inside if inside.is_file() else package.parent / "scripts" / "constraints.txt"
