"""Measures which engine, threads, lanes and batch run a model best on this device.

The measurements run in a separate process (`tune_worker`), because engines may crash and never
release memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from ..config.device_profile import DeviceProfile
from ..core.child import ask as ask_child
from ..core.errors import EngineError
from ..core.types import Kind
from ..device.resources import usable_cpus
from ..inference.engines.engine import EngineChoice
from ..models.manifest import ModelFolder
from .loader import ModelLoader
from .tuning_results import Way

PATIENCE_SECONDS = 300.0
SECONDS = 1.0
"""Seconds that each way runs when there is time."""
SHORT_SECONDS = 0.3
"""Seconds that each way runs while the agent is working."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request to measure a model."""

    model: str
    """Its folder."""
    kind: Kind
    choices: tuple[EngineChoice, ...]
    """The ways to try, except for the batch size."""
    seconds: float
    """Seconds of each way, all rounds together."""
    polite: bool
    """Whether the agent is working, so that measuring has low priority."""
    form: str | None
    """Folder of the prepared form that a start would run, or None if there is none."""


def tune_model(
    loader: ModelLoader,
    folder: ModelFolder,
    kind: Kind,
    *,
    live: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Way]:
    """Measure a model on this device and write the results.

    *live*: the agent is working: only its own number of lanes is tried, with low priority.

    Raises:
        AgentError: no engine can run it, it was stopped, or its files cannot be read.
        OSError: the results cannot be written.
    """
    if loader.engines.tuning is None:
        raise EngineError("there is no state folder to write a tune to")
    choices = loader.engines.allowed(folder)
    ways = [replace(choice, lanes=loader.engines.lanes) for choice in choices]
    if not live:
        ways = grid(choices, loader.engines.profile, loader.engines.lanes)
    form = loader.prepared_form(folder, kind, make=not live)
    question = Question(
        str(folder.path),
        kind,
        tuple(ways),
        seconds=SHORT_SECONDS if live else SECONDS,
        polite=live,
        form=None if form is None else form.folder,
    )
    found = ask(question, stopped)
    loader.engines.tuning.write(folder.path, folder.manifest.id, found)
    return found


def grid(choices: Sequence[EngineChoice], profile: DeviceProfile, usual: int) -> list[EngineChoice]:
    """List the ways that the profile allows, its own first."""
    cpus = usable_cpus()
    lanes = [profile.lanes] if profile.lanes else [usual, *({1, 2, cpus} - {usual})]
    found: list[EngineChoice] = []
    for choice in choices:
        for count in lanes:
            for threads in _threads(choice, profile, count, cpus):
                way = replace(choice, lanes=count, threads=threads)
                if count <= cpus and way not in found:
                    found.append(way)
    return found


def _threads(choice: EngineChoice, profile: DeviceProfile, lanes: int, cpus: int) -> list[int]:
    """List the thread counts to try: those that fill the cores, and fewer if decoding needs one."""
    fixed = next(
        (
            profile.threads if line.threads is None else line.threads
            for line in profile.engines
            if (line.engine, line.device) == (choice.engine, choice.device)
        ),
        0,
    )
    if fixed:
        return [fixed]
    most = max(1, cpus // lanes)
    return sorted({most, max(1, most // 2)}, reverse=True)


def ask(
    question: Question,
    stopped: Callable[[], bool] = lambda: False,
    patience: float = PATIENCE_SECONDS,
) -> list[Way]:
    """Measure every way in a separate process; this takes seconds to minutes.

    Raises:
        AgentError: no way works, it took too long, was stopped, or crashed.
    """
    found = ask_child(
        f"{__package__}.tune_worker",
        asdict(question),
        "the tune",
        timeout_s=patience,
        stopped=lambda: "the tune was stopped" if stopped() else None,
    )
    return [Way(**each) for each in found]
