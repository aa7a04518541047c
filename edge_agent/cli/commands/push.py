"""`edge-agent push`: sends a model over MQTT, with a progress bar, until it serves."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...core.errors import AgentError, BrokerError, UsageError
from ...core.names import version_key
from ...core.text import counted, printable
from ...delivery.protocol import agreement_words
from ...delivery.sender import Progress, RetainedPackage, Sender, block_bytes
from ...models.importing import BARE, file_of, import_model, import_tar
from ...models.packages.blocks import CUT
from ...models.packages.build import Package, make, open_package
from ...models.packages.keys import load_private
from ...mqtt.one_shot import OneShotClient, is_loss
from ...mqtt.topics import rollouts
from ..broker_settings import broker_settings
from ..fleet import MANY, Fleet, check_target, look_filters, online_targets, some_of, unheard
from ..laying import lay, limited, reconnect
from ..options import Options, add_broker, positive
from ..progress import Progress as ProgressLine

if TYPE_CHECKING:
    from ...config.settings import Broker
    from ...models.manifest import ModelFolder
    from ...models.packages.keys import PrivateKey

RETAINED_SECONDS = 3600
"""How long an MQTT 5 broker keeps a package for a group if its sender is gone, at least."""
MOST_AHEAD = 1000
"""By how much the highest version of one device may exceed those of all others."""


EXAMPLES = (
    "edge-agent push parts/ --device edge-01 --key push.key",
    "edge-agent push people.tar --device @lab --wait --timeout 300",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "path", metavar="PATH", help="model folder, packed .tar, .onnx, .xml or .tflite"
    )
    parser.add_argument("--device", required=True, metavar="ID|@GROUP")
    parser.add_argument("--key", metavar="FILE", help="private key to sign with, from keygen")
    parser.add_argument("--wait", action="store_true", help="wait for a device that is offline")
    parser.add_argument(
        "--timeout", type=positive, default=60.0, metavar="S", help="without progress; default 60"
    )
    parser.add_argument(
        "--until",
        choices=("probation", "live"),
        default="probation",
        help="return when the new version serves (probation, the default), or has passed its "
        "probation (live)",
    )
    add_broker(parser)


def main(options: Options) -> int:
    """Push; return 0 when the new version serves, 1 when it was rejected or not taken."""
    target: str = options.device
    check_target(target)
    settings = broker_settings(options)
    root = settings.broker.topic_root
    path = Path(options.path)
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    path = file_of(path)
    key = load_private(Path(options.key)) if options.key else None
    with ExitStack() as stack:
        # First, so that a model that cannot be pushed is reported without a broker or a device.
        if path.suffix in BARE:
            with import_model(path) as imported:
                name, packed = imported.folder.manifest.name, None
        else:
            packed = stack.enter_context(_packed(path, key))
            package = packed(largest=CUT)
        filters = [*look_filters(root, target, "info", "model/+"), f"{rollouts(root)}/+"]
        client = stack.enter_context(OneShotClient(settings.broker, filters))
        fleet = Fleet(client, root)
        devices = online_targets(fleet, target, wait=options.wait, timeout=options.timeout)
        largest = block_bytes(client.max_packet, root, target)
        if packed is None:
            version = _next(fleet, devices, name)
            package = stack.enter_context(_packed(path, key, version))(largest=largest)
        elif largest < CUT:
            package = packed(largest=largest)
        client.subscribe([f"{root}/+/push/{package.transfer}"])
        size = package.header.size
        print(
            f"{package.header.id}: {size} bytes in {counted(package.header.blocks, 'block')}"
            f" to {some_of(devices)}"
        )
        retained = None
        if target.startswith("@"):
            retained = _retain(client, settings.broker, package, fleet, options.timeout)
        sender = Sender(
            *(client, root, target, devices, package),
            drawn=retained is not None,
            until=options.until,
            on_rollout=fleet.take,  # the package of one that begins meanwhile must stay
        )
        try:
            _send(sender, client, options.timeout, retained)
        except KeyboardInterrupt:
            again = "the same push again goes on where it stopped"
            raise AgentError(f"interrupted; {again}") from None
        if retained is not None:
            sender.bytes_sent += retained.bytes_sent
            if package.transfer not in fleet.rolled_out():
                retained.clear()
        return _report(sender, fleet, target, package.header.name)


def _retain(
    client: OneShotClient, broker: Broker, package: Package, fleet: Fleet, timeout: float
) -> RetainedPackage | None:
    """Put the package on the broker for members to draw; None: impossible, and it is reported.

    Raises:
        BrokerError: the broker does not take it.
    """
    expires_s = fleet.keeping_s(package.transfer, RETAINED_SECONDS)
    retained = RetainedPackage(client, broker, package, expires_s=expires_s)
    why = lay(client, retained, timeout)
    if not why:
        return retained
    print(f"{why}; the package is sent to the members that ask", file=sys.stderr)
    return None


@contextmanager
def _packed(
    path: Path, key: PrivateKey | None, version: str | None = None
) -> Iterator[Callable[..., Package]]:
    """Yield a function that makes or opens the package, with blocks of at most `largest` bytes.

    A package made by `pack` keeps its blocks, which its signature covers.
    """
    if path.suffix == ".tar":
        package = open_package(path)
        if package is None:
            # Made by hand: packed again, so that it can be signed and sent in blocks.
            with import_tar(path) as imported:
                yield partial(make, imported.folder, key=key)
            return
        if key is not None:
            raise UsageError(
                "--key: the package is made already; give the folder, or pack it with --key"
            )
        yield lambda **_largest: package
        return
    with import_model(path, None, version) as imported:
        for assumption in imported.assumptions:
            print(f"assumed  {assumption}")
        _check(imported.folder)
        yield partial(make, imported.folder, key=key)


def _check(folder: ModelFolder) -> None:
    """Check a model as far as possible here, before it is sent.

    Raises:
        ModelError: its network is damaged, or does not fit its manifest.
    """
    from ...inference.fit import check_fit
    from ...models.describing import inspect_network

    check_fit(folder, inspect_network(folder.network))


def _next(fleet: Fleet, devices: list[str], name: str) -> str:
    """Return the highest version of a model that the devices know, plus 1.

    Raises:
        AgentError: one device alone is far ahead: with its version all would have used up theirs.
    """
    known = {}
    for device in devices:
        versions = fleet.models.get(device, {}).get(name, {}).get("versions", [])
        if versions:
            known[device] = max(version_key(version)[0] for version in versions)
    *_, (before, _), (highest, ahead) = [(0, "")] * 2 + sorted((v, d) for d, v in known.items())
    if len(known) > 1 and highest - before > MOST_AHEAD:
        raise AgentError(
            f"{name}: device {ahead} says that it has version {highest}, all others at most "
            f"{before}; push a folder, whose manifest states the version, or leave {ahead} out"
        )
    return str(highest + 1)


def _send(
    sender: Sender, client: OneShotClient, timeout: float, retained: RetainedPackage | None
) -> None:
    """Send until all devices have ended, or there is no more progress; survives broker outages."""
    bars = _Bars(sender)
    moved, losses = time.monotonic(), 0
    before: list[tuple[str, float]] = []
    sender.offer()
    with bars:
        while not sender.done:
            taken = sender.taken  # before the step, which raises what came before it
            try:
                sender.step(0.2)
            except BrokerError as problem:
                if not is_loss(client, problem):
                    raise
                if not losses:
                    print(f"{problem}; trying again", file=sys.stderr, flush=True)
                lost_at, losses = time.monotonic(), losses + 1
                reconnect(client, moved + timeout)
                if retained is not None:
                    lay(client, retained, timeout, again=True)
                sender.reconnected(time.monotonic() - lost_at)
            # Devices that answer on probation are waited for, however long that takes.
            now = [
                (p.shown, p.heard_at if p.waits_for_probation else p.percent)
                for p in sender.progress.values()
            ]
            if now != before and taken:
                before, moved, losses = now, time.monotonic(), 0
                bars.update()
            # A trial or a shadow has its own timeout on the device.
            patience = (
                timeout if any(s in {"offered", "need"} for s, _ in now) else max(timeout, 180.0)
            )
            if time.monotonic() - moved > patience:
                silent = [device for device, p in sender.progress.items() if not p.ended]
                raise BrokerError(
                    f"no progress of {some_of(sorted(silent))} for {patience:.0f} s;"
                    f"{limited(losses)}"
                    " the version may still come to serve;"
                    f" the same push again goes on where it stopped{_never(sender)}"
                )


def _never(sender: Sender) -> str:
    """Return what to look at if a device has not said a word to the offer."""
    mute = any(progress.shown == "offered" for progress in sender.progress.values())
    return unheard(sender.inbox) if mute else ""


class _Bars:
    """A bar per device on a terminal, else lines on stderr; a single line for many devices."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._line = ProgressLine() if len(sender.progress) > MANY else None
        self._said: dict[str, str] = {}
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and self._line is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._line is not None:
            self._line.close()

    def update(self) -> None:
        if self._line is not None:
            each = self._sender.progress.values()
            self._line("devices that are done:", sum(p.ended or p.lost for p in each), len(each))
            return
        for device, progress in self._sender.progress.items():
            if self._progress is not None:
                task = self._tasks.get(device)
                if task is None:
                    task = self._tasks[device] = self._progress.add_task(device, total=100)
                self._progress.update(
                    task, completed=progress.percent, description=f"{device} {progress.shown}"
                )
            # A rejection is the outcome, which is printed at the end.
            elif self._said.get(device) != progress.shown and progress.state != "rejected":
                self._said[device] = progress.shown
                why = f": {progress.why}" if progress.why is not None else ""
                said = printable(f"{device}: {progress.shown}{why}")
                print(said, file=sys.stderr, flush=True)


