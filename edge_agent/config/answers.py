"""Records of the settings for answers on demand: models, limits, and the address for HTTP.

`settings` has them as tables of the file; `answer_checks` finds their problems.
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
"""Begins the address of a socket that is a file."""


@storable
@record(kw_only=True)
class Infer:
    """Models that others may ask, over MQTT and HTTP."""

    __pydantic_config__ = _STRICT
    models: tuple[str, ...] = ()
    """Each written as a pipeline's `model`; asked by its name. Empty: none may be asked."""
    per_s: Annotated[float, Plain(), Gt(0), Le(100_000)] = 10.0
    """Requests a second of all callers together."""
    max_mb: Annotated[float, Plain(), Gt(0), Le(256)] = 8.0
    """Of one request."""
    priority: Annotated[int, Plain(), Ge(-1000), Le(1000)] = -10
    """As a pipeline's."""


@storable
@record(kw_only=True)
class Http:
    """The same on HTTP."""

    __pydantic_config__ = _STRICT
    listen: str = ""
    """"127.0.0.1:8001" or "unix:/run/edge-agent/http.sock"; empty: off."""
    token: str = field(default="", repr=False)
    """Better given as the systemd credential `http.token`; empty: none is asked for."""


@storable
@record(kw_only=True)
class Text:
    """Models of task generate."""

    __pydantic_config__ = _STRICT
    kv_cache_mb: Annotated[int, Plain(), Gt(0), Le(2**20)] = 256
    """Paged; what has no room waits, or begins anew."""
    max_tokens: Annotated[int, Plain(), Gt(0), Le(1_000_000)] = 512
    """Of one answer, whatever is asked."""
    max_waiting: Annotated[int, Plain(), Gt(0), Le(10_000)] = 16
    """Questions under way; more are refused."""


@record
class Endpoint:
    """Where HTTP is listened on."""

    host: str
    """An IP address; of a socket that is a file, its path."""
    port: int | None
    """None: it is a file."""

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.port is None or ip_address(self.host).is_loopback


def parse_listen(text: str) -> Endpoint:
    """Parse `http.listen`, which is not empty."""
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        # The system takes no longer one (sun_path of unix(7)).
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
