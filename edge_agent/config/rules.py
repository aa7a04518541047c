"""Records of the settings: zones, lines, rules and their actions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ..core.codec import storable
from ..core.constraints import Ge, Le, Plain
from ..core.frozen import record
from .bounds import Flag, Polygon, Seconds, Threshold

_STRICT: Any = {"extra": "forbid"}

Anchor = Literal["bottom", "center"]
"""The point of a box that counts: the middle of its lower edge, or its center."""


@storable
@record(kw_only=True)
class Zone:
    """An area of the frame in which objects are looked for."""

    __pydantic_config__ = _STRICT
    name: str
    polygon: Polygon
    anchor: Anchor = "bottom"


@storable
@record(kw_only=True)
class Line:
    """A line across which objects are counted."""

    __pydantic_config__ = _STRICT
    name: str
    points: Polygon
    """From its first to its last; "in" is from its left to its right, seen along it."""
    anchor: Anchor = "bottom"


On = Literal["begin", "update", "end", "once", "all"]
"""The state of an event at which an action is done; "begin" is also that of a moment."""


@storable
@record(kw_only=True)
class Action:
    """An action of a rule when it fires."""

    __pydantic_config__ = _STRICT
    publish: str | None = None
    """A topic, which may hold words in braces; of the payload likewise."""
    payload: str = ""
    """Empty: the event."""
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 0
    retain: Flag = False
    http: str | None = None
    """A URL to post the event to."""
    on: On = "begin"


@storable
@record(kw_only=True)
class Rule:
    """When an event occurs."""

    __pydantic_config__ = _STRICT
    name: str
    when: str
    """enter, leave, cross, dwell, count, absent, class, anomaly, value, drift or camera."""
    zone: str | None = None
    """None: the whole frame."""
    line: str | None = None
    direction: Literal["in", "out", "any"] = "any"
    labels: tuple[str, ...] = ()
    """Empty: all."""
    frames: str = "2/3"
    """True in k of the last n results before it counts."""
    for_s: Seconds = 0.0
    """How long it must be true."""
    above: Threshold | None = None
    below: Threshold | None = None
    """With both, the second ends what the first begins."""
    value: str | None = None
    during: str = ""
    """Local time, as "mon-fri 22:00-06:00"; empty: always."""
    modes: tuple[str, ...] = ()
    """Of the device, in which it holds; empty: in all."""
    cooldown_s: Seconds = 0.0
    """Silence after it has ended."""
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 1
    picture: Literal["none", "crop", "frame"] = "none"
    clip: Flag = False
    """Whether a clip is kept, as `evidence` says."""
    do: tuple[Action, ...] = ()

    @property
    def needed(self) -> tuple[int, int]:
        """(k, n): it must be true in k of the last n results."""
        needed, _, of = self.frames.partition("/")
        return int(needed), int(of)


@storable
@record(kw_only=True)
class CombinedRule:
    """A rule over pipelines: all of several events within seconds of each other."""

    __pydantic_config__ = _STRICT
    name: str
    all: tuple[str, ...]
    """Each a pipeline's name, "/" and the name of one of its rules, or a kind of them."""
    within_s: Seconds = 30.0
    during: str = ""
    modes: tuple[str, ...] = ()
    cooldown_s: Seconds = 0.0
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 1
    do: tuple[Action, ...] = ()

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """The pipeline of each member, and its rule or kind of event."""
        parts = [member.partition("/") for member in self.all]
        return tuple((pipeline, rule) for pipeline, _, rule in parts)

    @property
    def pipeline(self) -> str:
        """The pipeline on whose topic its events are published: that of the first."""
        return self.members[0][0]
