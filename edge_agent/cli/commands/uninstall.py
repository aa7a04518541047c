"""`edge-agent uninstall`: remove the systemd service."""

from __future__ import annotations

import argparse

from ..options import Options
from .install import check_system, uninstall

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
    """Remove the service; settings, keys and models stay."""
    check_system("uninstall")
    return uninstall(forget=options.forget)
