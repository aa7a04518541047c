"""`edge-agent` and `python -m edge_agent`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; gives the exit status."""
    from .cli import main as command_line

    return command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
