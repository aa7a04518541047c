"""Options shared by several commands: types of arguments, and the settings that they read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..core.errors import UsageError

Options = argparse.Namespace


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings; default /etc/edge-agent/config.toml, else ./edge-agent.toml",
    )


def add_broker(parser: argparse.ArgumentParser) -> None:
    """Add `--broker` and `--config`, for a command that talks to a broker."""
    parser.add_argument(
        "--broker", metavar="URL", help="mqtt://[user[:password]@]host[:port] or mqtts://…"
    )
    add_config(parser)


def positive(text: str) -> float:
    """Parse a number above 0."""
    return _number(text, "above 0", lambda value: 0 < value < float("inf"))


def not_negative(text: str) -> float:
    """Parse a number of at least 0."""
    return _number(text, "from 0", lambda value: 0 <= value < float("inf"))


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    return _number(text, "from 0 to 1", lambda value: 0 <= value <= 1)


def _number(text: str, bounds: str, is_within: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")  # within no bounds
    if not is_within(value):
        raise argparse.ArgumentTypeError(f"expected a number {bounds}, found {text!r}")
    return value


def positive_int(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, found {text!r}")
    return int(text)


def load_settings(
    options: Any, *, needed: bool = False, change: Callable[[Any], Any] = lambda settings: settings
) -> Any:
    """Read the settings that a command line names, or the default file; *change* as for `load`."""
    from ..config.load import find_file, load
    from ..config.locations import PLACES

    file = find_file(options.config)
    if file is None and needed:
        places = " nor ".join(PLACES)
        raise UsageError(
            f"no settings: neither {places} is there; write one, or name it with --config FILE"
        )
    return load(file, change=change)
