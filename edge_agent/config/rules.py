"""Settings records for zones, lines, rules and their actions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ..core.codec import storable
from ..core.constraints import Ge, Le, Plain
from ..core.frozen import record
from .bounds import Flag, Polygon, Seconds, Threshold

_STRICT: Any = {"extra": "forbid"}

Anchor = Literal["bottom", "center"]
"""The point that represents a box: the middle of its lower edge, or its center."""


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
    """From first to last; "in" means crossing from left to right as seen along the line."""
    anchor: Anchor = "bottom"


On = Literal["begin", "update", "end", "once", "all"]
"""The state of an event at which an action runs; a momentary event counts as "begin"."""


@storable
@record(kw_only=True)
class Action:
    """An action of a rule when it fires."""

    __pydantic_config__ = _STRICT
    publish: str | None = None
    """A topic, which may contain words in braces, as may the payload."""
    payload: str = ""
    """Empty: the event as JSON."""
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 0
    retain: Flag = False
    http: str | None = None
    """A URL to post the event to."""
    on: On = "begin"


@storable
@record(kw_only=True)
class Rule:
    """The conditions under which an event occurs."""

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
    """"k/n": it must be true in k of the last n results."""
    for_s: Seconds = 0.0
    """How long it must be true."""
    above: Threshold | None = None
    below: Threshold | None = None
    """With both, `below` ends what `above` begins."""
    value: str | None = None
    during: str = ""
    """Local time, such as "mon-fri 22:00-06:00"; empty: always."""
    modes: tuple[str, ...] = ()
    """Modes of the device in which it applies; empty: all."""
    cooldown_s: Seconds = 0.0
    """Time without events after one has ended."""
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 1
    picture: Literal["none", "crop", "frame"] = "none"
    clip: Flag = False
    """Whether a clip is kept, according to `evidence`."""
    do: tuple[Action, ...] = ()

    @property
    def needed(self) -> tuple[int, int]:
        """(k, n): it must be true in k of the last n results."""
        needed, _, of = self.frames.partition("/")
        return int(needed), int(of)


@storable
@record(kw_only=True)
class CombinedRule:
    """A rule over several pipelines: all its events occur within some seconds of each other."""

    __pydantic_config__ = _STRICT
    name: str
    all: tuple[str, ...]
    """Each is a pipeline's name, "/", and the name or kind of one of its rules."""
    within_s: Seconds = 30.0
    during: str = ""
    modes: tuple[str, ...] = ()
    cooldown_s: Seconds = 0.0
    qos: Annotated[int, Plain(), Ge(0), Le(1)] = 1
    do: tuple[Action, ...] = ()

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """The pipeline of each member, and its rule or kind of rule."""
        parts = [member.partition("/") for member in self.all]
        return tuple((pipeline, rule) for pipeline, _, rule in parts)

    @property
    def pipeline(self) -> str:
        """The pipeline on whose topic its events are published: the first member's."""
        return self.members[0][0]
