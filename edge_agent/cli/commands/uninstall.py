"""`edge-agent uninstall`: removes the systemd service."""

from __future__ import annotations

import argparse

from ...core.errors import UsageError
from ..options import Options
from .install import check_system, uninstall
from .installation import alone, by_dpkg, packaged

EXAMPLES = (
    "sudo edge-agent uninstall",
    "sudo edge-agent uninstall --forget  the broker forgets the device, too",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--forget", action="store_true", help="clear what the device left retained on the broker"
    )


def main(options: Options) -> int:
    """Remove the service; settings, keys, and models stay."""
    check_system("uninstall")
    if (version := packaged()) is not None and not by_dpkg():
        words = f"it came with the package edge-agent {version}; remove that"
        raise UsageError(f"{words}: sudo apt remove edge-agent, or purge")
    with alone():
        return uninstall(forget=options.forget)
