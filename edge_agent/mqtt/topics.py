"""Topic names of section 3 of the public interface."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..core.frozen import record


def _named(level: str) -> Callable[[Topics, str], str]:
    """Return a method that builds the device's own topic for a name, such as a pipeline's."""

    def topic(topics: Topics, name: str) -> str:
        return f"{topics.root}/{topics.device}/{level}/{name}"

    return topic


@record
class Topics:
    """The topics that one device publishes on and subscribes to."""

    root: str
    device: str

    @property
    def status(self) -> str:
        return f"{self.root}/{self.device}/status"

    @property
    def info(self) -> str:
        return f"{self.root}/{self.device}/info"

    @property
    def health(self) -> str:
        return f"{self.root}/{self.device}/health"

    @property
    def config(self) -> str:
        return f"{self.root}/{self.device}/config"

    @property
    def inbox(self) -> str:
        return f"{self.root}/{self.device}/in"

    @property
    def rollout(self) -> str:
        """Topic of the device's reports on roll-outs."""
        return f"{self.root}/{self.device}/rollout"

    result = _named("result")
    event = _named("event")
    answer = _named("answer")
    count = _named("count")
    snapshot = _named("snapshot")
    pipeline = _named("pipeline")
    source = _named("source")
    model = _named("model")
    push = _named("push")
    reply = _named("reply")

    def picture(self, pipeline: str, event: str) -> str:
        return f"{self.root}/{self.device}/picture/{pipeline}/{event}"

    def clip(self, pipeline: str, event: str) -> str:
        return f"{self.root}/{self.device}/clip/{pipeline}/{event}"

    def group_inbox(self, group: str) -> str:
        return f"{self.root}/@{group}/in"

    @property
    def packages(self) -> str:
        """Parent topic of the retained packages for all devices."""
        return packages(self.root)

    @property
    def rollouts(self) -> str:
        """Parent topic of the retained roll-outs for all devices."""
        return rollouts(self.root)


def packages(root: str) -> str:
    """Return the parent topic of the retained packages."""
    return f"{root}/@package"


def rollouts(root: str) -> str:
    """Return the parent topic of the retained roll-outs."""
    return f"{root}/@rollout"


def identifier(topics: Topics) -> str:
    """Return the name of this device in Home Assistant."""
    return f"edge-agent_{topics.device}"


def object_id(topics: Topics) -> str:
    """Return this device's level in the discovery topic; Home Assistant ignores dotted ones."""
    name = identifier(topics)
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if safe == name:
        return name
    import hashlib  # rarely needed

    return f"{safe}_{hashlib.sha256(topics.device.encode()).hexdigest()[:8]}"
