"""Runs a form, under a limit on memory where one is given, and prints what came of it as JSON.

Run as a program: `python streaming_case.py FORM WAY LIMIT_MB RUNS`; with a limit it puts itself
into a control group of its own, which takes root. Its highest use counts libraries and the page
cache, as a service's MemoryMax does.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/memory")


def limit(megabytes: int) -> Path:
    """Move this process into a control group with a limit on memory."""
    group = GROUPS / f"edge-agent-test-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(megabytes * 2**20))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return group


def main(folder: str, way: str, megabytes: int, runs: int) -> None:
    """Load, run, and say how it went."""
    group = limit(megabytes) if megabytes else None
    import numpy as np

    from edge_agent.inference.prepared.artifact import read
    from tests.helpers.prepared_models import engine_of

    form = read(folder)
    engine = engine_of(form, way)
    (spec,) = engine.inputs
    digest, took = hashlib.sha256(), []
    for seed in range(runs):
        sizes = [size or 1 for size in spec.shape]
        x = np.random.default_rng(seed).standard_normal(sizes, np.float32)
        begin = time.perf_counter()
        for array in engine.infer({spec.name: x}).values():
            digest.update(array.tobytes())
        took.append(round((time.perf_counter() - begin) * 1e3, 1))
    answer: dict[str, object] = {"outputs": digest.hexdigest(), "ms": took}
    if group is not None:
        answer["most_mb"] = int((group / "memory.max_usage_in_bytes").read_text()) / 2**20
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
