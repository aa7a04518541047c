"""`edge-agent profile`: shows facts about this device, the matching profile, and the engines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ...config.device_profile import (
    choose,
    default_dirs,
    lineup,
    load_profiles,
    unlisted,
    unread_files,
)
from ...device.hardware import read_facts
from ...inference.engines.engine import EngineChoice
from ...inference.engines.probe import probe
from ...inference.engines.registry import capabilities, exclusive_formats, installed
from ...serving.tuning_results import FILE, TuningResults
from ..options import Options, add_config, load_settings

EXAMPLES = (
    "edge-agent profile         this device",
    "edge-agent profile --list  all of them, and why they match or not",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--list", action="store_true", help="all profiles, and why each does not match"
    )
    add_config(parser)


def main(options: Options) -> int:
    """Print the facts, the match, and the reasons."""
    settings = load_settings(options)
    facts = read_facts()
    profiles = load_profiles(default_dirs())
    match = choose(profiles, facts, settings.profile)
    flags = " ".join(sorted(facts.flags & NOTED)) or "none of note"
    print(f"device    {settings.device_id}")
    print(f"machine   {facts}")
    print(f"flags     {flags}")
    for name, version in sorted(installed().items()):
        print(f"engine    {name} {version}")
    print(f"profile   {match.name}: {match.profile.description}")
    print(f"why       {match.reason}")
    found = lineup(match.profile, facts, probe, settings.engine)
    for choice, why in found.absent:
        print(f"absent    {choice.engine}:{choice.device}: {why}")
    for rank, choice in enumerate(found.choices):
        role = "serves" if rank == 0 else "then"
        print(
            f"{role:9} {choice.engine}:{choice.device}, {choice.lanes} lane(s) of "
            f"{choice.threads} thread(s)"
        )
    for line in found.notes:
        print(f"note      {line}")
    for suffix, name in exclusive_formats():
        strange = unlisted(match.profile, name, settings.engine) is not None
        if strange and settings.engine == "auto" and name in installed():
            print(
                f"note      {capabilities(name).formats[suffix]} ({suffix}) runs on {name}:CPU, "
                "which the profile does not list: health is degraded while such a model serves"
            )
    if settings.engine != "auto":
        print(f'forced    engine = "{settings.engine}" in the settings')
    for line in tuned(TuningResults(settings.state, match.profile, facts), found.choices):
        print(f"tuned     {line}")
    if match.profile.memory_budget_mb:
        print(f"budget    {match.profile.memory_budget_mb} MiB for models")
    if options.list:
        print()
        for line in unread_files(default_dirs()):
            print(f"note: {line}")
        for name, why in match.rejected:
            print(f"{name:18} no: {why}")
        print(f"{match.name:18} yes: {match.reason}")
    return 0


def tuned(tuning: TuningResults, choices: Sequence[EngineChoice]) -> Iterator[str]:
    """Yield the results of tuning for each model, and for the lanes, on this device."""
    if tuning.problem is not None:
        yield f"{FILE} {tuning.problem}"
    usual = max((choice.lanes for choice in choices), default=1)
    lanes = tuning.lanes(usual)
    if lanes != usual:
        yield f"{lanes} lanes instead of {usual}"
    for tune in tuning.all():
        day = datetime.fromtimestamp(tune.made, UTC).date().isoformat()
        best = tune.best(lanes, choices)
        yield f"{tune.model}: {best or f'nothing with {lanes} lane(s)'} ({day})"


# Flags that decide between profiles, and that INT8 speed depends on.
NOTED = frozenset(
    {
        *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16"),
        *("asimd", "asimddp", "i8mm", "bf16", "fphp", "sve"),
    }
)
