"""`edge-agent keygen`: makes an Ed25519 key pair."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...models.packages.keys import generate_key
from ..options import Options

EXAMPLES = ("edge-agent keygen push.key  makes push.key and push.key.pub",)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", metavar="FILE")


def main(options: Options) -> int:
    """Write both keys; print which is which."""
    public = generate_key(Path(options.file))
    print(f"private  {options.file}  keep it where models are made; it signs packages")
    print(f"public   {public}  put it on devices, in a place that trust.keys names")
    return 0
