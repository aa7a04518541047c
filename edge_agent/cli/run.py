"""`edge-agent run`: the daemon, in the foreground."""

from __future__ import annotations

from . import Options, load_settings


def main(options: Options) -> int:
    """Run until told to stop."""
    settings = load_settings(options, needed=True)
    from ..agent import run

    return run(settings, lambda: load_settings(options, needed=True))
