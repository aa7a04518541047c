"""The command line: section 1 of the public interface.

Here are the words and the exit statuses; each command is a module of its own, imported when asked
for.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..core.errors import AgentError, UsageError, one_line, status_of
from ..core.logs import set_up
from ..core.timeline import Clock

Options = argparse.Namespace


class _Parser(argparse.ArgumentParser):
    """One line on stderr for wrong usage, as for wrong settings."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str], clock: Clock | None = None) -> int:
    """Run one command.

    Args:
        arguments: what stands behind the program's name.
        clock: measures the start, of the daemon.

    Returns:
        The exit status: 0 done, 1 it ran and failed, 2 wrong usage or settings.

    """
    options = parser().parse_args(arguments)
    options.clock = clock or Clock()
    set_up(verbose=options.verbose, steady=options.command == "run")
    command: Callable[[Options], int] = import_module(f"edge_agent.cli.{options.module}").main
    try:
        # The daemon has its own ways with signals.
        with nullcontext() if options.command == "run" else _tidy_end():
            return command(options)
    except AgentError as problem:
        return status_of(problem)
    except KeyboardInterrupt:
        print("edge-agent: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has seen enough, as in `edge-agent tail | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        if options.verbose or problem.strerror is None:
            raise
        name = "" if problem.filename is None else f"{problem.filename}: "
        print(f"edge-agent: {one_line(name + problem.strerror)}", file=sys.stderr)
        return 1


@contextmanager
def _tidy_end() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end a command as Ctrl-C does: with all its clean-up."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def parser() -> argparse.ArgumentParser:
    """Describe all commands."""
    top = _Parser(
        prog="edge-agent", description="Cameras and sensors through INT8 models, results over MQTT."
    )
    top.add_argument("--version", action="version", version=f"edge-agent {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )

    def command(name: str, module: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        added.set_defaults(module=module)
        return added

    def config(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--config",
            metavar="FILE",
            help="settings; default /etc/edge-agent/config.toml, else ./edge-agent.toml",
        )

    config(command("run", "run", "the daemon, in the foreground"))

    demo = command(
        "demo", "demo", "everything at once with nothing set up, results live in the terminal"
    )
    demo.add_argument(
        "--seconds", type=_positive, metavar="N", help="end by itself; default: at Ctrl-C"
    )
    demo.add_argument("--pipeline", metavar="NAME", help="only this one of the demo's pipelines")
    demo.add_argument("--json", action="store_true", help="results as JSON, one a line")

    attempt = command("try", "try_", "a model on a source, with no settings, broker or manifest")
    attempt.add_argument(
        "source",
        metavar="SOURCE",
        help="camera URL, /dev/video0, clip, folder of pictures, recording",
    )
    attempt.add_argument("model", metavar="MODEL", help="model folder, .onnx or .xml")
    attempt.add_argument(
        "--seconds",
        type=_positive,
        metavar="N",
        help="end by itself; default: at the source's end or Ctrl-C",
    )
    attempt.add_argument(
        "--save", metavar="DIR", help="write the model folder and settings for `run`"
    )

    config(
        command(
            "check",
            "check",
            "whether settings, profile, engines, sources, broker and models are fit to run",
        )
    )

    profile = command("profile", "profile", "what this device is, which profile matches, and why")
    profile.add_argument(
        "--list", action="store_true", help="all profiles, and why each does not match"
    )
    config(profile)

    tail = command("tail", "tail", "follow what devices publish, one line a message")
    tail.add_argument("--device", metavar="ID", help="only this device")
    tail.add_argument(
        "--kind",
        choices=("result", "event", "health", "status", "model", "all"),
        default="result",
        help="default: result",
    )
    tail.add_argument("--json", action="store_true", help="payloads as they are, one a line")
    tail.add_argument(
        "-n", type=_positive_int, dest="count", metavar="N", help="end after N messages"
    )
    _broker(tail, config)

    add = command("add", "add", "install a model from a local path, no broker needed")
    add.add_argument("path", metavar="PATH", help="model folder, packed .tar, .onnx or .xml")
    add.add_argument("--name", metavar="N", help="instead of the model's own")
    add.add_argument(
        "--version",
        metavar="V",
        dest="model_version",
        help="instead of the model's own, or the next",
    )
    add.add_argument(
        "--allow-older", action="store_true", help="also a version below the highest ever accepted"
    )
    config(add)

    push = command("push", "push", "send a model over MQTT, until it serves")
    push.add_argument("path", metavar="PATH", help="model folder, packed .tar, .onnx or .xml")
    push.add_argument("--device", required=True, metavar="ID|@GROUP")
    push.add_argument("--key", metavar="FILE", help="private key to sign with, from keygen")
    push.add_argument("--wait", action="store_true", help="wait for a device that is offline")
    push.add_argument(
        "--timeout", type=_positive, default=60.0, metavar="S", help="without progress; default 60"
    )
    _broker(push, config)

    models = command("models", "models", "what each device has, runs and is trying")
    models.add_argument("--device", metavar="ID", help="only this device")
    models.add_argument("--forget", metavar="ID", help="clear what a scrapped box left retained")
    _broker(models, config)

    rollback = command("rollback", "rollback", "back to the version before")
    rollback.add_argument("name", metavar="NAME", help="of the model")
    rollback.add_argument("--device", required=True, metavar="ID")
    rollback.add_argument("--timeout", type=_positive, default=60.0, metavar="S", help="default 60")
    _broker(rollback, config)

    pack = command("pack", "pack", "a model folder or bare model file into one package")
    pack.add_argument("path", metavar="PATH", help="model folder, .onnx or .xml")
    pack.add_argument("-o", dest="output", required=True, metavar="FILE.tar")
    pack.add_argument("--key", metavar="FILE", help="private key to sign with, from keygen")
    pack.add_argument("--expires", metavar="DATE", help="no device takes it after this day")
    pack.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="T",
        help="device:ID, profile:NAME or @group; may be given several times; default: any device",
    )

    keygen = command("keygen", "keygen", "an Ed25519 key pair: FILE and FILE.pub")
    keygen.add_argument("file", metavar="FILE")

    install = command("install", "install", "the systemd service, from this very version")
    config(install)
    command("uninstall", "install", "remove the service; settings and models stay")

    bench = command("bench", "bench", "measure this device, beside what a plain script gets")
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="WHAT", parser_class=_Parser)
    pipeline = kinds.add_parser("pipeline", help="frames a second, streams, cost of each step")
    _bench_pipeline(pipeline)
    config(pipeline)
    push_rate = kinds.add_parser(
        "push", help="a push beside the raw rate of the same broker, and what frames notice of it"
    )
    push_rate.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="as for `bench cold-start`, or .onnx or .xml; default: random weights of 4 and 100 MB",
    )
    push_rate.add_argument(
        "--mb",
        type=_positive_int,
        action="append",
        metavar="SIZE",
        help="random weights of this size instead; may be given several times",
    )
    push_rate.add_argument(
        "--runs", type=_positive_int, default=5, metavar="N", help="pairs; default 5"
    )
    push_rate.add_argument(
        "--protocol", choices=("5", "4"), default="5", help="MQTT 5, or 4 for 3.1.1; default 5"
    )
    push_rate.add_argument(
        "--max-packet",
        type=_positive_int,
        metavar="BYTES",
        help="the broker's max_packet_size; default: its own",
    )
    push_rate.add_argument(
        "--source", metavar="CLIP", help="plays meanwhile; default: the bundled clip"
    )
    push_rate.add_argument("--json", action="store_true", help="figures as JSON")
    cold = kinds.add_parser(
        "cold-start", help="from the start of a process to its first result, beside plain scripts"
    )
    cold.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="model folder, model of the agent's (NAME or NAME@VERSION), or one of random weights: "
        "resnet50-fp32, resnet50-int8, vit-b16-fp32, vit-b16-int8",
    )
    cold.add_argument(
        "--disk-mbps",
        type=_positive,
        metavar="N",
        help="read from the disk at this rate, MB a second; the model is not in memory; needs root",
    )
    memory = cold.add_mutually_exclusive_group()
    memory.add_argument(
        "--no-page-cache",
        action="store_true",
        help="nothing is in memory, as after a power cut; needs root",
    )
    memory.add_argument("--no-model-cache", action="store_true", help="the model is not in memory")
    cold.add_argument("--runs", type=_positive_int, default=7, metavar="N", help="default 7")
    cold.add_argument("--source", metavar="CLIP", help="default: the bundled clip")
    cold.add_argument("--picture", metavar="FILE.png", help="draw where the time goes")
    cold.add_argument("--json", action="store_true", help="figures as JSON")
    config(cold)
    return top


