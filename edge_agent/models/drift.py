"""The usual inputs and scores of a model: `drift.json` in a model folder.

Distributions are written and checked here, and measured in `inference/drift`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from math import isclose, isfinite
from typing import Any

from ..core.codec import storable
from ..core.errors import ModelError
from ..core.frozen import record
from ..core.json_text import read_json

DRIFT = "drift.json"
SCHEMA = 1
MAX_BYTES = 2**18
MOST_CHANNELS = 64
"""With more channels, all values are treated as one."""
MOST_EDGES = 63
MOST_INDEX = 14.0
"""Upper bound of an index, which follows from `inference.drift.FLOOR`."""


@storable
@record
class Distribution:
    """How often values fall into each bin."""

    edges: tuple[float, ...]
    """Edges between the bins, ascending. A value equal to an edge belongs to the bin below it."""
    shares: tuple[float, ...]
    """Share of all values in each bin: one more than edges; their sum is 1."""


@storable
@record
class Usual:
    """Distributions of a model's inputs and of its score."""

    results: int
    """Number of results they were made from."""
    inputs: Mapping[str, Distribution]
    """Distribution of the inputs by channel."""
    score: Distribution | None
    """None: its results have no score."""
    floor: float
    """Lower scores were not reported, and count as 0."""


def read(data: bytes, channels: tuple[str, ...], where: str) -> Usual:
    """Read a `drift.json`.

    Raises:
        ModelError: it is malformed.
    """
    try:
        return parse(read_json(data), channels)
    except (ValueError, RecursionError) as problem:
        raise ModelError(f"{where}: {problem}") from None


def parse(content: Any, channels: tuple[str, ...] = ()) -> Usual:
    """Return the content of a `drift.json`.

    Raises:
        ValueError: it is malformed; names the place, what was expected and what was found.
    """
    known = {"schema", "results", "inputs", "score", "floor"}
    if not isinstance(content, dict) or set(content) - known or content.get("schema") != SCHEMA:
        raise ValueError(f"expected an object of schema {SCHEMA} with {', '.join(sorted(known))}")
    results, inputs, floor = (
        content.get("results"),
        content.get("inputs"),
        content.get("floor", 0.0),
    )
    if not isinstance(results, int) or isinstance(results, bool) or results < 1:
        raise ValueError(f"results: expected a whole number above 0, found {results!r}")
    if not isinstance(inputs, dict) or not 1 <= len(inputs) <= MOST_CHANNELS:
        raise ValueError(f"inputs: expected an object of 1 to {MOST_CHANNELS} channels")
    if channels and len(channels) <= MOST_CHANNELS and tuple(inputs) != channels:
        raise ValueError(
            f"inputs: expected the manifest's channels {', '.join(channels)}, "
            f"found {', '.join(inputs)}"
        )
    if not _is_number(floor):
        raise ValueError(f"floor: expected a number, found {floor!r}")
    score = content.get("score")
    return Usual(
        results,
        {name: _distribution(value, f"inputs.{name}") for name, value in inputs.items()},
        None if score is None else _distribution(score, "score"),
        float(floor),
    )


def _distribution(content: Any, where: str) -> Distribution:
    if not isinstance(content, dict) or set(content) != {"edges", "shares"}:
        raise ValueError(f"{where}: expected an object with edges and shares")
    edges, shares = content["edges"], content["shares"]
    for key, numbers in (("edges", edges), ("shares", shares)):
        if not isinstance(numbers, list | tuple) or not all(map(_is_number, numbers)):
            raise ValueError(f"{where}.{key}: expected a list of finite numbers")
    if not 1 <= len(edges) <= MOST_EDGES or any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"{where}.edges: expected 1 to {MOST_EDGES} numbers that rise")
    if len(shares) != len(edges) + 1:
        raise ValueError(
            f"{where}.shares: expected {len(edges) + 1} for {len(edges)} edges, found {len(shares)}"
        )
    if min(shares) < 0 or not isclose(sum(shares), 1.0, abs_tol=1e-3):
        raise ValueError(f"{where}.shares: expected numbers from 0 on whose sum is 1")
    return Distribution(tuple(map(float, edges)), tuple(map(float, shares)))


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False  # integers in JSON are unbounded


def content(usual: Usual) -> dict[str, Any]:
    """Return the content for `drift.json`."""
    return {"schema": SCHEMA, **asdict(usual)}
