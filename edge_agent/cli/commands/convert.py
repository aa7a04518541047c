"""`edge-agent convert`: converts a network to a model folder that computes the same."""

from __future__ import annotations

import argparse
import re
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.text import printable
from ...core.types import TensorSpec
from ..options import Options
from ..progress import Progress, say

if TYPE_CHECKING:
    from ...tools.convert import Conversion

MAX_NUMBERS = 2**28
"""Limit for one input."""
TYPES = ("float32", "float16", "float64", "int32", "int64", "uint8", "int8", "bool")

EXAMPLES = (
    "edge-agent convert net.pt2 -o models/net",
    "edge-agent convert traced.pt --input 1,3,224,224 -o models/net",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "file", metavar="FILE", help="PyTorch's .pt2, TorchScript (.pt), or .tflite"
    )
    parser.add_argument("-o", dest="output", required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        type=_shape,
        metavar="SHAPE",
        help="of TorchScript: what it takes, as 1,3,224,224 or 1,16:int64 (default float32); once "
        "for each input, in order",
    )


def main(options: Options) -> int:
    """Convert; return 1 if that is impossible, or the result computes something else."""
    from ...tools.convert import convert
    from ...tools.folders import move_to, new_folder
    from ..lineup import engines_for

    out = Path(options.output)
    progress = Progress()
    with new_folder(out) as work:
        folder = work / "model"
        folder.mkdir()
        try:
            made = convert(Path(options.file), options.input, engines_for, folder, progress)
        finally:
            progress.close()
        move_to(folder, out)
    _print(made, out)
    say(f"{out}: written")
    return 0


def _shape(text: str) -> TensorSpec:
    sizes, _, kind = text.partition(":")
    kind = kind or TYPES[0]
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*", sizes) or kind not in TYPES:
        raise argparse.ArgumentTypeError(
            f"expected sizes above 0 as 1,3,224,224, and after a colon one of {', '.join(TYPES)}, "
            f"found {text!r}"
        )
    shape = tuple(map(int, sizes.split(",")))
    if prod(shape) > MAX_NUMBERS:
        raise argparse.ArgumentTypeError(f"{text}: more than {MAX_NUMBERS} numbers")
    return TensorSpec("", shape, kind)


def _print(made: Conversion, out: Path) -> None:
    lines = [
        *(f"input    {spec}" for spec in made.facts.inputs),
        *(f"output   {spec}" for spec in made.facts.outputs),
        *(f"assumed  {assumption}" for assumption in made.assumed),
        f"golden   {made.golden}",
        *(
            f"compared on {engine}: the worst output is {distance:.1g} off (relative distance; "
            f"allowed {made.tolerance:g})"
            for engine, distance in made.distances.items()
        ),
        *(f"refused  by {engine}: {why}" for engine, why in made.refused.items()),
        *(f"decide   {question}" for question in made.left),
    ]
    if made.left:
        where = out / "model.toml"
        lines.append(
            f"draft    {where}: decide that there before the model is used"
            if made.needed is None
            else f"draft    {where}: does not serve before that is decided: {made.needed}"
        )
    for line in lines:
        print(printable(line))
