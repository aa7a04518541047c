"""`edge-agent uninstall`: remove the systemd service."""

from __future__ import annotations

import argparse

from ..options import Options
from .install import check_system, uninstall

EXAMPLES = ("sudo edge-agent uninstall",)


def arguments(_: argparse.ArgumentParser) -> None:
    """Declare the command's options: there are none."""


def main(_: Options) -> int:
    """Remove the service; settings, keys and models stay."""
    check_system("uninstall")
    return uninstall()
