"""Work in a thread that a command waits for."""

from __future__ import annotations

import sys
from functools import partial

from edge_agent.cli.attended import Attendant


def test_work_that_has_ended_ends_no_other() -> None:
    """Its thread may take a moment longer: with Python 3.13, most of `try` then gave no result."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(2000):
            attendant = Attendant()
            assert attendant.call(partial(abs, number), "counting") == number
            assert not attendant.closing.is_set(), number
    finally:
        sys.setswitchinterval(before)
