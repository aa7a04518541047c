"""`edge-agent rollout`: rolls a package out to a fleet in waves, with gates."""

from __future__ import annotations

import argparse

from ..main import Command, add_commands

KINDS = (
    Command("start", "roll a package out by a plan, and lead it to its end", "rollout_start"),
    Command("status", "how far roll-outs are, and what is not well", "rollout_status"),
    Command("pause", "let no more devices begin", "rollout_change"),
    Command("resume", "continue one that was paused, or has no leader", "rollout_change"),
    Command(
        "abort",
        "let no more devices install it; with --back, those that have it go back",
        "rollout_change",
    ),
    Command("finish", "remove it and its package from the broker", "rollout_change"),
)
EXAMPLES = (
    "edge-agent rollout start parts-3.toml --key push.key",
    "edge-agent rollout status",
    "edge-agent rollout abort --back --key push.key",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands, each in a separate module."""
    add_commands(parser, KINDS, "rollout", "WHAT")
