"""Loads and runs a model in a child process, for commands that only check whether it works.

A model that runs forever, crashes, or takes all memory ends the child, not the command.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config.settings import Settings
from ..core.child import ChildError, answer_question, ask, die_with_parent
from ..core.errors import ModelError
from ..core.privileges import User, become
from ..core.state_file import only_looking
from ..core.types import Kind
from ..models.manifest import ModelFolder


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of running a model once."""

    engine: str
    """The engine's name in results."""
    choice: str
    """The engine's name alone."""
    begins: str | None
    """The engine and device that a start begins on, if different; None: the same."""
    passed_over: list[str]
    """Engines that cannot serve, and why."""
    golden: str | None
    """How its golden outputs agree, or None if it has none."""


def check_model(
    settings: Settings,
    config: str | None,
    folder: ModelFolder,
    kind: Kind,
    user: User | None = None,
) -> Checked:
    """Load a model on this device, and compare its golden outputs.

    Args:
        settings: those of the device.
        config: their file as given on the command line.
        folder: the model.
        kind: what it is given.
        user: the user to do it as, where root is asked: engines run what the model and the state
            folder hold. None: the user of this process.

    Raises:
        ModelError: it cannot run, does not give its golden outputs, or does not return.
        EngineError: no engine can run it.
    """
    question = {
        "config": config,
        "folder": str(folder.path),
        "variant": folder.variant,
        "kind": kind,
        "user": user,
    }
    name, patience = f"{folder.manifest.id}: loading and running it", settings.trial.timeout_s
    began = time.monotonic()
    try:
        said = ask(__name__, question, name, timeout_s=patience)
    except ChildError as problem:
        late = time.monotonic() - began > patience
        mend = "; if it is only slow, raise trial.timeout_s" if late else ""
        raise ModelError(f"{problem}{mend}") from None
    return Checked(**said)


def _answer(question: Any) -> dict[str, Any]:
    from argparse import Namespace

    from ..inference.golden import check_golden
    from ..models.manifest import load
    from ..serving.choice import DeviceEngines, match_profile
    from ..serving.loader import ModelLoader, open_store
    from .options import load_settings

    settings = load_settings(Namespace(config=question["config"]))  # maybe for root alone to read
    if question["user"] is not None:
        become(User(*question["user"]))
        die_with_parent()  # whose death the kernel does not report to another user unless asked
    folder = load(Path(question["folder"]), [question["variant"]])
    match, facts = match_profile(settings)
    if folder.manifest.task == "generate":
        from ..inference.engines.generator import LABEL, try_out
        from ..serving.budget import MemoryBudget

        MemoryBudget(match.profile.memory_budget_mb, settings.text.kv_cache_mb).check(folder)
        wanted = settings.trial.golden or bool(folder.manifest.trial.golden)
        _, golden = try_out(folder, golden=wanted)
        return asdict(Checked(LABEL, LABEL.partition(":")[0], None, [], golden))
    # Uses what the agent has learned about its engines here, because its choice depends on that.
    store = open_store(settings, make=False)
    engines = DeviceEngines(match.profile, facts, settings.engine, state=store.root)
    loader = ModelLoader(engines, store)
    model, passed = loader.load(folder, question["kind"])
    first = engines.quick_choice(folder)
    if first is None and loader.prepared_form(folder, question["kind"]) is not None:
        first = engines.prepared_choice(folder)
    other = first is not None and first.place != model.choice.place
    begins = f"{first.engine}:{first.device}" if first is not None and other else None
    agreement = check_golden(model)
    golden = None if agreement is None else agreement.why
    return asdict(Checked(model.engine.label, model.choice.engine, begins, passed, golden))


def _look(question: Any) -> dict[str, Any]:
    with only_looking():
        return _answer(question)


if __name__ == "__main__":
    answer_question(_look, background=True)
