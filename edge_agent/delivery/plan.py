"""The plan and state of a roll-out, signed as one message on `edge/@rollout/<id>`. Section 5.

A broker is not trusted to decide who installs what and when: a device only follows a plan signed by
a trusted key. It has no list of devices; each finds its wave by its name and its groups.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..config.bounds import Seconds, Share
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.errors import MalformedError
from ..core.frozen import record
from ..core.names import is_name, is_version
from ..core.schema import build
from ..models.packages.keys import SIGNATURE_BYTES, Keyring
from ..mqtt.connection import parse_object
from ..mqtt.payloads import SCHEMA, seconds_of

if TYPE_CHECKING:
    from ..models.packages.keys import PrivateKey

MAX_BYTES = 64 * 1024
MAX_WAVES = 64
MOST_DAYS = 366
"""Most days until a plan expires."""
DOMAIN = b"edge-agent roll-out 1\n"
"""Prefix of the signed bytes, so that no signature of anything else is valid for a plan."""
ENDED = frozenset({"live", "rejected", "rolled-back", "aborted", "superseded"})
"""States of a device after which it does nothing more in a roll-out."""

State = Literal["running", "paused", "aborted", "done"]
_STRICT: Any = {"extra": "forbid"}


@record(kw_only=True)
class Wave:
    """The devices of a wave; without devices or a group: all."""

    __pydantic_config__ = _STRICT
    devices: tuple[str, ...] = ()
    group: str | None = None
    share: Annotated[Share, Gt(0)] = 1.0
    """Share of the group, including members of earlier waves."""

    def takes(self, device: str, groups: Collection[str], rank: float) -> bool:
        """Whether a device is in this wave, provided it is in no earlier one."""
        if self.devices:
            return device in self.devices
        return (self.group is None or self.group in groups) and rank < self.share

    def __str__(self) -> str:
        """Describe its devices."""
        if self.devices:
            return ", ".join(self.devices)
        who = "all devices" if self.group is None else f"@{self.group}"
        return who if self.share == 1 else f"{self.share:.0%} of {who}"


@record(kw_only=True)
class Gate:
    """Conditions on a wave before the next one begins; shares are of its devices."""

    __pydantic_config__ = _STRICT
    max_rejected: Share = 0.05
    max_rolled_back: Share = 0.0
    max_disagreeing: Share = 1.0
    min_agreement: Share = 0.5
    """Least share of shadow frames that agree; a device below it disagrees."""
    max_degraded: Share = 0.05
    """Greatest share of devices that become degraded, of those that were ok before."""
    quorum: Annotated[Share, Gt(0)] = 0.95
    """Least share of online devices that must have ended."""
    hold_s: Seconds = 60.0
    """How long the conditions must hold after that."""
    timeout_s: Annotated[Seconds, Gt(0)] = 3600.0
    """How long to wait for the quorum before the roll-out is paused."""


@record(kw_only=True)
class Plan:
    """A roll-out: its constant part, then its progress."""

    __pydantic_config__ = {"extra": "ignore"}  # noqa: RUF012 - pydantic's own form
    id: str
    transfer: str = ""
    name: str = ""
    version: str = ""
    settings: Mapping[str, Any] | None = None
    """In place of a package: a merge patch by pipeline, which each device keeps."""
    created: str
    expires: str
    waves: tuple[Wave, ...]
    gate: Gate
    on_failure: Literal["stop", "back"]
    spread_s: Seconds
    """Time over which the devices of a wave begin, so that they do not all download at once."""
    serial: Annotated[int, Plain(), Ge(1), Le(2**53)]
    """Increases with each change; a device ignores plans with a lower one than it has seen."""
    time: str
    """Time of this change."""
    by: str
    state: State
    wave: Annotated[int, Plain(), Ge(0), Le(MAX_WAVES)]
    """The number of the last wave that may install, from 0."""
    back: bool = False
    """Whether devices go back if the roll-out is aborted."""
    why: str | None = None

    def wave_of(self, device: str, groups: Collection[str]) -> int | None:
        """Return the number of the first wave that a device is in, or None."""
        place = hashlib.sha256(f"{self.id}\0{device}".encode()).digest()[:8]
        rank = int.from_bytes(place, "big") / 2**64
        for number, wave in enumerate(self.waves):
            if wave.takes(device, groups, rank):
                return number
        return None

    def word_in(self, says: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a device reports of this roll-out, by its topic `rollout`; empty: nothing."""
        others = says.get("others")
        for word in (says, *(others if isinstance(others, list) else ())):
            if not isinstance(word, Mapping) or word.get("id") != self.id:
                continue
            if self.settings is None or word.get("created") == self.created:
                return word
        return {}

    def lag(self, device: str, groups: Collection[str], says: Mapping[str, Any]) -> str | None:
        """Return how far a device is that should have completed it; None: it has, or need not."""
        if self.state not in {"running", "done"} or self.expires_at <= time.time():
            return None
        wave, word = self.wave_of(device, groups), self.word_in(says)
        state = str(word.get("state", "waiting"))
        if wave is None or wave > self.wave or state in {"live", "superseded"}:
            return None
        why = f": {word['why']}" if word.get("why") else ""
        return f"{self.label} ({self.id}): {state}{why}"

    @property
    def label(self) -> str:
        """name@version, or the pipelines whose settings it changes."""
        if self.settings is not None:
            return f"settings of {', '.join(self.settings)}"
        return f"{self.name}@{self.version}"

    @property
    def created_at(self) -> float:
        """When it was created, seconds since 1970."""
        return seconds_of(self.created)

    @property
    def expires_at(self) -> float:
        """When it expires, seconds since 1970."""
        return seconds_of(self.expires)