def _bench_pipeline(pipeline: argparse.ArgumentParser) -> None:
    pipeline.add_argument("models", nargs="+", metavar="MODEL", help="as for `bench cold-start`")
    pipeline.add_argument("--source", metavar="CLIP", help="default: the bundled clip")
    pipeline.add_argument(
        "--runs", type=_positive_int, default=5, metavar="N", help="rounds; default 5"
    )
    pipeline.add_argument(
        "--seconds", type=_positive, default=4.0, metavar="S", help="of each turn; default 4"
    )
    pipeline.add_argument(
        "--pipelines",
        default="1,2,4,8,16",
        metavar="N,N…",
        help="for the scaling table; default 1,2,4,8,16; empty: none",
    )
    pipeline.add_argument(
        "--rate",
        type=_not_negative,
        default=5.0,
        metavar="R",
        help="results a second of each stream that is to be carried; default 5; 0: not measured",
    )
    pipeline.add_argument(
        "--p99-ms",
        type=_positive,
        default=100.0,
        metavar="MS",
        help="what the 99th percentile of their age may come to; default 100",
    )
    pipeline.add_argument(
        "--tune",
        action="store_true",
        help="only find out which engine, threads, lanes and batch suit each model on this device, "
        "and have the agent use them",
    )
    pipeline.add_argument("--picture", metavar="FILE.png", help="draw the figures")
    pipeline.add_argument("--json", action="store_true", help="figures as JSON")


