"""Where settings and state are when nobody names a place."""

from __future__ import annotations

import os
from collections.abc import Mapping

PLACES = ("/etc/edge-agent/config.toml", "edge-agent.toml")


SERVICE_STATE = "/var/lib/edge-agent"
"""Of the unit."""


def config_file(given: str | None) -> str | None:
    """Find the settings file as `config.load.find_file` does; None where there is none."""
    for path in PLACES if given is None else (given,):
        if os.path.isfile(path):  # noqa: PTH113 - one call, before the first result
            # As `Path.absolute` does, which makes nothing of "..": `config.load` does not either.
            return os.path.join(working_folder(), path)  # noqa: PTH118 - likewise
    return None


def default_state(
    config: str | None,
    environ: Mapping[str, str],
    service: tuple[str, str] = (PLACES[0], SERVICE_STATE),
) -> str:
    """Give the state folder where nobody names one.

    Args:
        config: the settings file.
        environ: the environment.
        service: settings and state of the installed service: commands that read the first beside
            it, where systemd does not say so, mean the second.

    """
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if not given and config == service[0] and os.path.isdir(service[1]):  # noqa: PTH112 - likewise
        given = service[1]
    return given or "~/.local/state/edge-agent"


def working_folder() -> str:
    """Give the working directory; empty where it has been removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - likewise
    except OSError:
        return ""
