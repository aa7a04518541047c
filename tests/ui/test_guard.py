"""Who may use the page: no other site in the operator's browser, nobody without the password."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.helpers.support import PATIENCE, Mosquitto, call_cli


def ask(
    url: str, path: str, method: str = "GET", body: str | bytes | None = None, **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    """Ask as a browser does, but for the headers; give status, body and headers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace"), answer.headers
    finally:
        connection.close()


def live(url: str, origin: str | None, **headers: str) -> str:
    """Open the WebSocket as a page from an origin does; give its first message, or the refusal."""
    try:
        with connect(
            url.replace("http", "ws") + "/live",
            origin=origin,  # type: ignore[arg-type]
            additional_headers=headers,
        ) as opened:
            return str(opened.recv(20))
    except InvalidStatus as refused:
        return str(refused.response.status_code)


def test_other_sites_reach_nothing(shared_broker: Mosquitto, serve: Callable[..., str]) -> None:
    """A name that was made to point to loopback, and another page's requests, are refused."""
    url = serve("--broker", shared_broker.url)
    for path in ("/", "/static/app.js", "/session", "/picture?device=a", "/none"):
        status, _, headers = ask(url, path)
        assert status == (404 if path in {"/picture?device=a", "/none"} else 200)
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(url, "/", Host="evil.example")[0] == 403
    assert ask(url, "/", Host="localhost.evil.example:80")[0] == 403
    assert ask(url, "/login", "POST", "x")[0] == 403
    assert ask(url, "/login", "POST", "x", Origin="http://evil.example")[0] == 403
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"):
        assert ask(url, path)[0] == 404
    assert '"hello"' in live(url, url)
    assert [live(url, each) for each in (None, "null", "http://evil.example")] == ["403"] * 3


def test_a_proxy_on_the_same_machine_passes_on_a_page_with_a_password(
    shared_broker: Mosquitto, serve: Callable[..., str], tmp_path: Path
) -> None:
    """As docs/ui.md says to; its name is not localhost. What is of another page stays refused."""
    (tmp_path / "password").write_text("secret")
    url = serve("--broker", shared_broker.url, "--password-file", str(tmp_path / "password"))
    own = {"Host": "edge.example", "Origin": "https://edge.example"}
    status, _, headers = ask(url, "/login", "POST", "secret", **own)
    assert status == 200
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert ask(url, "/session", Host="edge.example", Cookie=cookie)[1] == "open"
    assert ask(url, "/picture?device=a", Host="edge.example")[0] == 403
    assert ask(url, "/login", "POST", "secret", Host="edge.example", Origin=url)[0] == 403


def test_requests_that_nobody_waits_to_have_answered_are_not_kept(
    shared_broker: Mosquitto, serve: Callable[..., str]
) -> None:
    """A stranger sent thousands in a row on each of many connections: a gigabyte."""
    url = serve("--broker", shared_broker.url)
    where = urlsplit(url)
    row = f"GET / HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode()
    crowd = [socket.create_connection((where.hostname or "", where.port or 0)) for _ in range(20)]
    for wire in crowd:
        wire.setblocking(False)  # what does not fit into the system's buffers is not sent
        for _ in range(10):
            with suppress(BlockingIOError):
                wire.send(row * 2000)
    assert ask(url, "/")[0] == 200
    for wire in crowd:
        wire.close()
    assert '"hello"' in live(url, url)


def test_requests_that_never_arrive_whole_do_not_close_the_page(
    shared_broker: Mosquitto, serve: Callable[..., str]
) -> None:
    """260 half heads, each for ever, and nobody could look any more; half a password as well."""
    url = serve("--broker", shared_broker.url, password="open sesame")
    where = urlsplit(url)
    head = f"Host: {where.netloc}\r\n"
    login = f"POST /login HTTP/1.1\r\n{head}Origin: {url}\r\nContent-Length: 11\r\n\r\nopen"
    crowd = []
    for number in range(260):
        wire = socket.create_connection((where.hostname or "", where.port or 0))
        wire.settimeout(PATIENCE)
        half = login if number % 2 else f"GET / HTTP/1.1\r\n{head}"
        with suppress(OSError):  # refused, as there are too many
            wire.sendall(half.encode())
        crowd.append(wire)

    for wire in crowd:
        with suppress(ConnectionError):
            while wire.recv(4096):
                pass  # it is closed before PATIENCE is over
        wire.close()
    assert ask(url, "/")[0] == 200


def test_the_password_opens_the_page(shared_broker: Mosquitto, serve: Callable[..., str]) -> None:
    """Without it there is the form alone; a cookie that no other site can use comes of it."""
    url = serve("--broker", shared_broker.url, password="blue horse ü")
    assert ask(url, "/session")[1] == "password"
    assert (ask(url, "/picture?device=a")[0], live(url, url)) == (403, "403")
    assert ask(url, "/login", "POST", "wrong", Origin=url)[:2] == (403, "wrong password")
    assert ask(url, "/login", "POST", "x" * 2000, Origin=url)[0] == 413
    status, _, headers = ask(url, "/login", "POST", "blue horse ü".encode(), Origin=url)
    cookie = headers["Set-Cookie"]
    assert (status, "HttpOnly" in cookie, "SameSite=strict" in cookie) == (200, True, True)
    cookie = cookie.split(";")[0]
    assert '"hello"' in live(url, url, Cookie=cookie)
    assert live(url, "http://evil.example", Cookie=cookie) == "403"
    assert ask(url, "/session", Cookie=cookie)[1] == "open"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "0.0.0.0:0"), "give a password with --password-file FILE"),
        (("--listen", "8080"), "expected ADDRESS:PORT, as 127.0.0.1:8080, found '8080'"),
        (("--listen", "127.0.0.1:99999"), "expected ADDRESS:PORT"),
        (("--listen", "127.0.0.1:x"), "expected ADDRESS:PORT"),
        (("--password-file", "/none"), "--password-file /none: No such file or directory"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    """An address that others reach wants a password; what cannot be parsed is named."""
    ended = call_cli("ui", *arguments)
    assert (ended.code, words in ended.error) == (2, True), ended


def test_a_port_that_is_taken_is_named(shared_broker: Mosquitto, serve: Callable[..., str]) -> None:
    """A second page on the same port ends with 1 and says so."""
    address = urlsplit(serve("--broker", shared_broker.url)).netloc
    ended = call_cli("ui", "--broker", shared_broker.url, "--listen", address)
    assert (ended.code, "choose another with --listen" in ended.error) == (1, True), ended


def test_the_demo_opens_the_page() -> None:
    """`demo --ui` serves the page of its own broker until it ends, and says where."""
    command = [sys.executable, "-m", "edge_agent", "demo", "--ui", "--pipeline", "bearing"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    said = iter(demo.stdout.readline, "")
    url = next(found[0] for line in said if (found := re.search(r"http://[\d.:]+", line)))
    assert "<title>edge-agent</title>" in ask(url, "/")[1]
    next(line for line in said if "bearing #" in line)
    demo.terminate()
    demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/")
