"""`edge-agent rollout pause`, `resume`, `abort`, `finish`: what a person decides of a roll-out."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import AgentError, MalformedError
from ...core.text import printable
from ...delivery.plan import Plan, read, seal
from ...delivery.retained_package import remove
from ...models.packages.keys import Keyring, load_private
from ...mqtt.one_shot import OneShotClient
from ...mqtt.topics import rollouts
from ..fleet import LOOK_SECONDS, Fleet
from ..options import Options, add_broker, broker_settings
from ..roller import Roller, changed, ending, rollout_filters, who

TRIES = 3
"""Where others change it at the same time."""
EXAMPLES = (
    "edge-agent rollout pause --key push.key",
    "edge-agent rollout resume parts-3f2a1c --key push.key",
    "edge-agent rollout abort --back --key push.key",
    "edge-agent rollout finish parts-3f2a1c --key push.key",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("id", nargs="?", metavar="ID", help="of the roll-out, if there are several")
    parser.add_argument("--key", metavar="FILE", help="private key that the plan is signed with")
    verb = parser.prog.split()[-1]
    if verb == "abort":
        parser.add_argument("--back", action="store_true", help="who has it goes back")
    if verb == "resume":
        words = "with the next wave, whatever the gate says"
        parser.add_argument("--next", action="store_true", help=words)
    add_broker(parser)


def main(options: Options) -> int:
    """Change a roll-out; `resume` leads it to its end."""
    settings = broker_settings(options)
    key = load_private(Path(options.key)) if options.key else None
    ring = None if key is None else Keyring({"own": key.public_key()}, ())
    root = settings.broker.topic_root
    with OneShotClient(settings.broker, rollout_filters(root)) as client:
        fleet = Fleet(client, root)
        fleet.look()
        if options.rollout == "finish" and _is_transfer(options.id):
            if not remove(client, root, options.id):
                raise AgentError(f"package {options.id} is not on this broker")
            print(f"package {options.id} is removed from the broker")
            return 0
        plan = _find(fleet, options.id, ring)
        match options.rollout:
            case "resume":
                return Roller(client, fleet, root, key=key).lead(_resumed(plan, options))
            case "pause":
                if plan.state != "running":
                    raise AgentError(f"roll-out {plan.id} is {plan.state}")
                plan = changed(plan, state="paused", why=f"by {who()}")
            case "abort":
                plan = changed(plan, state="aborted", back=options.back, why=f"by {who()}")
            case _:
                if plan.state in {"running", "paused"}:
                    # Its leader ends, and no device begins any more.
                    _put(client, root, changed(plan, state="paused", why="finished"), ring, key)
                _remove(client, root, plan, fleet)
                return 0
        print(printable(ending(_put(client, root, plan, ring, key))))
    return 0


def _remove(client: OneShotClient, root: str, plan: Plan, fleet: Fleet) -> None:
    """Remove a roll-out, and its package unless another one is of it."""
    client.wait_published([client.publish(f"{rollouts(root)}/{plan.id}", b"", retain=True)])
    others = (read(fleet.plans[name], None) for name in fleet.plans if name != plan.id)
    if any(each.transfer == plan.transfer for each in others):
        print(f"roll-out {plan.id} is removed from the broker; its package is of another one, too")
        return
    remove(client, root, plan.transfer)
    print(f"roll-out {plan.id} and its package are removed from the broker")
    if plan.state == "aborted":
        print("devices that were away have not heard that it was aborted; they find nothing")


def _is_transfer(text: str | None) -> bool:
    """Whether this names a package that a push has left, not a roll-out."""
    return text is not None and len(text) == 32 and not text.strip("0123456789abcdef")


def _find(fleet: Fleet, wanted: str | None, ring: Keyring | None) -> Plan:
    """Find the roll-out that is meant; raise AgentError where it is not clear which."""
    known = ", ".join(sorted(fleet.plans)) or "none"
    if wanted is None and len(fleet.plans) != 1:
        raise AgentError(f"name one as ID; on this broker: {known}")
    name = wanted or next(iter(fleet.plans))
    if name not in fleet.plans:
        raise AgentError(f"roll-out {name} is not on this broker; there: {known}")
    try:
        return read(fleet.plans[name], ring)
    except MalformedError as problem:
        raise AgentError(f"roll-out {name}: {problem}; give the key that it began with") from None


def _resumed(plan: Plan, options: Options) -> Plan:
    if plan.state not in {"running", "paused"}:
        raise AgentError(f"roll-out {plan.id} is {plan.state}; start another one")
    if options.next and plan.wave + 1 < len(plan.waves):
        return changed(plan, state="running", wave=plan.wave + 1)
    return changed(plan, state="running")


def _put(client: OneShotClient, root: str, plan: Plan, ring: Keyring | None, key: Any) -> Plan:
    """Put a plan on the broker, above what others put there meanwhile; return it.

    Raises:
        AgentError: others do not cease.
    """
    topic = f"{rollouts(root)}/{plan.id}"
    for _ in range(TRIES):
        sealed = seal(plan, key)
        client.wait_published([client.publish(topic, sealed, retain=True)])
        found = client.read(topic, LOOK_SECONDS)
        if found == sealed:
            return plan
        try:
            serial = read(found or b"", ring).serial
        except MalformedError:
            serial = plan.serial
        plan = replace(plan, serial=max(serial, plan.serial) + 1)
    raise AgentError(f"roll-out {plan.id}: somebody else writes on its topic; see the access list")
