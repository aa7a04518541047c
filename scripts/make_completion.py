"""Prints what a shell completes of `edge-agent`, or its man page, from its parsers.

Usage: python scripts/make_completion.py bash|zsh|fish|man; needs shtab, or argparse-manpage.
"""

from __future__ import annotations

import sys

from edge_agent.cli.main import CommandParser, parser

FORMS = ("bash", "zsh", "fish", "man")


def load(above: CommandParser) -> None:
    """Have every command below declare its options."""
    above.load()
    for action in above._actions:  # noqa: SLF001 - there is no other way to them
        for below in action.choices.values() if isinstance(action.choices, dict) else ():
            load(below)


def main() -> None:
    """Print it."""
    form = sys.argv[1] if len(sys.argv) == 2 else ""
    if form not in FORMS:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(FORMS)}")
    whole = parser(listed=True)
    load(whole)
    try:
        if form == "man":
            from argparse_manpage.manpage import Manpage

            print(Manpage(whole))
        else:
            import shtab

            print(shtab.complete(whole, form))
    except ImportError as problem:
        sys.exit(f"{problem.name} is not installed; run: pip install shtab argparse-manpage")


if __name__ == "__main__":
    main()
