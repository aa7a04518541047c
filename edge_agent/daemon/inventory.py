"""What there is on this device: hardware, profile, engines, models and their crash records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.settings import Settings
from ..runtime.serving.crash_ledger import CrashLedger
from ..runtime.serving.loader import ModelLoader, match_profile, open_library, open_store

if TYPE_CHECKING:
    from ..core.flight_recorder import PreviousCrash


class Inventory:
    """The device and its models, as read from the disk."""

    def __init__(self, settings: Settings) -> None:
        """Read everything; no model is loaded.

        Raises:
            UsageError: something that the settings name is missing or wrong.

        """
        self.match, self.facts = match_profile(settings)
        self.store = open_store(settings)
        self.crashes = CrashLedger(settings.state)
        self.loader = ModelLoader(
            self.match.profile,
            self.facts,
            settings.engine,
            self.store,
            batching=settings.batching,
            crashes=self.crashes,
        )
        self.catalog = open_library(settings, self.store)

    def blame(self, last: PreviousCrash | None) -> None:
        """Count an abnormal end of the last run against the models in use at that moment.

        Must come before any model is loaded.
        """
        if last is not None:
            self.crashes.add(last)
