"""Short runs of `fuzzing`; `scripts/soak/fuzz.py` runs the same for as long as one likes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.helpers.fuzzing import TARGETS


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_nothing_that_is_read_does_harm(name: str) -> None:
    """Whatever is thrown at a reader, it gives something or says in one line what is wrong."""
    target = TARGETS[name]

    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(target.strategy)
    def run(case: Any) -> None:
        target.check(case)

    run()
