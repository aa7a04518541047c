"""`edge-agent` and `python -m edge_agent`."""

from __future__ import annotations

import os
import sys

from .start.clock import Clock


def main() -> int:
    """Run the command line; gives the exit status."""
    clock = Clock()
    from .start.begin import begin

    status = begin(sys.argv[1:], clock)
    if status is not None:
        return status
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is not there yet
    except FileNotFoundError:
        sys.stderr.write(
            "edge-agent: the working directory has been removed; change to another one, e.g. cd /\n"
        )
        return 2
    from .cli import main as command_line

    return command_line(sys.argv[1:], clock)


if __name__ == "__main__":
    sys.exit(main())
