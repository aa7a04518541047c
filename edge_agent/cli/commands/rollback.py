"""`edge-agent rollback`: goes back to the previous version."""

from __future__ import annotations

import argparse

from ...core.errors import UsageError
from ...core.names import NAME_RULE, is_name
from ..asking import add_target, ask
from ..options import Options

EXAMPLES = (
    "edge-agent rollback parts --device edge-01",
    "edge-agent rollback parts --device @lab  every device of the group",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", metavar="NAME", help="the model's name")
    add_target(parser)


def main(options: Options) -> int:
    """Ask every device that is online; 0 if all of them went back, 1 if one did not."""
    name: str = options.name
    if not is_name(name):
        raise UsageError(f"NAME: {name!r} is not a name ({NAME_RULE})")
    return ask(
        options,
        "rollback",
        {"model": name},
        done=lambda result: f"{name} is back at version {result.get('version')}",
        late="go back",
    )
