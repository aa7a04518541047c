"""A command is one module and one line: the smallest one works without touching another file."""

from __future__ import annotations

import argparse

import pytest

from edge_agent.cli.main import Command, CommandParser, add_commands, command_module

# The module of the command: this one.


EXAMPLES = ("edge-agent greet world",)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")


def main(options: argparse.Namespace) -> int:
    print(f"hello {options.name}")
    return 3


GREET = Command("greet", "print a greeting", __name__)


def test_the_smallest_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its arguments are parsed, its help is shown, its status is returned."""
    parser = CommandParser(prog="edge-agent")
    add_commands(parser, [GREET], "command", "COMMAND")
    options = parser.parse_args(["greet", "world"])
    assert command_module(options.module).main(options) == 3
    assert capsys.readouterr().out == "hello world\n"
    assert "print a greeting" in parser.format_help()
