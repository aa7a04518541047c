"""`edge-agent ui`: serves the operator's page, with data only from the broker."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ...config.load import PAGE_VARIABLE
from ...core.errors import AgentError, UsageError
from ...core.names import LOOPBACK
from ...core.text import redact
from ...models.packages.keys import load_private
from ..broker_settings import broker_settings
from ..options import Options, add_broker
from ..terminal import say

LISTEN = "127.0.0.1:8080"

EXAMPLES = (
    "edge-agent ui --broker mqtt://broker.lan",
    "edge-agent ui --operate --key push.key  commands, settings, signed pushes, too",
    "edge-agent ui --listen 0.0.0.0:8080 --password-file page.password  from phones",
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
    parser.add_argument("--operate", action="store_true", help="commands, settings and pushes, too")
    parser.add_argument("--key", metavar="FILE", help="private key that pushes are signed with")
    add_broker(parser)


def main(options: Options) -> int:
    """Serve the page until Ctrl-C."""
    host, port = _address(options.listen)
    password = _password(options.password_file)
    if password is None and host not in LOOPBACK:
        raise UsageError(
            f"--listen {options.listen}: whoever reaches this address could use the page; "
            f"give a password with --password-file FILE or ${PAGE_VARIABLE}"
        )
    if any(find_spec(library) is None for library in ("starlette", "uvicorn", "websockets")):
        mend = f"{sys.executable} -m pip install starlette uvicorn websockets"
        raise UsageError(f"the page needs the extra `ui`; run: {mend}")
    from ...ui.server import serve

    if options.key is not None:
        if not options.operate:
            raise UsageError("--key signs pushes: give --operate, too")
        load_private(Path(options.key))

    broker = broker_settings(options).broker
    with _listen(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        may = "changes devices" if options.operate else "read-only"
        say(f"page     http://{shown}:{listening.getsockname()[1]}  ({may})")
        say(f"broker   {', '.join(redact(str(node.url)) for node in broker.nodes)}")
        if host not in LOOPBACK:
            say("warning  the password is sent as it is; put TLS before it", sys.stderr)
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            serve(broker, listening, password, local=host in LOOPBACK, push=_push(options))
    return 0


def _push(options: Options) -> list[str] | None:
    """Return the arguments for `edge-agent push` besides file and device; None: no pushes."""
    if not options.operate:
        return None
    given = (("--key", options.key), ("--broker", options.broker), ("--config", options.config))
    return [each for name, value in given if value is not None for each in (name, value)]


def _address(text: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen: expected ADDRESS:PORT, as {LISTEN}, found {text!r}")
    return host.strip("[]"), int(port)


def _password(file: str | None) -> str | None:
    """Read the password."""
    where = f"environment {PAGE_VARIABLE}" if file is None else f"--password-file {file}"
    try:
        given = os.environ.get(PAGE_VARIABLE)
        password = given if file is None else Path(file).read_text("utf-8-sig")
    except OSError as problem:
        raise UsageError(f"{where}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: is not UTF-8 text") from None
    password = password and password.strip("\r\n")
    if password == "":
        raise UsageError(f"{where}: the password is empty")
    return password


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(found[4][:2], family=found[0])
    except OSError as problem:
        raise AgentError(
            f"--listen {host}:{port}: {problem.strerror}; choose another with --listen"
        ) from None
