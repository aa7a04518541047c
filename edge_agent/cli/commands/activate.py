"""`edge-agent activate`: makes a version live that the device has accepted before."""

from __future__ import annotations

import argparse

from ...core.errors import UsageError
from ...core.names import is_name, is_version
from ..asking import add_target, ask
from ..options import Options

EXAMPLES = (
    "edge-agent activate parts@2 --device edge-01",
    "edge-agent activate parts@2 --device @lab  every device of the group",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "model", metavar="NAME@VERSION", help="model and version, as `models` lists them"
    )
    add_target(parser)


def main(options: Options) -> int:
    """Ask every device that is online; 0 if the version is live on all of them."""
    name, _, version = options.model.partition("@")
    if not is_name(name) or not is_version(version):
        raise UsageError(
            f"NAME@VERSION: {options.model!r} is not a model and a version; as parts@2"
        )
    return ask(
        options,
        "activate",
        {"model": name, "version": version},
        done=lambda result: f"{name} is live as version {result.get('version')}",
        late="activate it",
    )
