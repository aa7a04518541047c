"""Default places of the settings file and the state folder."""

from __future__ import annotations

import os
from collections.abc import Mapping

PLACES = ("/etc/edge-agent/config.toml", "edge-agent.toml")


SERVICE_STATE = "/var/lib/edge-agent"
"""State folder of the installed service."""


def config_file(given: str | None) -> str | None:
    """Find the settings file as `config.load.find_file` does; return None if there is none."""
    for path in PLACES if given is None else (given,):
        if os.path.isfile(path):  # noqa: PTH113 - one call, before the first result
            # Like `Path.absolute` and `config.load`, this does not resolve "..".
            return os.path.join(working_folder(), path)  # noqa: PTH118 - likewise
    return None


def default_state(
    config: str | None,
    environ: Mapping[str, str],
    service: tuple[str, str] = (PLACES[0], SERVICE_STATE),
) -> str:
    """Return the state folder that is used if the settings give none.

    Args:
        config: the settings file.
        environ: the environment.
        service: settings file and state folder of the installed service: a command that reads
            these settings outside of the unit uses this folder.
    """
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if not given and config == service[0] and os.path.isdir(service[1]):  # noqa: PTH112 - likewise
        given = service[1]
    return given or "~/.local/state/edge-agent"


def working_folder() -> str:
    """Return the working directory, or "" if it has been removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - likewise
    except OSError:
        return ""
