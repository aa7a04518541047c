"""`edge-agent set`: changes properties of a pipeline while it runs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...config.settable import SETTABLE, read_bare
from ...core.errors import RequestError, UsageError
from ...core.names import NAME_RULE, is_name
from ...runtime.pipelines.device_mode import DEVICE
from ..asking import add_target, ask
from ..options import Options

EXAMPLES = (
    "edge-agent set door threshold=0.6 rate=5 --device edge-01",
    "edge-agent set door enabled=OFF --device @lab --persist",
    "edge-agent set door labels=person,car --device edge-01",
    "edge-agent set door threshold=null --persist --device edge-01  take it back",
    f"edge-agent set {DEVICE} mode=night --device edge-01  the mode of rules",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("pipeline", metavar="PIPELINE", help=f"or {DEVICE}, whose mode can be set")
    parser.add_argument(
        "changes", metavar="KEY=VALUE", nargs="+", help=f"KEY: {', '.join(SETTABLE)}"
    )
    parser.add_argument("--persist", action="store_true", help="permanently, not until the restart")
    add_target(parser)


def main(options: Options) -> int:
    """Ask every online device; 0 if it was set on all of them, 1 if not on one."""
    if options.pipeline != DEVICE and not is_name(options.pipeline):
        raise UsageError(f"PIPELINE: {options.pipeline!r} is not a name ({NAME_RULE})")
    changes = dict(map(_read_mode if options.pipeline == DEVICE else _read, options.changes))
    persist = {"persist": True} if options.persist else {}

    def done(result: Any) -> str:
        held = (f"{key} {json.dumps(result.get(key), ensure_ascii=False)}" for key in changes)
        return f"{options.pipeline}: {', '.join(held)}"

    body = {"pipeline": options.pipeline, **changes, **persist}
    return ask(options, "set", body, done=done, late="be set")


def _read(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"KEY=VALUE: found {text!r}; write it as threshold=0.6")
    try:
        read = read_bare(key, value.encode(errors="surrogateescape"))
        if read is not None:
            SETTABLE[key].parse(read)
    except RequestError as problem:
        raise UsageError(str(problem)) from None
    except ValueError as problem:
        raise UsageError(f"{key}: {problem}") from None
    return key, read


def _read_mode(text: str) -> tuple[str, str | None]:
    """Parse mode=NAME."""
    key, _, mode = text.partition("=")
    if key != "mode":
        raise UsageError(f"{key!r} cannot be set of {DEVICE}; what can: mode")
    if not is_name(mode):
        raise UsageError(f"mode: {mode!r} is not a name ({NAME_RULE})")
    return key, None if mode == "null" else mode