def touched(patch: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    """Return the paths of the keys that a merge patch changes."""
    found: set[tuple[str, ...]] = set()
    for key, value in patch.items():
        below = touched(value) if isinstance(value, Mapping) else ()
        found.update((key, *path) for path in below or ((),))
    return frozenset(found)


def keys_of(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch without its values: as much of it as `left_by` needs of a newer one."""
    return {k: keys_of(value) if isinstance(value, Mapping) else None for k, value in patch.items()}


def left_by(
    newer: Mapping[str, Any], patch: Mapping[str, Any], *, nested: bool = False
) -> dict[str, Any]:
    """Return what a merge patch of pipelines changes that a newer one does not."""
    left: dict[str, Any] = {}
    for key, value in patch.items():
        if key not in newer:
            left[key] = value
        elif not isinstance(later := newer[key], Mapping):
            continue
        elif isinstance(value, Mapping):
            if below := left_by(later, value, nested=True):
                left[key] = below
        elif value is None and not nested and "source" not in later:
            left[key] = None  # a change of some keys does not bring a removed pipeline back
    return left


def seal(plan: Plan, key: PrivateKey | None) -> bytes:
    """Return the payload of a plan, signed if a key is given."""
    text = json.dumps(asdict(plan))
    sealed = {"schema": SCHEMA, "signed": text}
    if key is not None:
        signature = key.sign(DOMAIN + text.encode())
        sealed["signature"] = base64.b64encode(signature).decode()
    return json.dumps(sealed).encode()


class UntrustedError(MalformedError):
    """A plan that no trusted key has signed."""


def read(payload: bytes, ring: Keyring | None, *, allow_unsigned: bool = False) -> Plan:
    """Return the plan in a payload after verifying its signature, unless *ring* is None.

    Raises:
        MalformedError: it is not a plan.
        UntrustedError: no trusted key has signed it.
    """
    body = parse_object(payload) if len(payload) <= MAX_BYTES else None
    text = None if body is None else body.get("signed")
    if body is None or not isinstance(text, str):
        raise MalformedError("is no roll-out")
    data = text.encode(errors="replace")
    if ring is not None and not (allow_unsigned and "signature" not in body):
        try:
            signature = base64.b64decode(str(body.get("signature")), validate=True)
        except ValueError:
            signature = b""
        if len(signature) != SIGNATURE_BYTES or ring.verify(signature, DOMAIN + data) is None:
            raise UntrustedError("it is signed by no key that is trusted here")
    says = parse_object(data)
    if says is None:
        raise MalformedError("is no roll-out")
    plan = build(Plan, says, "roll-out", MalformedError)
    _check(plan)
    return plan


def read_own(payload: bytes, key: PrivateKey | None) -> Plan:
    """Return the plan in a payload that was signed with one's own key; no *key*: one without.

    Raises:
        MalformedError: as `read`.
    """
    ring = Keyring({} if key is None else {"own": key.public_key()}, ())
    try:
        return read(payload, ring, allow_unsigned=key is None)
    except UntrustedError:
        words = "it is signed; give the key with --key" if key is None else "another key signed it"
        raise MalformedError(words) from None


def _check(plan: Plan) -> None:
    """Raise MalformedError if a time, name, version, or wave is invalid."""
    try:
        for at in (plan.created, plan.expires, plan.time):
            seconds_of(at)
    except (TypeError, ValueError, OverflowError):
        raise MalformedError("roll-out: a time is invalid") from None
    if plan.settings is not None:
        good = bool(plan.settings) and not (plan.transfer or plan.name or plan.version)
    else:
        good = is_name(plan.name) and is_version(plan.version) and len(plan.transfer) == 32
    if not good or not is_name(plan.id) or plan.transfer.strip("0123456789abcdef"):
        raise MalformedError("roll-out: id, name, version or transfer is invalid")
    if not 0 < len(plan.waves) <= MAX_WAVES:
        raise MalformedError(f"roll-out: expected 1 to {MAX_WAVES} waves")


def trouble_of(waves: Sequence[Wave]) -> str | None:
    """Return the problem of waves written by a person, or None if there is none."""
    if not 0 < len(waves) <= MAX_WAVES:
        return f"expected 1 to {MAX_WAVES} tables [[waves]]"
    for number, wave in enumerate(waves):
        where = f"waves.{number}"
        if wave.devices and (wave.group is not None or wave.share != 1):
            return f"{where}: either devices, or group and share"
        if bad := [
            name for name in (*wave.devices, wave.group) if name is not None and not is_name(name)
        ]:
            return f"{where}: {bad[0]!r} is no name"
    return None
