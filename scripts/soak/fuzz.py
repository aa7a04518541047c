"""Throws garbage at everything that reads what strangers wrote, for as long as one likes.

    python scripts/soak/fuzz.py [TARGET…] [--seconds N] [--seed N]

The targets are those of `tests/helpers/fuzzing.py`; `tests/end_to_end/test_fuzz.py` runs them in
short. One line a target: how many cases, how many of them failed, and how fast. The smallest case
of each failure is
printed, with the seed that finds it again. Exit status 1 if any failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.helpers.fuzzing import TARGETS, Target

ROUND = 300
"""Cases of one seed; a failure ends its round, and the next seed goes on."""


def fuzz(target: Target, seconds: float, first: int) -> tuple[int, int]:
    """Try a target; gives how many cases there were, and how many rounds found something."""
    cases = failures = 0

    def count(case: object) -> None:
        nonlocal cases
        cases += 1
        target.check(case)

    deadline, number = time.monotonic() + seconds, first
    while time.monotonic() < deadline:
        rounds = settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        run = seed(number)(rounds(given(target.strategy)(count)))
        try:
            # What Hypothesis prints of a failure is in the exception's notes too.
            with contextlib.redirect_stdout(io.StringIO()):
                run()
        except Exception:  # noqa: BLE001 - whatever it is, it is what we are here for
            failures += 1
            print(f"{target.name}: seed {number}", flush=True)
            # A case may be an array of thousands of numbers.
            print(traceback.format_exc(limit=-6)[:4000], flush=True)
        number += 1
    return cases, failures


def main() -> int:
    """Run the targets one after the other."""
    logging.disable()  # what the readers have to say of garbage
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60, help="for each target; default 60")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; default 0")
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    worst = 0
    for name in options.targets or TARGETS:
        began = time.monotonic()
        cases, failures = fuzz(TARGETS[name], options.seconds, options.seed)
        took = time.monotonic() - began
        print(f"{name:10} {cases:8} cases {failures:4} failures {took:7.0f} s", flush=True)
        worst = max(worst, failures)
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
