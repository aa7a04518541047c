"""The command line: the list of commands, exit statuses, and signals.

Each command is a module in `commands` with two functions: `arguments(parser)` declares its options,
`main(options)` runs it and returns the exit status; its `EXAMPLES` end its help. The module is only
imported when the command or its help is requested. To add a command, write a module and add a line
to `GROUPS`.
"""

from __future__ import annotations

import argparse
import codecs
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple, NoReturn, TextIO

from .. import __version__
from ..core.errors import AgentError, print_error, system_limit
from ..core.logs import set_up
from ..core.text import closest, encodable, one_line
from ..core.timeline import Timeline


class Command(NamedTuple):
    """A command, as shown in the list."""

    name: str
    help: str
    module: str = ""
    """Module in `edge_agent.cli.commands`, or a full name; empty: the same as the command."""


GROUPS = (
    (
        "daily use",
        (
            Command("demo", "everything at once with nothing set up, results live in the terminal"),
            Command("try", "a model on a source, without settings, broker or manifest", "try_"),
            Command("run", "the daemon, in the foreground"),
            Command(
                "check",
                "whether settings, profile, engines, sources, broker and models are fit to run",
            ),
            Command("status", "one look: a line per device and pipeline; 1 if one is not ok"),
            Command("tail", "follow what devices publish, one line per message"),
            Command("evidence", "clips and pictures of events: list them, save them"),
            Command("ui", "the operator's page in a browser, fed by the broker alone"),
            Command("configure", "change pipelines of devices from a file, on probation"),
            Command("set", "change properties of a pipeline while it runs", "set_"),
            Command("infer", "ask a model of a running agent: a picture, a recording, or JSON"),
        ),
    ),
    (
        "models",
        (
            Command("add", "install a model from a local path, no broker needed"),
            Command("push", "send a model over MQTT, until it serves"),
            Command("rollout", "a package to a fleet in waves, with gates"),
            Command("rollback", "go back to the previous version"),
            Command("activate", "make a version live that was accepted before"),
            Command("models", "what each device has, runs and is trying"),
            Command("pack", "a model folder or bare model file into one package"),
            Command("describe", "what a model file says about itself, and what it leaves open"),
            Command("convert", "a .pt2, TorchScript or .tflite as a model that computes it"),
            Command("quantize", "a float model in INT8: what it costs and gains"),
            Command("keygen", "an Ed25519 key pair: FILE and FILE.pub"),
        ),
    ),
    (
        "set-up",
        (
            Command("schema", "JSON Schemas of payloads and settings, or all topics as AsyncAPI"),
            Command("profile", "what this device is, which profile matches, and why"),
            Command("install", "the systemd service, from exactly this version"),
            Command("uninstall", "remove the service; settings and models stay"),
        ),
    ),
    (
        "measure",
        (Command("bench", "measure this device, beside what a plain script gets"),),
    ),
)
"""The commands as listed by `edge-agent --help`."""
LEAST_COLUMNS = 20
"""Fewest columns that help is laid out for."""
EXAMPLES = (
    "edge-agent demo --seconds 20                    see it at work",
    "edge-agent try /dev/video0 yolov8n.onnx         your camera, your model",
    "edge-agent try clip.mp4 yolov8n.onnx --save my  go on with your own settings …",
    "edge-agent run --config my/edge-agent.toml      … as a daemon",
)
COMMANDS = tuple(command for _, commands in GROUPS for command in commands)


def _formatter(prog: str) -> argparse.HelpFormatter:
    # A serial console may say that it has no columns, for which there is no layout.
    width = max(LEAST_COLUMNS, shutil.get_terminal_size().columns - 2)
    return argparse.RawDescriptionHelpFormatter(prog, width=width)


