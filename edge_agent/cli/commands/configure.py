"""`edge-agent configure`: changes pipelines' settings from a file, on probation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.errors import UsageError
from ...core.files import read_plain_file
from ...core.json_text import read_json
from ...core.schema import read_toml
from ...core.text import closest
from ..asking import add_target, ask
from ..options import Options

EXAMPLES = (
    "edge-agent configure door.toml --device edge-01         until the restart",
    "edge-agent configure door.toml --device @lab --persist --key push.key",
)
MAX_BYTES = 60 * 1024
"""Limit for a patch: a device takes commands of 64 KiB."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="TOML with [[pipelines]] or [pipelines.NAME], of which only what changes; or JSON, a "
        "merge patch by name of pipeline, where null removes",
    )
    parser.add_argument("--persist", action="store_true", help="permanently, not until the restart")
    words = "private key that signs what lies on the broker for a group, with --persist"
    parser.add_argument("--key", metavar="FILE", help=words)
    words = "how long it lies there for members that are offline; default 14d"
    parser.add_argument("--expires", default="14d", metavar="SPAN", help=words)
    add_target(parser)


def main(options: Options) -> int:
    """Ask every device that is online; 0 if all have passed their probation, 1 if one has not."""
    body = _read(Path(options.file))
    if options.persist:
        if options.device.startswith("@") and "if" not in body:
            from .configure_group import configure_group

            if (status := configure_group(options, body["pipelines"])) is not None:
                return status
        body["persist"] = True

    def done(result: Mapping[str, Any]) -> str:
        changed = result.get("pipelines")
        names = ", ".join(changed) if isinstance(changed, dict) and changed else "nothing"
        return f"{names} changed; the hash is {result.get('hash')}"

    return ask(options, "configure", body, done=done, late="take it over", follow="config")


def _read(path: Path) -> dict[str, Any]:
    """Read a patch.

    Raises:
        UsageError: the file does not contain a patch.
    """
    data = _json(path) if path.suffix == ".json" else read_toml(path, UsageError)
    if path.suffix == ".json" and not isinstance(data.get("pipelines"), dict | list):
        data = {"pipelines": data}
    others = [key for key in data if key not in {"pipelines", "if"}]
    if others:
        close = closest(others[0], ["pipelines"], cutoff=0.5)
        meant = f"; did you mean '{close}'?" if close else ""
        raise UsageError(f"{path}: {others[0]}: only pipelines can be changed from afar{meant}")
    pipelines = data.get("pipelines")
    if isinstance(pipelines, list):
        named = [each for each in pipelines if isinstance(each, dict)]
        names = [each.pop("name", None) for each in named]
        if len(named) != len(pipelines) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"{path}: pipelines: each needs a `name`")
        if len(set(names)) != len(names):
            raise UsageError(f"{path}: pipelines: two have one name")
        data["pipelines"] = dict(zip(names, named, strict=True))
    if not isinstance(data.get("pipelines"), dict) or not data["pipelines"]:
        raise UsageError(f"{path}: names no pipeline; write [[pipelines]] with a `name`")
    try:
        size = len(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError):
        raise UsageError(f"{path}: holds a date, or a number that is not finite") from None
    if size > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES // 1024} KiB; send it in parts")
    return data


def _json(path: Path) -> dict[str, Any]:
    try:
        data = read_json(read_plain_file(path, MAX_BYTES, UsageError, "a patch"))
    except OSError as problem:
        raise UsageError(f"{path}: cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: is not JSON") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected an object by names of pipelines")
    return data
