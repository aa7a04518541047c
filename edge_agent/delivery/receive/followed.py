"""What a device knows of roll-outs: how far each is, and whether it lies on the broker still."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from ...core.names import is_name
from ...core.state_file import StateFile
from ..plan import ENDED, keys_of, left_by

TOGETHER_SECONDS = 0.5
"""Most time between retained plans that come at one subscription."""
ANSWER_SECONDS = 10.0
"""Time for a broker to send a plan that is requested."""


@dataclass(slots=True)
class Followed:
    """The state of a roll-out on this device, as kept on disk."""

    serial: int
    transfer: str
    model: str
    version: str
    expires: float
    """When it expires, seconds since 1970."""
    wave: int
    state: str = "waiting"
    """waiting, receiving, a phase in `rollout.ledger`, or one of `plan.ENDED`."""
    why: str | None = None
    before: str | None = None
    """The version that was live before."""
    was: str | None = None
    """The health before: ok or degraded."""
    agreement: float | None = None
    """Agreement with the previous version in shadow, 0 to 1."""
    aborted: bool = False
    installed: bool = False
    """Whether this roll-out made it serve."""
    created: str = ""
    """For settings: when they were requested. Newer ones with the same id are another change."""
    tries: int = 0
    """For settings: how often they were applied."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def word(self) -> dict[str, Any]:
        """Return the device's report about it."""
        says = {
            "wave": self.wave,
            "state": self.state,
            "why": self.why,
            "model": self.model or None,
            "version": self.version or None,
            "created": self.created or None,
            "from": self.before,
            "was": self.was,
            "agreement": self.agreement,
        }
        return {key: value for key, value in says.items() if value is not None}


_HELD = "@held"
"""Key of what is held in the file, which older ones lack; no name, so an older agent skips it."""


class FollowedFile:
    """The file of the roll-outs, and of what settings that are live have set."""

    def __init__(self, path: Path) -> None:
        """Create the object without touching the file."""
        self._file = StateFile(path, "roll-outs that were seen")
        self.held: dict[str, tuple[str, dict[str, Any]]] = {}
        """By id of settings: when they were requested, at the latest when they were taken over, and
        `keys_of` what they have set here."""

    def read(self) -> dict[str, Followed]:
        """Return the roll-outs by id."""
        return self._file.read(self._parse) or {}

    def _parse(self, content: Any) -> dict[str, Followed]:
        held = content.get(_HELD, {}).items()
        self.held = {name: (created, dict(keys)) for name, (created, keys) in held}
        return {name: Followed(**says) for name, says in content.items() if is_name(name)}

    def hold(self, name: str, created: str, settings: Mapping[str, Any]) -> None:
        """Note which keys live settings have set, and of older ones those that these have not."""
        keys, held = keys_of(settings), {}
        for other, (at, each) in self.held.items():
            if at > created:
                keys = left_by(each, keys)
                held[other] = at, each
            elif other != name and (less := left_by(keys, each)):
                held[other] = at, less
        self.held = held | {name: (created, keys)} if keys else held

    def save(self, known: Mapping[str, Followed]) -> None:
        """Write the roll-outs, and what is held."""
        content = {name: asdict(each) for name, each in known.items()}
        self._file.save(content | {_HELD: self.held})


class Presence:
    """Finds out whether a plan lies on the broker still, where it stands in another's way.

    The removal is heard only within a session that the broker has kept; a broker that has lost
    what it had says nothing. Used by the request thread.
    """

    def __init__(
        self,
        ask: Callable[[list[str]], bool],
        granted: Container[str],
        leave: Callable[[list[str]], object],
    ) -> None:
        """Start without plans.

        *ask* subscribes to topics, and returns False without a connection; *granted* holds those
        for which the broker has answered that; *leave* unsubscribes.
        """
        self._ask = ask
        self._granted = granted
        self._leave = leave
        self._heard: dict[str, tuple[str, float]] = {}
        """By id: the topic of a plan, and when it came last."""
        self._asked: dict[str, float] = {}
        """By id: when a plan was requested that has not come since."""

    def heard(self, name: str, topic: str) -> None:
        """Note that a plan has come."""
        self.forget(name)
        self._heard[name] = topic, time.monotonic()

    def forget(self, name: str) -> None:
        """Forget a plan."""
        topic, _ = self._heard.pop(name, ("", 0.0))
        if self._asked.pop(name, None) is not None:
            self._leave([topic])

    def lies(self, name: str, other: str, now: float) -> bool | None:
        """Whether a plan lies there, now that *other* has come; None: not known yet."""
        (topic, at), (_, since) = self._heard[name], self._heard[other]
        if at > since - TOGETHER_SECONDS:
            return True
        late = now > self._asked.get(name, -inf) + ANSWER_SECONDS
        if late and topic in self._granted and name in self._asked:
            return False
        # Of a connection that is dead, silence says nothing.
        if late and self._ask([topic]):
            self._asked[name] = now
        return None
