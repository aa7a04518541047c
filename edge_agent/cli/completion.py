"""Generates shell completions for `edge-agent`, and its man page, from its parsers.

Usage: python -m edge_agent.cli.completion DIR; needs the extra `completion`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .. import __version__
from .main import CommandParser, parser


def load(above: CommandParser) -> None:
    """Make every command below declare its options."""
    above.load()
    for action in above._actions:  # noqa: SLF001 - argparse has no other access
        for below in action.choices.values() if isinstance(action.choices, dict) else ():
            load(below)


def main() -> None:
    """Write the files bash, zsh, fish, and man to a folder."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m edge_agent.cli.completion DIR")
    try:
        import shtab
        from argparse_manpage.manpage import Manpage
    except ImportError as problem:
        sys.exit(f"{problem.name} is not installed; run: pip install shtab argparse-manpage")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    whole = parser(listed=True)
    load(whole)
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(shtab.complete(whole, shell), encoding="utf-8")
    page = Manpage(whole)
    page.description = whole.description  # without it, `whatis` and `apropos` do not find it
    page.manual, page.source = "User Commands", f"{whole.prog} {__version__}"
    (folder / "man").write_text(f"{page}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
