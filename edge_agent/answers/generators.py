"""Language models that are asked: opened within the memory budget, split between versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config.settings import Arm, Settings
from ..core.errors import ModelError
from ..inference.engines.generator_process import GeneratorProcess
from ..inference.engines.registry import engine_order
from ..models.manifest import ModelFolder
from ..models.store.catalog import Catalog
from ..runtime.pipelines.route import Split
from ..serving.budget import MemoryBudget

RETRY_SECONDS = 60.0
"""Time for which a language model that could not be loaded is not loaded again."""


def open_generator(
    folder: ModelFolder, settings: Settings, budget: MemoryBudget, lost: Callable[[str], None]
) -> GeneratorProcess:
    """Load a language model; may take long. *lost* is called if its process ends by itself.

    Raises:
        ModelError: it cannot be loaded, or does not give its golden answers.
        EngineError: it does not fit in the budget.
    """
    engine_order([], settings.engine, folder.network)
    text = settings.text
    with budget.loading(folder):
        return GeneratorProcess(
            *(folder, lost),
            kv_cache_mb=text.kv_cache_mb,
            max_tokens=text.max_tokens,
            max_waiting=text.max_waiting,
            golden=settings.trial.golden or bool(folder.manifest.trial.golden),
        )


@dataclass
class _Version:
    """A version in a split."""

    model: str


class QuestionSplits:
    """Splits questions between versions, each by itself. One thread at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._splits: dict[tuple[Arm, ...], Split[str] | None] = {}
        """None: they are no language models."""

    def choose(self, arms: tuple[Arm, ...]) -> str | None:
        """Return the version that answers the next question; None: they are no language models."""
        if arms not in self._splits:
            try:
                task = self._catalog.find(arms[0].name, arms[0].version).manifest.task
            except ModelError:
                return None
            versions = [_Version(arm.reference) for arm in arms]
            self._splits[arms] = Split(arms, versions) if task == "generate" else None
        split = self._splits[arms]
        chosen = None if split is None else split.choose()
        if split is not None:
            split.advance()
        return chosen