class CommandParser(argparse.ArgumentParser):
    """A parser that gets the arguments from the command's module when they are needed.

    Errors in usage are one line on stderr, like errors in settings.
    """

    def __init__(self, *args: Any, module: str | None = None, **options: Any) -> None:
        options.setdefault("formatter_class", _formatter)
        super().__init__(*args, **options)
        self._module = module
        self._mixing = False

    def load(self) -> None:
        """Import the command's module, which declares its arguments, only once."""
        if self._module is not None:
            module = command_module(self._module)
            self._module = None
            module.arguments(self)
            self.epilog = "\n  ".join(["examples:", *module.EXAMPLES])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        parsed = super().parse_known_args(args, namespace)
        if parsed[1] and self._subparsers is None and not self._mixing:
            # An optional argument would count as left out if options come before it.
            self._mixing = True
            parsed = self.parse_known_intermixed_args(args)
            self._mixing = False
        return parsed

    def format_help(self) -> str:
        self.load()
        return super().format_help()

    def parse_args(self, *args: Any, **options: Any) -> Any:
        parsed, rest = self.parse_known_args(*args, **options)
        if rest:
            # The command's own help shows its arguments, not the help of all commands.
            parsed.parser.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '(.+)' \(choose from (.+)\)$", message)
        if found is not None:
            known = [word.strip(" '") for word in found[2].split(",")]
            if close := closest(found[1], known):
                message = f"{message[: found.start()]}invalid choice: {found[1]!r}; "
                message += f"did you mean {close!r}?"
        print(f"{self.prog}: {one_line(message)}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str], timeline: Timeline | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 for success, 1 for failure, 2 for wrong usage or settings.
    """
    _write_anywhere(sys.stdout)
    options = parser().parse_args(arguments)
    options.timeline = timeline or Timeline()
    set_up(verbose=options.verbose, steady=options.command == "run")
    try:
        # The daemon handles signals itself.
        with nullcontext() if options.command == "run" else _tidy_end():
            status: int = command_module(options.module).main(options)
            return status
    except AgentError as problem:
        return print_error(problem)
    except (RuntimeError, ImportError) as problem:
        told = system_limit(problem)
        if told is None:
            raise
        return print_error(told)
    except MemoryError:
        return print_error(AgentError("not enough memory"))
    except KeyboardInterrupt:
        print("edge-agent: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has closed the pipe, as in `edge-agent tail | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        if options.verbose or problem.strerror is None:
            raise
        name = "" if problem.filename is None else f"{problem.filename}: "
        print(f"edge-agent: {one_line(name + problem.strerror)}", file=sys.stderr)
        return 1


def _write_anywhere(stream: TextIO | None) -> None:
    """Make a stream escape characters that its locale cannot encode, as stderr already does."""
    # In tests, and without a stdout, it has another type.
    if isinstance(stream, TextIOWrapper):
        codecs.register_error("edge-agent", encodable)
        stream.reconfigure(errors="edge-agent")


@contextmanager
def _tidy_end() -> Iterator[None]:
    """End a command on SIGTERM and on a closed terminal like on Ctrl-C: with all its cleanup.

    Before this, Ctrl-C ends the process at once (`__main__`).
    """

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def command_module(name: str) -> Any:
    """Import the module of a command."""
    return import_module(name if "." in name else f"edge_agent.cli.commands.{name}")


def parser(*, listed: bool = False) -> CommandParser:
    """Build the parser of all commands; their arguments are loaded when they are needed."""
    top = _TopParser(
        prog="edge-agent", description="Cameras and sensors through INT8 models, results over MQTT."
    )
    top.add_argument("--version", action="version", version=f"edge-agent {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
    add_commands(top, COMMANDS, "command", "COMMAND", listed=listed)
    return top


class _TopParser(CommandParser):
    """The parser of all commands, whose help lists them in groups."""

    def format_help(self) -> str:
        self.epilog = _grouped(shutil.get_terminal_size().columns - 2)
        return super().format_help()


def _grouped(width: int) -> str:
    """List the commands in groups, in lines of at most *width* columns."""
    wide = max(len(command.name) for command in COMMANDS)
    lines = []
    for title, commands in GROUPS:
        lines.append(f"{title}:")
        for command in commands:
            begin = f"    {command.name:{wide}}  "
            lines += textwrap.wrap(
                command.help, width, initial_indent=begin, subsequent_indent=" " * len(begin)
            )
        lines.append("")
    lines += ["examples:", *(f"  {line}" for line in EXAMPLES)]
    return "\n".join(lines)


def add_commands(
    above: argparse.ArgumentParser,
    commands: Iterable[Command],
    dest: str,
    metavar: str,
    *,
    listed: bool = True,
) -> None:
    """Add commands below a parser; the selected one is in `options.module`.

    Its name becomes `options.<dest>`; *metavar* stands for it in the help, which lists all commands
    if they are *listed*.
    """
    below = above.add_subparsers(
        dest=dest,
        required=True,
        metavar=metavar,
        parser_class=CommandParser,
        help=None if listed else f"one of these; '{above.prog} {metavar} --help' says more",
    )
    for each in commands:
        module = each.module or each.name
        said: dict[str, Any] = {"help": each.help} if listed else {}
        added = below.add_parser(
            each.name,
            **said,
            description=each.help[:1].upper() + each.help[1:] + ".",
            module=module,
        )
        added.set_defaults(module=module, parser=added)
