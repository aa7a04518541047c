"""What eight bits must look like on the processor that a network is quantized for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..core.errors import UsageError
from ..core.frozen import record
from ..device.hardware import Facts
from ..device.resources import VNNI

TargetName = Literal["x86", "x86-vnni", "arm"]


@record(kw_only=True)
class Target:
    """One kind of processor."""

    name: TargetName
    signed: bool
    """Whether activations are signed too (S8S8); else unsigned (U8S8)."""
    reduced: bool
    """Whether weights take seven bits."""
    why: str


TARGETS: Mapping[TargetName, Target] = {
    "x86": Target(
        name="x86",
        signed=False,
        reduced=True,
        why="without VNNI, products of eight bits saturate, or are computed in a slower way",
    ),
    "x86-vnni": Target(
        name="x86-vnni", signed=False, reduced=False, why="VNNI sums products in 32 bits"
    ),
    "arm": Target(name="arm", signed=True, reduced=False, why="ARM multiplies signed by signed"),
}


def own_target(facts: Facts) -> Target:
    """Return the target that a machine is.

    Raises:
        UsageError: there is none for its architecture.
    """
    if facts.arch == "aarch64":
        return TARGETS["arm"]
    if facts.arch == "x86_64":
        return TARGETS["x86-vnni" if facts.flags & VNNI else "x86"]
    raise UsageError(f"--target auto: {facts.arch} is unknown; name one of {', '.join(TARGETS)}")


def target_of(name: str, facts: Facts) -> Target:
    """Return the target of a name; of "auto", this machine's."""
    return own_target(facts) if name == "auto" else TARGETS[name]  # type: ignore[index]
