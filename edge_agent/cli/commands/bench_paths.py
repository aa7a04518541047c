"""What measurements share: options, the clip or recording, and how figures are shown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from ...core.bundled import bundled
from ...core.errors import UsageError
from ...models.manifest import load
from ...tools.bars import Chart, check_installed, draw
from ..options import Options, positive_int
from ..progress import say


class Table(NamedTuple):
    """A table of figures: names in the first column, numbers in the others."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class Report(Protocol):
    """Measurements of one model."""

    others: list[float]
    """The load from other programs before each turn, in percent of the processors."""

    def json(self) -> dict[str, Any]:
        """Return all figures."""


R = TypeVar("R", bound=Report)


def add_shared(parser: argparse.ArgumentParser, runs: int) -> None:
    """Add the options of every measurement."""
    parser.add_argument(
        "--runs",
        type=positive_int,
        default=runs,
        metavar="N",
        help=f"rounds; default {runs}",
    )
    parser.add_argument("--picture", metavar="FILE.png", help="draw the figures")
    parser.add_argument("--json", action="store_true", help="figures as JSON")


def show(
    reports: Sequence[R],
    options: Options,
    picture: Path | None,
    ways: tuple[Callable[[R], Iterable[Table | str]], Callable[[R], list[Chart]]],
) -> None:
    """Draw and print the measurements: as JSON, or as tables and lines.

    *ways* are two functions that return the tables and lines of a report, and its charts.
    """
    from ...bench.common.report import IDLE_PERCENT, spread

    shown, drawn = ways
    if picture is not None:
        draw([chart for report in reports for chart in drawn(report)], picture)
        say(f"{picture}: written")
    for report in reports:
        others = spread(report.others, 1)
        if options.json:
            print(json.dumps({**report.json(), "others_percent": others}), flush=True)
            continue
        for each in shown(report):
            print(each) if isinstance(each, str) else _print_table(each)
        if others["max"] > IDLE_PERCENT:
            print(
                f"NOT IDLE: others used {others['median']:g} % of the processors (up to "
                f"{others['max']:g} %); let the device have nothing else to do, or raise --runs"
            )


def _print_table(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    made = RichTable(title=table.title)
    for number, heading in enumerate(table.headings):
        made.add_column(heading, justify="right" if number else "left")
    for row in table.rows:
        made.add_row(*row)
    Console().print(made)


def clip_of(options: Options) -> Path:
    """Return the clip of `--source`, by default the bundled one."""
    clip = Path(options.source or bundled("models") / "media" / "conveyor.mp4")
    if not clip.is_file():
        why = "is not a file" if clip.exists() else "no such clip"
        raise UsageError(f"--source: {options.source or clip}: {why}")
    return clip


def picture_of(name: str | None) -> Path | None:
    """Return the path of `--picture`, checked before measuring; None: none is wanted."""
    picture = None if name is None else Path(name)
    if picture is not None and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise UsageError(
            f"--picture: {picture}: expected a name that ends in .png, in a folder that is there"
        )
    if picture is not None:
        check_installed()
    return picture


def recording_of(options: Options, models: Sequence[Path]) -> tuple[Path, str] | None:
    """Return the recording for sensor models, and the source that repeats it forever.

    It is `--source`, or by default the bundled one if all models take windows of a signal. None: a
    clip is played.
    """
    # Not above: it imports NumPy, and a process that times cold starts loads no large library.
    from ...sources.schemes import SCHEMES
    from ...sources.spec import guess_source, parse_source

    if options.source is None:
        if not all(load(model).manifest.input.is_signal for model in models):
            return None
        given = str(bundled("models") / "media" / "bearing.csv")
    else:
        given = options.source
    text = guess_source(given)
    form = SCHEMES.get(text.partition(":")[0].lower())
    if form is None or form.kind != "signal":
        return None
    if form.live:
        raise UsageError(f"--source: {given}: is live; give a recording, which all can be given")
    spec = parse_source(text, Path.cwd())
    if not spec.local.is_file():
        raise UsageError(f"--source: {given}: no such recording")
    query = [part for part in text.partition("?")[2].split("&") if part]
    looped = "&".join([*(part for part in query if not part.startswith("loop=")), "loop=1"])
    return spec.local, f"{spec.scheme.name}:{quote(str(spec.local.resolve()))}?{looped}"


def spread_words(figures: Mapping[str, float], digits: int) -> str:
    """Format the `min`, `median`, and `max` of a measurement."""
    least, median, most = (f"{figures[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{median} ({least} to {most})"


def carried_words(found: Mapping[str, Any]) -> str:
    """Describe how many streams are carried, given the result of `streams.carried`."""
    more = f"; {found['too_many']} are too many: {found['why']}" if found["too_many"] else ""
    return (
        f"{found['carried']} streams of {found['rate']:g} results a second are carried with p99 of "
        f"the age within {found['p99_bound_ms']:g} ms (it was {found['p99_ms']:.1f}){more}"
    )