def _broker(
    added: argparse.ArgumentParser, config: Callable[[argparse.ArgumentParser], None]
) -> None:
    added.add_argument(
        "--broker", metavar="URL", help="mqtt://[user[:password]@]host[:port] or mqtts://…"
    )
    config(added)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number from 0, found {text!r}")
    return value


def _positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, found {text!r}")
    return int(text)


def load_settings(options: Any, *, needed: bool = False) -> Any:
    """Read the settings that a command names or finds.

    Raises:
        UsageError: there are none where some are needed, or they are wrong.

    """
    from ..config.load import find_file, load
    from ..config.locations import PLACES

    file = find_file(options.config)
    if file is None and needed:
        places = " nor ".join(PLACES)
        raise UsageError(
            f"no settings: neither {places} is there; write one, or name it with --config FILE"
        )
    return load(file)


def broker_settings(options: Any) -> Any:
    """Read the settings for a command that talks to a broker; `--broker` replaces the URL."""
    from dataclasses import replace

    from ..config.settings import parse_url

    settings = load_settings(options)
    if options.broker is None:
        return settings
    try:
        address = parse_url(options.broker)
    except UsageError as problem:
        raise UsageError(f"--broker: {problem}") from None
    broker = settings.broker
    if not address.tls:
        broker = replace(broker, ca_file=None, cert_file=None, key_file=None)
    return replace(settings, broker=replace(broker, url=options.broker))
