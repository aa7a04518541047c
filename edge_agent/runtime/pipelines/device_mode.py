"""The mode of the device, such as "night": set on `in/set/@device/mode`, kept over restarts.

Rules may list the modes in which they apply.
"""

from __future__ import annotations

from pathlib import Path

from ...config.settings import Settings
from ...core.errors import RequestError
from ...core.names import NAME_RULE, is_name
from ...core.parameters import shown
from ...core.state_file import StateFile

DEVICE = "@device"
"""Used in place of a pipeline's name."""


class DeviceMode:
    """The current mode. Any thread may read it."""

    def __init__(self, state: Path | None) -> None:
        """Set up the mode, which is read on first use; *state* None: nothing is kept."""
        holds = "modes of this device"
        self._file = None if state is None else StateFile(state / "mode.json", holds)
        self._known: tuple[str | None] | None = None
        self._kept = True
        """Whether it is on disk."""
        self._was_set = False
        """Whether it was set in this run; one that was cleared must not stay published."""

    @property
    def current(self) -> str | None:
        """The mode, or None if none is set."""
        known = self._known
        if known is None:
            found = None if self._file is None else self._file.read(_checked)
            known = self._known = (found,)
        return known[0]

    @property
    def lost(self) -> str | None:
        """What was lost with a damaged file, until a mode is set."""
        lost = None if self._file is None or self._was_set else self._file.lost
        return lost and f"{lost}; rules with `modes` wait for one to be set"

    def is_used(self, settings: Settings) -> bool:
        """Whether a mode is set or was, or a rule lists one."""
        return self._was_set or self.current is not None or bool(modes_of(settings))

    def set_bare(self, key: str, payload: bytes) -> bool:
        """Set the mode from a bare value, as phones and switches send it; `null` clears it.

        Returns:
            Whether it is kept over a restart.

        Raises:
            RequestError: the value is not a mode.
        """
        if key != "mode":
            raise RequestError(f"{shown(key)} cannot be set of {DEVICE}; what can: mode")
        text = payload[:1024].decode(errors="replace").strip()
        mode = None if text == "null" else text
        if mode is not None and not is_name(mode):
            raise RequestError(f"mode: {shown(mode)} is not a name ({NAME_RULE})")
        if mode == self.current and self._kept and self.lost is None:
            return True
        self._known, self._was_set = (mode,), True
        self._kept = self._file is not None and self._file.save(mode)
        return self._kept


def modes_of(settings: Settings) -> list[str]:
    """List the modes in rules."""
    over = {mode for rule in settings.rules for mode in rule.modes}
    each = (rule for pipeline in settings.pipelines for rule in pipeline.rules)
    return sorted(over.union(*(rule.modes for rule in each)))


def _checked(content: object) -> str | None:
    if content is None or (isinstance(content, str) and is_name(content)):
        return content
    raise ValueError(content)
