"""One pushed version from its first block to being live, killed where the caller says.

Run as a program: `python crash_case.py STATE_DIR PACKAGE [--sweep OUT]`. With --sweep it makes a
copy of STATE_DIR for every fault point and every time that point is reached, runs the push in a
child that dies there, and prints one line of JSON for each: point, nth, folder. Children are forked
from here, where there is one thread, so that a hundred cases cost one start of Python.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from edge_agent.core.files import FAULT_VARIABLE
from edge_agent.inference.prepared.compile import collect
from edge_agent.models.packages.build import Package, open_package
from edge_agent.models.store.housekeeping import clean_leftovers
from edge_agent.models.store.incoming import Incoming
from edge_agent.models.store.install import install_incoming
from edge_agent.models.store.local_blocks import stored_versions
from edge_agent.models.store.pointers import Trial
from edge_agent.models.store.store import Store
from tests.helpers.fault_points import STORE_POINTS

OLDEST = "1"
"""Goes at the end of the push."""
BATCH = 4
"""Blocks between two flushes."""


def push(state: Path, package: Package) -> int:
    """Bring a package in, try it, make it live, delete the oldest; give how many blocks it took."""
    store = Store(state)
    clean_leftovers(store, derived=collect.forms)
    name, version = package.header.name, package.header.version
    sent = 0
    if store.transfer(name, version) != package.transfer:
        with Incoming(store, package.front, package.header, package.blocks) as incoming:
            incoming.fill(stored_versions(store))
            while missing := incoming.missing(BATCH):
                for index in missing:
                    incoming.put(index, package.block(index))
                incoming.flush()
                sent += len(missing)
            install_incoming(store, incoming)
    if store.pointers(name).live != version:
        store.set_trial(name, Trial(version, "trial", since=0.0))
        store.activate(name, version)
    if OLDEST in store.versions(name):
        store.delete(name, OLDEST)
    return sent


def sweep(state: Path, package: Package, out: Path) -> None:
    """Die once in every place."""
    for point in STORE_POINTS:
        for nth in range(1, 1000):
            copy = out / f"{point}-{nth}"
            shutil.copytree(state, copy)
            child = os.fork()
            if child == 0:
                os.environ[FAULT_VARIABLE] = f"{point}:{nth}"
                push(copy, package)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status == 0:  # not reached so often
                shutil.rmtree(copy)
                break
            if os.WTERMSIG(status) != signal.SIGKILL:
                raise SystemExit(f"{point}:{nth}: ended with {status}")
            sys.stdout.write(json.dumps({"point": point, "nth": nth, "folder": str(copy)}) + "\n")


def main() -> None:
    """Run one push, or all that die."""
    opened = open_package(Path(sys.argv[2]))
    if opened is None:
        raise SystemExit("not a package")
    if "--sweep" in sys.argv:
        sweep(Path(sys.argv[1]), opened, Path(sys.argv[-1]))
    else:
        push(Path(sys.argv[1]), opened)


if __name__ == "__main__":
    main()