def _report(sender: Sender, fleet: Fleet, target: str, name: str) -> int:
    """Print the outcome on each device."""
    lost = sorted(device for device, progress in sender.progress.items() if progress.lost)
    answered = {each: p for each, p in sorted(sender.progress.items()) if each not in lost}
    failed = lost or any(progress.state == "rejected" for progress in answered.values())
    many = len(answered) > MANY
    if many:
        _report_many(answered)
    odd = []
    for device, progress in answered.items():
        if not many:
            print(printable(f"{device}: {_ending(progress)}"))
        if progress.state != "rejected" and agreement_words(progress.details)[1]:
            odd.append(device)
    if odd:
        print(_warning(odd, name), file=sys.stderr)
    members = fleet.members(target[1:]) if target.startswith("@") else []
    away = [each for each in members if not fleet.online(each) and each not in sender.progress]
    if lost:
        again = "the same push again goes on when it is back"
        print(printable(f"{some_of(lost)}: went offline before it was live; {again}"))
    if away:
        has = "has" if len(away) == 1 else "have"
        print(printable(f"{some_of(away)}: offline, {has} not got it"))
    print(f"{sender.bytes_sent} bytes were sent")
    return 1 if failed else 0


def _report_many(answered: Mapping[str, Progress]) -> None:
    """Print each outcome once, with the devices that have a problem."""
    found: dict[str, list[str]] = {}
    for device, progress in answered.items():
        state = "rejected" if progress.state == "rejected" else "live"
        words = f"{state}: {progress.why}" if progress.why else state
        found.setdefault(words, []).append(device)
    for words, devices in sorted(found.items()):
        some = f": {some_of(devices)}" if words != "live" else ""
        print(printable(f"{counted(len(devices), 'device')} {words}{some}"))


def _warning(devices: list[str], name: str) -> str:
    one = devices[0] if len(devices) == 1 else "ID"
    return printable(
        f"warning  {some_of(devices)}: this version finds other things than the one before; if that"
        f" is not meant: edge-agent rollback {name} --device {one};"
        " trial.min_agreement rejects such"
    )


def _ending(progress: Progress) -> str:
    if progress.state == "rejected":
        return f"rejected: {progress.why}"
    why = f": {progress.why}" if progress.why else ""
    if progress.already:
        return "live already" + ", on probation" * (progress.state == "probation") + why
    parts = ["live" if progress.state == "live" else "live, on probation"]
    for key, unit in (
        ("swap_ms", "ms swap"),
        ("frames_dropped", "frames dropped"),
        ("first_inference_ms", "ms to its first inference"),
    ):
        value = progress.details.get(key)
        if value is not None:
            parts.append(f"{value} {unit}")
    agreed, _ = agreement_words(progress.details)
    if agreed is not None:
        parts.append(agreed.replace(" it ", " the version before ", 1))
    return ", ".join(parts) + why
