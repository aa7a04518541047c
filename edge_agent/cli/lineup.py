"""The engines in this device's profile that can read a network's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..inference.engines.engine import EngineChoice


def engines_for(network: Path) -> list[EngineChoice]:
    """Return the engines for a network, in the profile's order."""
    from ..config.device_profile import choose, default_dirs, lineup, load_profiles
    from ..device.hardware import read_facts
    from ..inference.engines.probe import probe
    from ..inference.engines.registry import engine_order

    facts = read_facts()
    match = choose(load_profiles(default_dirs()), facts)
    return engine_order(lineup(match.profile, facts, probe).choices, "auto", network)
