"""`edge-agent run`: the daemon, in the foreground."""

from __future__ import annotations

import signal
import sys

from . import Options, load_settings


def main(options: Options) -> int:
    """Run until told to stop."""
    # Told to stop before there is anything to stop: that is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = load_settings(options, needed=True)
    from ..agent import run

    return run(settings, lambda: load_settings(options, needed=True), options.clock)
