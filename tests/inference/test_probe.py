"""What a network is probed with, and how runs are timed."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.core.types import TensorSpec
from edge_agent.inference.probe import probe_input, probe_inputs, race


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8", "int64", "bool"])
def test_probes_are_noise_that_comes_again(dtype: str) -> None:
    """By their seed, of the type and shape asked for, and wide integers fit for an index."""
    spec = TensorSpec("x", (None, 40), dtype)
    (one,), (other,) = probe_inputs([spec], 3).values(), probe_inputs([spec], 3).values()
    assert (one.shape, one.dtype.name) == ((1, 40), dtype)
    assert np.array_equal(one, other)
    assert len(np.unique(one)) > 1
    assert dtype != "int64" or one.min() >= 0


def test_a_quiet_probe_stays_near_the_middle() -> None:
    """At a tenth of the loudness, integers too."""
    quiet = probe_input(TensorSpec("x", (500,), "uint8"), np.random.default_rng(1), 0.1)
    assert (quiet.min() >= 115, quiet.max() <= 141) == (True, True)


def test_a_race_goes_in_turns() -> None:
    """Each run is called once in every round, after the one before it."""
    order: list[tuple[str, int]] = []
    took = race([lambda n: order.append(("a", n)), lambda n: order.append(("b", n))], 3)
    assert order == [(name, number) for number in range(3) for name in "ab"]
    assert [len(times) for times in took] == [3, 3]
