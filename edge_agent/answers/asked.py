"""A model that may be asked, while it is loaded and has its queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.errors import AgentError
from ..core.types import Kind
from ..inference.engines.generator_process import GeneratorProcess
from ..inference.model import Model
from ..runtime.scheduler.requests import RequestQueue
from .turns import Turns


@dataclass(slots=True, eq=False)
class Asked:
    """A model that may be asked questions."""

    name: str
    route: str
    """The versions asked, in the form of a pipeline's `model`."""
    of: str
    """The model or route as named in the settings."""
    kind: Kind = "picture"
    queue: RequestQueue[Model] | GeneratorProcess | None = None
    problem: AgentError | None = None
    """Why it could not be opened."""
    lost: tuple[float, str] | None = None
    """When the process of a language model last ended by itself, and why."""
    latest: Model | None = None
    """The model that served last; even when closed, it shows which input is accepted."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Callbacks for when it is open or has failed to open; while any are listed, it is opening."""
    turns: Turns = field(default_factory=Turns)
    """Of its questions, while pipelines deliver."""
