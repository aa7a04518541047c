"""The HTTP address moved by a reload: who may ask while it moves, and where it cannot."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.daemon.test_reload import reload
from tests.end_to_end.test_http import Caller, running
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    free_port,
    wait_until,
)

pytest.importorskip("httptools")
Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
CLOSED = 0


def stranger(port: int, token: str = "") -> int:
    """Ask at an address that 127.0.0.1 does not listen on, under a name that is local."""
    connection = HTTPConnection("127.0.0.2", port, timeout=PATIENCE)
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", "/v2", headers={"Host": "localhost", **shown})
        return connection.getresponse().status
    except (ConnectionError, HTTPException):
        return CLOSED
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        return Caller(port)("/v2").status == 200
    except (ConnectionError, HTTPException):
        return False


@contextmanager
def refused_always(port: int) -> Iterator[None]:
    """Ask again and again without a token; nothing may be answered."""
    found, ended = set[int](), threading.Event()

    def ask() -> None:
        while not ended.wait(0.005):  # it need not take a whole core
            found.add(stranger(port))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()
    assert found <= {401, CLOSED}


def test_an_address_restricted_to_this_machine_never_answers_the_network_without_a_token(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """It stayed open to all, without the token that the new address needs no more."""
    port = free_port()
    wide = {"listen": f"0.0.0.0:{port}", "token": "geheim"}
    with (
        running(broker, listen, agent, tmp_path, http=wide) as (_, heard, process),
        socket.create_server(("127.0.0.1", 0)) as other,
        refused_always(port),
    ):
        assert stranger(port, "geheim") == 200
        reload(process, http={"listen": f"127.0.0.1:{port}", "token": ""})
        wait_until(lambda: stranger(port) == CLOSED, "it to be closed to others")
        wait_until(lambda: answers(port), "an answer on this machine")
        assert stranger(port, "geheim") == CLOSED
        reload(process, http=wide)
        wait_until(lambda: stranger(port, "geheim") == 200, "it to be back")
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        reload(process, http={"listen": taken, "token": ""})
        heard.wait_why(f"http.listen: {taken}: Address already in use")
        assert stranger(port, "geheim") == CLOSED


def test_an_address_that_cannot_be_had_leaves_the_one_before_with_the_new_token(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Health says which one answers, also where its port had to be free first."""
    port = free_port()
    wide = {"listen": f"0.0.0.0:{port}", "token": "old"}
    with (
        running(broker, listen, agent, tmp_path, http=wide) as (_, heard, process),
        socket.create_server(("127.0.0.1", 0)) as other,
        refused_always(port),
    ):
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        reload(process, http={"listen": taken, "token": "new"})
        still = f"http still listens on 0.0.0.0:{port}"
        heard.wait_why(f"http.listen: {taken}: Address already in use; {still}")
        assert (stranger(port, "old"), stranger(port, "new")) == (401, 200)
        reload(process, http={"listen": f"192.0.2.1:{port}", "token": "newer"})
        heard.wait_why(f"http.listen: 192.0.2.1:{port}: Cannot assign requested address; {still}")
        assert (stranger(port, "new"), stranger(port, "newer")) == (401, 200)
