"""Control groups with a limit on memory, in which the kernel kills."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.support import wait_until

V1 = Path("/sys/fs/cgroup/memory")
FILL = "kept = []\nwhile True: kept.append(b'x' * 2**20)\n"
"""A program that takes memory until it is killed."""


@contextmanager
def limited(megabytes: int) -> Iterator[Path]:
    """Give the list of processes of a new control group, which must have ended at the end."""
    top, limit = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V1.parent, "memory.max")
    group = top / f"edge-agent-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / limit).write_text(str(megabytes * 2**20))
    except OSError as problem:
        pytest.skip(f"needs control groups that can be written: {problem}")
    members = group / "cgroup.procs"
    try:
        yield members
    finally:
        wait_until(lambda: not members.read_text(), "its processes to end")
        group.rmdir()


def filling(members: Path) -> str:
    """Make a program that joins a group and fills it."""
    return f"open({str(members)!r}, 'w').write('0')\n{FILL}"
