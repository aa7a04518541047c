"""`edge-agent schema`: JSON Schemas of payloads and settings, or all topics as AsyncAPI."""

from __future__ import annotations

import argparse
import json

from ...core.errors import UsageError
from ...core.schema import nearest
from ..options import Options
from ..schemas import asyncapi, document, kinds, schemas
from ..settings_example import settings_example

EXAMPLES = (
    "edge-agent schema result",
    "edge-agent schema settings",
    "edge-agent schema settings --toml",
    "edge-agent schema --asyncapi",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        help=f"one of {', '.join(kinds(schemas()))}; default all, in one document",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--asyncapi", action="store_true", help="all topics, as AsyncAPI 3")
    form.add_argument("--toml", action="store_true", help="of settings: a commented example of all")


def main(options: Options) -> int:
    """Print the schema."""
    if options.asyncapi and options.kind is not None:
        raise UsageError("--asyncapi: is of all topics; leave out KIND")
    known = kinds(schemas())
    if options.kind is not None and options.kind not in known:
        raise UsageError(f"KIND: there is no {options.kind!r}{nearest(options.kind, known)}")
    if options.toml:
        if options.kind != "settings":
            raise UsageError("--toml: is of the settings; write: schema settings --toml")
        print(settings_example(), end="")
        return 0
    made = asyncapi() if options.asyncapi else document(options.kind)
    print(json.dumps(made, indent=2, ensure_ascii=False))
    return 0
