"""`edge-agent run`: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ...config.locations import config_file
from ...daemon.fast_start.fingerprint import digest
from ..options import Options, add_config, load_settings

if TYPE_CHECKING:
    from ...config.settings import Settings


EXAMPLES = (
    "edge-agent run --config my/edge-agent.toml",
    "EDGE_AGENT_BROKER__URL=mqtt://broker.lan edge-agent run",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_config(parser)


def main(options: Options) -> int:
    """Run until told to stop."""
    start = time.monotonic()
    config = config_file(options.config)
    # Before the settings are read, so that the next start notices changes made meanwhile.
    origins = digest(config)
    settings = load_settings(options, needed=True)
    options.timeline.record("settings", time.monotonic() - start)
    start = time.monotonic()
    from ...daemon.agent import run

    options.timeline.record("imports", time.monotonic() - start)

    def reread() -> Settings:
        again: Settings = load_settings(options, needed=True)
        return again

    return run(settings, reread, options.timeline, (config, origins))
