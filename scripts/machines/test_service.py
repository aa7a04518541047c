"""Installs edge-agent on a bare Debian with systemd, and does to it what happens to services.

    sudo scripts/machines/test-service [ROOT] [--work DIR] [--keep]

ROOT is a Debian 12 root file system with systemd, made by mmdebstrap where none is given; nothing
is written to it. Needs systemd-container, mmdebstrap, a network for apt, and a Python 3.11 with pip
that may download wheels. Takes about ten minutes. One line for each thing seen; ends with 1 at the
first that is not as it should be.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import service_access as access
import service_faults as faults
import service_hangs as hangs
import service_life as life
from nspawn import Failed, gather_wheels, make_root, overlay, put_in, say
from service_box import UNIT, Box

STEPS = (
    life.is_bare,
    life.installs,
    life.is_hardened,
    life.has_a_broker,
    partial(life.runs_on, engine="openvino"),
    partial(life.runs_on, engine="onnxruntime"),
    access.takes_a_credential,
    access.lets_in_who_may,
    life.takes_a_push,
    life.takes_a_model_from_root,
    life.logs_with_fields,
    life.reloads,
    life.stops_and_starts,
    faults.survives_a_flood,
    hangs.survives_being_stopped_dead,
    hangs.survives_a_wedged_engine,
    faults.survives_kills,
    faults.is_tried_again_when_given_up_on,
    faults.is_never_restarted_in_a_loop,
    faults.upgrades,
    faults.rolls_back,
    faults.comes_back_after_a_restart_of_the_machine,
    faults.is_uninstalled,
)


def main() -> int:
    """Get what is needed, and run the trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, help="of a bare Debian 12")
    parser.add_argument("--work", type=Path, help="room for 5 GB; default: the system's")
    parser.add_argument("--keep", action="store_true", help="leave what was made for a next run")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("boots a container: run it with sudo")
    missing = [
        tool for tool in ("systemd-nspawn", "nsenter", "mmdebstrap") if not shutil.which(tool)
    ]
    if missing:
        parser.error(f"missing: {', '.join(missing)}; apt install systemd-container mmdebstrap")
    # So that what was begun is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = Path(tempfile.mkdtemp(prefix="edge-agent-service-", dir=options.work))
    try:
        root = options.root or make_root(work / "root")
        wheels = gather_wheels(work / "wheels")
        with overlay(root, work) as merged:
            put_in(merged, wheels)
            go_through(Box(merged))
    except Failed as problem:
        say(f"FAIL {problem}")
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    say("all is as it should be")
    return 0


def go_through(box: Box) -> None:
    """Do everything, in order."""
    box.machine.boot()
    try:
        for step in STEPS:
            step(box)
    except BaseException:
        print(box.run(f"journalctl -u {UNIT} -n 40 --no-pager", check=False))
        raise
    finally:
        box.machine.halt()


if __name__ == "__main__":
    sys.exit(main())
