"""`edge-agent rollout status`: the progress of roll-outs; a line per wave, then problems."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ...core.errors import AgentError, MalformedError
from ...core.text import printable
from ...delivery.plan import Plan, read
from ...mqtt.one_shot import OneShotClient
from ..broker_settings import broker_settings
from ..fleet import Fleet, incomplete
from ..options import Options, add_broker
from ..roller import ending, rollout_filters, tally, trouble_lines, wave_line
from ..terminal import printable_json

EXAMPLES = ("edge-agent rollout status", "edge-agent rollout status parts-3f2a1c --json")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("id", nargs="?", metavar="ID", help="only this one")
    parser.add_argument("--json", action="store_true", help="one JSON object per roll-out")
    add_broker(parser)


def main(options: Options) -> int:
    """Show the roll-outs on the broker; return 1 if the look is incomplete."""
    settings = broker_settings(options)
    root = settings.broker.topic_root
    with OneShotClient(settings.broker, rollout_filters(root)) as client:
        fleet = Fleet(client, root)
        fleet.look()
    wanted = fleet.plans if options.id is None else {options.id} & fleet.plans.keys()
    if fleet.gap and not wanted:
        raise AgentError(incomplete(fleet))
    if options.id is not None and options.id not in fleet.plans:
        known = ", ".join(sorted(fleet.plans)) or "none"
        raise AgentError(f"roll-out {options.id} is not on this broker; there: {known}")
    if not fleet.plans and not options.json:
        print("no roll-out is on this broker")
    for name in [options.id] if options.id else sorted(fleet.plans):
        try:
            plan = read(fleet.plans[name], None)
        except MalformedError as problem:
            print(printable(f"{name}: {problem}"))
            continue
        _show(plan, fleet, as_json=options.json)
    if fleet.gap:
        raise AgentError(incomplete(fleet))
    return 0


def _show(plan: Plan, fleet: Fleet, *, as_json: bool) -> None:
    tallies = [tally(plan, fleet, number) for number in range(len(plan.waves))]
    if as_json:
        waves = [
            {**asdict(wave), **each.as_json()}
            for wave, each in zip(plan.waves, tallies, strict=True)
        ]
        print(printable_json({"schema": 1, **asdict(plan), "waves": waves}))
        return
    print(printable(f"{plan.id}  {plan.label}  {plan.state}, wave {plan.wave + 1}, by {plan.by}"))
    for number, each in enumerate(tallies):
        print(printable(f"  {wave_line(plan, number, each)}"))
        for line in trouble_lines(each):
            print(f"  {line}")
    print(printable(ending(plan)))
