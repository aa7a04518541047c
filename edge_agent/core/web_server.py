"""The web servers of this program: quiet, and without what no request here needs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn

END_SECONDS = 2
"""For answers under way, once no more are taken."""
BACKLOG = 128
"""Connections that wait to be accepted. asyncio accepts as many in one turn, before a limit on
connections can end any: with uvicorn's 2048 any local user could take all files of a process."""


def web_server(app: Any, log_level: str, **options: Any) -> uvicorn.Server:
    """Return a server of an ASGI application; *options* are uvicorn's own."""
    import uvicorn

    # "socket.send() raised exception.": a caller has hung up, which is no business of an operator.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level=log_level,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=END_SECONDS,
            backlog=BACKLOG,
            **options,
        )
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out that a stop has ended one request: how many it has is a line of its own."""
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError
