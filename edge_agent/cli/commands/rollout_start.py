"""`edge-agent rollout start`: reads a plan, puts its package on the broker, and leads it."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...core.errors import AgentError, UsageError
from ...core.frozen import record
from ...core.schema import build, read_toml
from ...core.text import counted, printable
from ...delivery.plan import MAX_BYTES, MOST_DAYS, Gate, Plan, Wave, seal, trouble_of
from ...delivery.sender import RetainedPackage, block_bytes
from ...models.importing import import_model
from ...models.packages.build import Package, make, open_package
from ...models.packages.keys import load_private
from ...mqtt.one_shot import OneShotClient
from ...mqtt.payloads import iso
from ..broker_settings import broker_settings
from ..fleet import Fleet, incomplete
from ..laying import lay
from ..options import Options, add_broker
from ..roller import Roller, new_time, rollout_filters, tally, who

if TYPE_CHECKING:
    from ...models.packages.keys import PrivateKey

_STRICT: Any = {"extra": "forbid"}
_SPAN = re.compile(r"([0-9]{1,6})\s*(d|h|min|m|s)")
_UNITS = {"d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
EXAMPLES = ("edge-agent rollout start parts-3.toml --key push.key",)


@record(kw_only=True)
class Written:
    """A plan as written by a person, in TOML."""

    __pydantic_config__ = _STRICT
    package: str
    """A .tar from `edge-agent pack`, or a model folder, relative to the plan's folder."""
    waves: tuple[Wave, ...]
    gate: Gate = field(default_factory=Gate)
    on_failure: Literal["stop", "back"] = "stop"
    expires: str = "14d"
    """Age after which no device starts it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", metavar="FILE", help="the plan, in TOML: package, waves, gate")
    parser.add_argument("--key", metavar="FILE", help="private key that signs plan and package")
    add_broker(parser)


def main(options: Options) -> int:
    """Lead a new roll-out; 0 when all waves are complete, 1 if it has stopped."""
    file = Path(options.file)
    written, lasts = read_plan(file)
    settings = broker_settings(options)
    key = load_private(Path(options.key)) if options.key else None
    if key is None:
        words = "not signed: followed only by devices with trust.allow_unsigned = true; see --key"
        print(words, file=sys.stderr)
    root = settings.broker.topic_root
    with ExitStack() as stack:
        client = stack.enter_context(OneShotClient(settings.broker, rollout_filters(root)))
        largest = block_bytes(client.max_packet, root, "@package")
        package = _package(file.parent / written.package, key, largest, stack)
        fleet = Fleet(client, root)
        fleet.look()
        if fleet.gap:
            raise AgentError(f"{incomplete(fleet)}; nothing was rolled out")
        plan = _plan(written, package, lasts, new_time(fleet.plans, key))
        if len(seal(plan, key)) > MAX_BYTES:
            raise UsageError(f"{file}: waves: name fewer devices; a group has no limit")
        _check(plan, fleet)
        expires_s = fleet.keeping_s(package.transfer, lasts)
        retained = RetainedPackage(client, settings.broker, package, expires_s=expires_s)
        if why := lay(client, retained):
            raise AgentError(f"{why}; use push --device, a device at a time")
        header = package.header
        print(f"roll-out {plan.id}: {header.id}, {counted(header.blocks, 'block')} on the broker")
        return Roller(client, fleet, root, key=key, package=retained).lead(plan)


def read_plan(file: Path) -> tuple[Written, float]:
    """Read a plan; return it, and the seconds until it expires.

    Raises:
        UsageError: it is wrong.
    """
    tables = read_toml(file, UsageError)
    written = build(Written, tables, str(file), UsageError)
    for number, wave in enumerate(tables["waves"]):
        if wave.get("devices") == []:
            words = "names no device; without devices and group a wave is of all"
            raise UsageError(f"{file}: waves.{number}.devices: {words}")
    trouble = trouble_of(written.waves)
    if trouble is not None:
        raise UsageError(f"{file}: {trouble}")
    return written, lasting(written.expires, f"{file}: expires")


def lasting(text: str, where: str) -> float:
    """Parse a duration; return seconds.

    Raises:
        UsageError: it is not a duration, or not an allowed one; *where* begins the error.
    """
    span = _SPAN.fullmatch(text.strip())
    lasts = int(span[1]) * _UNITS[span[2]] if span else 0
    if not 60 <= lasts <= MOST_DAYS * 86400:
        raise UsageError(f'{where}: {text!r} is none of 1 min to {MOST_DAYS} d; as "14d"')
    return lasts


def _package(path: Path, key: PrivateKey | None, largest: int, stack: ExitStack) -> Package:
    """Open the package, or make it from a model folder.

    Raises:
        UsageError: the path is missing, or not a package.
    """
    if not path.exists():
        raise UsageError(f"package: {path}: no such file or folder")
    if path.suffix != ".tar":
        return make(stack.enter_context(import_model(path)).folder, key=key, largest=largest)
    package = open_package(path)
    if package is None:
        raise UsageError(f"package: {path}: is no package; make one with: edge-agent pack")
    return package


def _plan(written: Written, package: Package, lasts: float, created: int) -> Plan:
    header, now = package.header, time.time_ns()
    ends = now + int(lasts * 1e9)
    if header.expires is not None:
        ends = min(ends, int(header.expires.timestamp() * 1e9))
    return Plan(
        id=f"{header.name[:40]}-{secrets.token_hex(3)}",
        transfer=package.transfer,
        name=header.name,
        version=header.version,
        created=iso(created),
        expires=iso(ends),
        waves=written.waves,
        gate=written.gate,
        on_failure=written.on_failure,
        spread_s=0.0,
        serial=now // 1_000_000_000,
        time=iso(now),
        by=who(),
        state="running",
        wave=0,
    )


def _check(plan: Plan, fleet: Fleet) -> None:
    """Check that the waves include devices.

    Raises:
        AgentError: a named device is unknown, or no device is in a wave.
    """
    named = {device for wave in plan.waves for device in wave.devices}
    if unknown := sorted(named - fleet.status.keys()):
        raise AgentError(f"waves: {', '.join(unknown)} is unknown to this broker")
    if not any(tally(plan, fleet, number).members for number in range(len(plan.waves))):
        raise AgentError("waves: no device that this broker knows of is in one")
    for wave in plan.waves:
        if wave.group is not None and not fleet.members(wave.group):
            print(printable(f"waves: no device is in @{wave.group} yet"), file=sys.stderr)
