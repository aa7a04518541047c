"""Settings records for answers on demand: models, limits, and the HTTP address.

They are tables of the settings file (`settings`); `answer_checks` finds their problems.
"""

from __future__ import annotations

from dataclasses import field
from ipaddress import ip_address
from typing import Annotated, Any

from ..core.codec import storable
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.errors import UsageError
from ..core.frozen import record

_STRICT: Any = {"extra": "forbid"}
UNIX = "unix:"
"""Prefix of the address of a Unix socket."""


@storable
@record(kw_only=True)
class Infer:
    """Models that answer requests over MQTT and HTTP."""

    __pydantic_config__ = _STRICT
    models: tuple[str, ...] = ()
    """Each written like a pipeline's `model` and requested by its name. Empty: no answers."""
    per_s: Annotated[float, Plain(), Gt(0), Le(100_000)] = 10.0
    """Requests per second, all clients together."""
    max_mb: Annotated[float, Plain(), Gt(0), Le(256)] = 8.0
    """Size limit of one request, MB."""
    priority: Annotated[int, Plain(), Ge(-1000), Le(1000)] = -10
    """Like a pipeline's `priority`."""


@storable
@record(kw_only=True)
class Http:
    """Answers over HTTP."""

    __pydantic_config__ = _STRICT
    listen: str = ""
    """"127.0.0.1:8001" or "unix:/run/edge-agent/http.sock"; empty: off."""
    token: str = field(default="", repr=False)
    """Better given as the systemd credential `http.token`; empty: no token is required."""


@storable
@record(kw_only=True)
class Text:
    """Models of the task generate."""

    __pydantic_config__ = _STRICT
    kv_cache_mb: Annotated[int, Plain(), Gt(0), Le(2**20)] = 256
    """Size of the paged cache, MiB; questions that do not fit wait or are restarted."""
    max_tokens: Annotated[int, Plain(), Gt(0), Le(1_000_000)] = 512
    """Limit for one answer, whatever the request asks for."""
    max_waiting: Annotated[int, Plain(), Gt(0), Le(10_000)] = 16
    """Most questions in progress; further ones are refused."""


@record
class Endpoint:
    """The address that the HTTP server listens on."""

    host: str
    """An IP address, or the path of a Unix socket."""
    port: int | None
    """None: a Unix socket."""

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.port is None or ip_address(self.host).is_loopback


def parse_listen(text: str) -> Endpoint:
    """Parse `http.listen`, which must not be empty."""
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        # The system accepts no longer path (sun_path in unix(7)).
        if not path.startswith("/") or "\0" in path or len(path.encode()) > 107:
            raise UsageError(
                f'{text!r}: expected "unix:" and an absolute path of at most 107 bytes'
            )
        return Endpoint(path, None)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ip_address(host)
    except ValueError:
        host = ""
    if not host or not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535):
        raise UsageError(
            f'{text!r}: expected an IP address and a port, as "127.0.0.1:8001", or "unix:/path"'
        )
    return Endpoint(host, int(port))
