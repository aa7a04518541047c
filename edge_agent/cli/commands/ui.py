"""`edge-agent ui`: the operator's page, fed by the broker alone."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from ...config.load import PAGE_VARIABLE
from ...core.errors import AgentError, UsageError
from ...core.text import redact
from ..options import Options, add_broker, broker_settings
from ..terminal import say

LISTEN = "127.0.0.1:8080"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

EXAMPLES = (
    "edge-agent ui --broker mqtt://broker.lan",
    "edge-agent ui --listen 0.0.0.0:8080 --password-file page.password  for phones, too",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--listen",
        default=LISTEN,
        metavar="ADDRESS:PORT",
        help=f"default {LISTEN}; another address than loopback wants a password",
    )
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help=f"holds the password that browsers have to give; or ${PAGE_VARIABLE}",
    )
    add_broker(parser)


def main(options: Options) -> int:
    """Serve the page until Ctrl-C."""
    host, port = _address(options.listen)
    password = _password(options)
    if password is None and host not in LOOPBACK:
        raise UsageError(
            f"--listen {options.listen}: whoever reaches this address could use the page; "
            f"give a password with --password-file FILE or ${PAGE_VARIABLE}"
        )
    if any(find_spec(library) is None for library in ("starlette", "uvicorn", "websockets")):
        raise UsageError("ui needs the extra `ui`; run: pip install starlette uvicorn websockets")
    from ...ui.server import serve

    broker = broker_settings(options).broker
    with _listen(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        say(f"page     http://{shown}:{listening.getsockname()[1]}  (read-only)")
        say(f"broker   {redact(str(broker.url))}")
        if host not in LOOPBACK:
            say("warning  the password is sent as it is; put TLS before it", sys.stderr)
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            serve(broker, listening, password, local=host in LOOPBACK)
    return 0


def _address(text: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.netloc != text or "@" in text:
        raise UsageError(f"--listen: expected ADDRESS:PORT, as {LISTEN}, found {text!r}")
    return host, port


def _password(options: Options) -> str | None:
    """Read the password.

    Raises:
        UsageError: it cannot be read, or is empty.
    """
    if options.password_file is None:
        password = os.environ.get(PAGE_VARIABLE)
        where = f"environment {PAGE_VARIABLE}"
    else:
        where = f"--password-file {options.password_file}"
        try:
            password = Path(options.password_file).read_text(encoding="utf-8").strip("\r\n")
        except OSError as problem:
            raise UsageError(f"{where}: {problem.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{where}: is not UTF-8 text") from None
    if password == "":
        raise UsageError(f"{where}: the password is empty")
    return password


def _listen(host: str, port: int) -> socket.socket:
    """Listen.

    Raises:
        AgentError: the port is taken, or the address is not this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(found[4][:2], family=found[0])
    except OSError as problem:
        raise AgentError(
            f"--listen {host}:{port}: {problem.strerror}; choose another with --listen"
        ) from None
