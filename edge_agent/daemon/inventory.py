"""The inventory of this device: hardware, profile, engines, models, and their crash records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..config.settings import Settings
from ..models.manifest import ModelFolder, chosen, variant_words
from ..serving.choice import DeviceEngines, match_profile, variants_here
from ..serving.loader import ModelLoader, open_library, open_store
from ..serving.verdicts import Verdicts

if TYPE_CHECKING:
    from ..core.flight_recorder import PreviousCrash


class Inventory:
    """The device and its models, as read from the disk."""

    def __init__(self, settings: Settings) -> None:
        """Read everything; no model is loaded."""
        self.match, self.facts = match_profile(settings)
        self.here = variants_here(settings, self.match, self.facts)
        self.store = open_store(settings)
        self.verdicts = Verdicts(settings.state)
        engines = DeviceEngines(
            self.match.profile,
            self.facts,
            settings.engine,
            state=settings.state,
            batching=settings.batching,
            verdicts=self.verdicts,
            kv_cache_mb=settings.text.kv_cache_mb,
        )
        self.loader = ModelLoader(engines, self.store)
        self.catalog = open_library(settings, self.store)

    def other_variants(self, folders: Iterable[ModelFolder]) -> list[str]:
        """List installed models in *folders* whose variant no longer suits this device.

        The profile in the settings may have changed since a model was installed.
        """
        lines = []
        for folder in {folder.path: folder for folder in folders}.values():
            suits = chosen(folder.manifest.variants, self.here)
            if folder.variant != suits and folder.path.is_relative_to(self.store.models):
                kept = f"is kept as {variant_words(folder.variant)}"
                wanted = f"this device takes {variant_words(suits)} now"
                lines.append(
                    f"model {folder.manifest.id}: {kept}, but {wanted}; "
                    "push it once more, as a higher version"
                )
        return lines

    def blame(self, last: PreviousCrash | None) -> None:
        """Count an abnormal end of the last run against the models in use at that moment.

        Must be called before any model is loaded.
        """
        if last is not None:
            self.verdicts.add_crash(last)
