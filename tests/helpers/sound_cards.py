"""Sound cards of ALSA's own making: a PCM that plays what a file or a pipe holds."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest


def _missing() -> str | None:
    try:
        ctypes.CDLL("libasound.so.2")
    except OSError:
        return "ALSA's library is not installed (libasound2)"
    return None


needs_alsa = pytest.mark.skipif(_missing() is not None, reason=_missing() or "it is there")


def write_card(config: Path, sound: Path | None) -> None:
    """Write a configuration with a PCM `mic` that gives raw 16-bit samples; None: without it."""
    text = "pcm.hush { type null }\n"
    if sound is not None:
        text += (
            'pcm.mic { type file; slave.pcm "hush"; file "/dev/null"; '
            f'infile "{sound}"; format "raw" }}\n'
        )
    # Another file each time: ALSA tells a change by its number, and by its time in whole seconds.
    fresh = config.with_name(f"{config.name}.new")
    fresh.write_text(text)
    fresh.replace(config)
