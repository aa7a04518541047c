"""`edge-agent pack`: packs a model folder or bare model file into a package."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, time
from functools import partial
from pathlib import Path
from typing import Any

from ...core.errors import ModelError, UsageError
from ...core.text import counted
from ...models.idle_keys import doubtful_keys
from ...models.importing import import_model
from ...models.packages.build import pack
from ...models.packages.keys import load_private
from ...models.packages.package import check_target_form
from ..options import Options

EXAMPLES = (
    "edge-agent pack parts/ -o parts.tar --key push.key",
    "edge-agent pack yolov8n.onnx -o people.tar --target @lab --expires 2030-12-31",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("path", metavar="PATH", help="model folder, .onnx, .xml or .tflite")
    parser.add_argument("-o", dest="output", required=True, metavar="FILE.tar")
    parser.add_argument("--key", metavar="FILE", help="private key to sign with, from keygen")
    parser.add_argument("--expires", metavar="DATE", help="devices refuse it after this day")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="T",
        help="device:ID, profile:NAME or @group; may be given several times; default: any device",
    )


def main(options: Options) -> int:
    """Pack the model, and print the package's content."""
    key = load_private(Path(options.key)) if options.key else None
    out = Path(options.output)
    if out.is_dir():
        raise UsageError(f"-o: {out} is a folder, expected the name of a file")
    for target in options.target:
        try:
            check_target_form(target, "--target")
        except ModelError as problem:
            raise UsageError(str(problem)) from None
    # Not into the package, if that goes to standard output.
    say = partial(print, file=sys.stderr if out.exists() and not out.is_file() else sys.stdout)
    with import_model(Path(options.path)) as imported:
        for assumption in imported.assumptions:
            say(f"assumed  {assumption}")
        for line in doubtful_keys(imported.folder.manifest):
            say(f"note     {line}")
        package = pack(
            imported.folder.path,
            out,
            key=key,
            expires=expiry(options.expires),
            targets=options.target,
        )
    header: Any = package.header
    signed = (
        "signed" if key is not None else "unsigned: devices take it only with trust.allow_unsigned"
    )
    blocks = counted(header.blocks, "block")
    say(f"{out}: {header.id}, {header.size} bytes in {blocks}, {signed}")
    return 0


def expiry(text: str | None) -> datetime | None:
    """Parse a date (the end of that day, UTC) or a time."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
        if len(text) == 10:
            read = datetime.combine(read.date(), time(23, 59, 59))
        read = read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):
        # Overflow: in UTC it is after the year 9999, or before the year 1.
        raise UsageError(f"--expires: {text!r} is not a date; write 2027-06-30") from None
    if read <= datetime.now(UTC):
        raise UsageError(f"--expires: {text} is past already; choose a later day")
    return read
