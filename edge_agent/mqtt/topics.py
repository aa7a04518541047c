"""Topic names of section 3 of the public interface."""

from __future__ import annotations

from ..core.frozen import record


@record
class Topics:
    """The topics that one device publishes on and subscribes to."""

    root: str
    device: str

    def _own(self, *levels: str) -> str:
        return "/".join((self.root, self.device, *levels))

    @property
    def status(self) -> str:
        return self._own("status")

    @property
    def info(self) -> str:
        return self._own("info")

    @property
    def health(self) -> str:
        return self._own("health")

    @property
    def config(self) -> str:
        return self._own("config")

    def result(self, pipeline: str) -> str:
        return self._own("result", pipeline)

    def event(self, pipeline: str) -> str:
        return self._own("event", pipeline)

    def answer(self, pipeline: str) -> str:
        return self._own("answer", pipeline)

    def count(self, pipeline: str) -> str:
        return self._own("count", pipeline)

    def picture(self, pipeline: str, event: str) -> str:
        return self._own("picture", pipeline, event)

    def clip(self, pipeline: str, event: str) -> str:
        return self._own("clip", pipeline, event)

    def snapshot(self, pipeline: str) -> str:
        return self._own("snapshot", pipeline)

    def pipeline(self, pipeline: str) -> str:
        return self._own("pipeline", pipeline)

    def source(self, pipeline: str) -> str:
        return self._own("source", pipeline)

    def model(self, name: str) -> str:
        return self._own("model", name)

    def push(self, transfer: str) -> str:
        return self._own("push", transfer)

    def reply(self, request: str) -> str:
        return self._own("reply", request)

    @property
    def inbox(self) -> str:
        return self._own("in")

    def group_inbox(self, group: str) -> str:
        return f"{self.root}/@{group}/in"

    @property
    def packages(self) -> str:
        """Where packages lie retained, for all devices."""
        return packages(self.root)

    @property
    def rollouts(self) -> str:
        """Where roll-outs lie retained, for all devices."""
        return rollouts(self.root)

    @property
    def rollout(self) -> str:
        """The device's own word on roll-outs."""
        return self._own("rollout")


def packages(root: str) -> str:
    """Return the topic below which packages lie retained."""
    return f"{root}/@package"


def rollouts(root: str) -> str:
    """Return the topic below which roll-outs lie retained."""
    return f"{root}/@rollout"
