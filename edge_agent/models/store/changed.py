"""The error about a stored version that the disk has changed."""

from __future__ import annotations

PUSH_AGAIN = "push it again"


def changed_words(version: str, what: str) -> str:
    """Return the error about a stored version, *what* of which is not as it was installed."""
    return (
        f"{version}: {what} has changed on the disk since it was installed; "
        f"{PUSH_AGAIN}, or where that is refused, as a higher version, and mind the disk"
    )
