"""Models asked over HTTP: pictures, the Open Inference Protocol, hostile bytes, a swap, a stop."""

from __future__ import annotations

import gzip
import json
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edge_agent.answers.http_listener import bind
from edge_agent.config.answers import Endpoint
from tests.end_to_end.test_answers import table
from tests.helpers.small_models import brightness, encode_jpeg, heavy, plain, write_manifest
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
    run_cli,
    wait_until,
)
from tests.helpers.tiny_networks import node, save_onnx

pytest.importorskip("httptools")
Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"
GRAY = encode_jpeg(plain(100))


WITHOUT = "import sys\nsys.modules['httptools'] = sys.modules['prometheus_client'] = None\n"


def test_all_that_the_extra_lacks_is_named_by_the_log_health_and_check(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """After what the log had named was installed, `/metrics` asked for one more."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(WITHOUT)
    environ = {"PYTHONPATH": str(tmp_path / "without")}
    http = {"listen": f"127.0.0.1:{free_port()}"}
    heard = listen(broker.port)
    process = agent(agent_settings("box", broker.url, [], http=http), environ=environ)
    needed = "needs httptools, prometheus-client; install with: "
    words = f"{needed}{sys.executable} -m pip install httptools prometheus-client"
    heard.wait_why(f"http.listen: {words}")
    assert f"http.listen: {words}" in process.words()
    done = run_cli("check", "--config", str(process.config), environ=environ)
    assert f"FAIL  http.listen: {words}" in done.stdout


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.body)
        return loaded


class Caller:
    """Somebody who asks over HTTP."""

    def __init__(self, address: int | Path, token: str = "") -> None:
        self.address = address
        self.token = token

    def connect(self) -> socket.socket:
        if isinstance(self.address, int):
            return socket.create_connection(("127.0.0.1", self.address), PATIENCE)
        wire = socket.socket(socket.AF_UNIX)
        wire.settimeout(PATIENCE)
        wire.connect(str(self.address))
        return wire

    def __call__(
        self, path: str, body: bytes | dict[str, Any] | None = None, **headers: str
    ) -> Answered:
        """Ask: a POST where there is a body, else a GET."""
        connection = HTTPConnection("localhost")
        connection.sock = self.connect()
        sent = json.dumps(body).encode() if isinstance(body, dict) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            named["Authorization"] = f"Bearer {self.token}"
        connection.request("GET" if sent is None else "POST", path, sent, named)
        response = connection.getresponse()
        lower = {name.lower(): value for name, value in response.getheaders()}
        answered = Answered(response.status, lower, response.read())
        connection.close()
        return answered

    def raw(self, data: bytes, ends: bool = False) -> bytes:
        """Send bytes, and give all that comes until the end of the connection.

        Args:
            data: the bytes.
            ends: whether to close the side that sends, as `nc -N` does.
        """
        with self.connect() as wire:
            found = b""
            try:
                wire.sendall(data)
                if ends:
                    wire.shutdown(socket.SHUT_WR)
                while part := wire.recv(65536):
                    found += part
            except ConnectionError:
                pass  # it has hung up amid what was sent
            return found


def places(folder: Path) -> None:
    """Make a model that says where a row of four is not 0: as many numbers as there are."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [node("Reshape", ["row", "size"], ["flat"]), node("NonZero", ["flat"], ["places"])],
        [("row", "float32", (1, 4))],
        [("places", "int64", (1, None))],
        {"size": np.array([4], np.int64)},
    )
    write_manifest(folder, "1", "raw", input={"window": 1}, output={"decoder": "raw"})


@contextmanager
def running(
    broker: Mosquitto, listen: Listeners, agent: Agents, folder: Path, **tables: Any
) -> Iterator[tuple[Caller, Listener, AgentProcess]]:
    """Run an agent that listens, without a pipeline unless *tables* have some."""
    pipelines = tables.pop("pipelines", [])
    brightness(folder / "models" / "light")
    table(folder / "models" / "rows")
    heavy(folder / "models" / "slow", 20)
    places(folder / "models" / "places")
    port = free_port()
    heard = listen(broker.port)
    more: dict[str, Any] = {
        "infer": {"models": ["light", "rows", "slow", "places"], "per_s": 10_000},
        "http": {"listen": f"127.0.0.1:{port}"},
        "trial": {"shadow_frames": 0, "probation_s": 1},
        **tables,
    }
    process = agent(
        agent_settings("box", broker.url, pipelines, models_dirs=[str(folder / "models")], **more)
    )
    heard.wait_state(f"{D}/status", state="online")
    heard.wait_for(lambda _: "http: " in process.words() or None, "a listener")
    yield Caller(port), heard, process
    assert process.stop() == 0


def tensor(name: str, array: Any, **parameters: Any) -> dict[str, Any]:
    """Make an input of the protocol, without its data."""
    kinds = {"float32": "FP32", "float64": "FP64"}
    made = {"name": name, "shape": list(array.shape), "datatype": kinds[array.dtype.name]}
    return {**made, "parameters": parameters} if parameters else made


def test_pictures_and_tensors_are_answered(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """The same result as over MQTT; tensors as KServe v2 has them, in JSON and binary."""
    with running(broker, listen, agent, tmp_path) as (ask, heard, _):
        found = ask("/predict/light", GRAY)
        assert found.status == 200
        assert found.json["pipeline"] == "@infer"
        heard.publish(f"{D}/in/infer/light/m", GRAY)
        reply = heard.wait_for(lambda _: heard.last(f"{D}/reply/m"), "an answer")
        assert found.json["values"] == reply["values"]
        url = ["--url", f"http://127.0.0.1:{ask.address}"]
        (tmp_path / "p.jpg").write_bytes(GRAY)
        by_hand = call_cli("infer", str(tmp_path / "p.jpg"), "--model", "light", *url, "--json")
        assert json.loads(by_hand.out)["values"] == reply["values"]
        unknown = call_cli("infer", str(tmp_path / "p.jpg"), "--model", "other", *url)
        assert (unknown.code, unknown.error.endswith("(404)")) == (1, True)

        assert ask("/v2").json["extensions"] == ["binary_tensor_data"]
        assert ask("/v2/health/live").json == {"live": True}
        assert ask("/v2/health/ready").json == {"ready": True}
        described = ask("/v2/models/rows").json
        assert described["inputs"] == [{"name": "row", "datatype": "FP32", "shape": [-1, 4]}]
        assert described["versions"] == ["1"]
        assert ask("/v2/models/rows/versions/1/ready").status == 200
        assert ask("/v2/models/rows/versions/2/ready").status == 404
        assert ask("/v2/models/nothing/ready").status == 404

        rows = np.random.default_rng(0).random((3, 4), np.float32)
        data = {**tensor("row", rows), "data": rows.tolist()}
        plain_json = ask("/v2/models/rows/infer", {"id": "7", "inputs": [data]}).json
        assert (plain_json["id"], plain_json["model_version"]) == ("7", "1")
        means = plain_json["outputs"][0]["data"]
        assert means == pytest.approx(rows.mean(axis=1).tolist(), rel=1e-6)
        wanted = [{"name": "mean", "parameters": {"binary_data": True}}]
        declared = [tensor("row", rows, binary_data_size=rows.nbytes)]
        head = json.dumps({"inputs": declared, "outputs": wanted}).encode()
        binary = ask(
            "/v2/models/rows/versions/1/infer",
            gzip.compress(head + rows.tobytes()),
            Content_Encoding="X-GZIP",
            Inference_Header_Content_Length=str(len(head)),
        )
        size = int(binary.headers["inference-header-content-length"])
        assert json.loads(binary.body[:size])["outputs"][0]["shape"] == [3]
        assert np.frombuffer(binary.body[size:], np.float32).tolist() == means
        unlike = {**tensor("row", rows[:2]), "data": [1, 0, 0, 0, 1, 1, 0, 0]}
        found = ask("/v2/models/places/infer", {"inputs": [unlike]})
        assert found.status == 400
        assert found.json["error"].startswith("joining the rows")
        alone = {**tensor("row", rows[:1]), "data": [1, 0, 0, 1]}
        found = ask("/v2/models/places/infer", {"inputs": [alone]})
        assert found.json["outputs"][0]["data"] == [0, 3]
        assert b"edge_agent_infer_answered_total" in ask("/metrics").body


ROW = {"name": "row", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
IN_SHARED_MEMORY = {"parameters": {"shared_memory_region": "there", "shared_memory_byte_size": 4}}
WRONG: dict[str, tuple[str, bytes | dict[str, Any] | None, int]] = {
    "no picture": ("/predict/light", b"no picture", 400),
    "a GET": ("/predict/light", None, 405),
    "an unknown model": ("/predict/../../etc/passwd", GRAY, 404),
    "an unknown path": ("/v3", None, 404),
    "no JSON": ("/v2/models/rows/infer", b"{", 400),
    "no inputs": ("/v2/models/rows/infer", {"inputs": []}, 400),
    "a list": ("/v2/models/rows/infer", b"[1]", 400),
    "no such input": ("/v2/models/rows/infer", {"inputs": [{"name": "x"}]}, 400),
    "no data": (
        "/v2/models/rows/infer",
        {"inputs": [{"name": "row", "shape": [1, 4], "datatype": "FP32"}]},
        400,
    ),
    "an output whose name is a list": (
        "/v2/models/rows/infer",
        {"inputs": [ROW], "outputs": [{"name": []}]},
        400,
    ),
    "a coding that is a list": (
        "/v1/embeddings",
        {"model": "rows", "input": "a", "encoding_format": []},
        400,
    ),
    "columns that are a number": (
        "/predict/rows",
        {"readings": [[1, 2, 3, 4]], "columns": 0},
        400,
    ),
    "an id that is a number": ("/v2/models/rows/infer", {"id": 7, "inputs": [ROW]}, 400),
    "an input given twice": ("/v2/models/rows/infer", {"inputs": [ROW, ROW]}, 400),
    "shared memory": (
        "/v2/models/rows/infer",
        {"inputs": [ROW], "outputs": [{"name": "mean", **IN_SHARED_MEMORY}]},
        400,
    ),
    "an output many times": (
        "/v2/models/rows/infer",
        {"inputs": [ROW], "outputs": [{"name": "mean"}] * 10},
        400,
    ),
    "a hundred axes": (
        "/v2/models/rows/infer",
        {"inputs": [{**ROW, "shape": [1] * 98 + [1, 4]}]},
        400,
    ),
    "sizes whose product is 0 in 64 bits": (
        "/v2/models/rows/infer",
        {"inputs": [{**ROW, "shape": [2**16] * 4, "data": []}]},
        400,
    ),
    "a wrong type": (
        "/v2/models/rows/infer",
        {"inputs": [{"name": "row", "shape": [1, 4], "datatype": "BYTES", "data": ["a"] * 4}]},
        400,
    ),
    "too much": (
        "/v2/models/rows/infer",
        {"inputs": [{"name": "row", "shape": [2**30, 2**30], "datatype": "FP32", "data": [1]}]},
        400,
    ),
    "bytes that are not there": (
        "/v2/models/rows/infer",
        {
            "inputs": [
                {
                    "name": "row",
                    "shape": [1, 4],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 16},
                }
            ]
        },
        400,
    ),
    "too large": ("/predict/light", GRAY + b"0" * 2**20, 413),
}
POST = b"POST /predict/light HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
POST_LAST = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
OFFER = b"Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
SIZED = b"Content-Length: %d\r\n\r\n%b" % (len(GRAY), GRAY)
HOSTILE = {
    "smuggled": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", b"400"),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", b"400"),
    "negative": (POST + b"Content-Length: -1\r\n\r\n", b"400"),
    "a large header": (POST + b"X: " + b"a" * 2**20, b"431"),
    "a header of 20 kB": (POST + b"X: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
    "many headers": (POST + b"X: y\r\n" * 10_000 + b"\r\n", b"431"),
    "a long path": (b"GET /" + b"a" * 2**17 + b" HTTP/1.1\r\n\r\n", b"431"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), b"400"),
    "a bad chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", b"400"),
    "a trailer without an end": (CHUNKED + b"0\r\nX: " + b"a" * 2**20, b"431"),
    "an extension without an end": (CHUNKED + b"9;x=" + b"a" * 2**20, b"431"),
    "a trailer as a header": (
        POST_LAST + b"%x\r\n%b\r\n0\r\nContent-Encoding: br\r\n\r\n" % (len(GRAY), GRAY),
        b"200",
    ),
    "an offer of HTTP/2, as Java's client makes it": (POST + OFFER + SIZED, b"200"),
    "two offers": (POST + b"Upgrade: a\r\n" + OFFER + SIZED, b"200"),
    "an offer after empty lines": (b"\r\n\r\n" + POST + OFFER + SIZED, b"200"),
    "a proxy wanted": (b"CONNECT mine:80 HTTP/1.1\r\nHost: mine:80\r\n\r\n", b"400"),
    "half a head": (POST, b"408"),
    "silence": (b"", b"408"),
    "half a body": (POST + b"Content-Length: 100\r\n\r\nabc", b"408"),
}


def test_what_strangers_send_gets_a_clear_status_and_costs_nobody_else(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Wrong questions, and bytes that are hardly HTTP; the slow ones are cut off meanwhile."""
    infer = {"models": ["light", "rows"], "per_s": 10_000, "max_mb": 1}
    with (
        running(broker, listen, agent, tmp_path, infer=infer) as (ask, heard, process),
        ThreadPoolExecutor(len(HOSTILE)) as strangers,
    ):
        sent = {name: strangers.submit(ask.raw, data) for name, (data, _) in HOSTILE.items()}
        for name, (path, body, status) in WRONG.items():
            answered = ask(path, body)
            assert answered.status == status, name
            assert "error" in answered.json, name
            assert "Error:" not in str(answered.json), name
        bomb = gzip.compress(bytes(2**24))
        burst = ask("/v2/models/rows/infer", bomb, Content_Encoding="gzip")
        assert burst.status == 413, burst.body
        assert ask("/predict/light", GRAY, Content_Encoding="br").status == 400
        assert ask("/predict/light", b"").json["error"].endswith("; nothing came")
        pieces = gzip.compress(GRAY) + gzip.compress(GRAY)
        assert ask("/predict/light", pieces, Content_Encoding="gzip").status == 400
        for name, future in sent.items():
            found = future.result(PATIENCE)
            assert found.startswith(b"HTTP/1.1 " + HOSTILE[name][1]), (name, found[:80])
        crowd = [ask.connect() for _ in range(256)]
        assert ask.raw(b"").startswith(b"HTTP/1.1 503")
        for wire in crowd:
            wire.close()
        heard.wait_for(lambda _: ask.raw(POST + b"\r\n")[9:12] == b"400" or None, "room again")
        assert ask("/predict/light", GRAY).status == 200
        assert "Traceback" not in process.words()
        health = heard.wait_for(
            lambda _: (
                (h := heard.last(f"{D}/health"))
                and h["infer"]["answered"]
                and not h["infer"]["waiting"]
                and h
            ),
            "a count",
        )
        assert health["state"] == "ok"


def test_an_offer_of_another_protocol_hides_no_body(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Not in a second request, and not in pieces: a body never becomes a request of its own."""
    hidden = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b"Content-Length: %d\r\n\r\n%b" % (len(hidden), hidden)
    head, rest = POST + OFFER[:30], OFFER[30:] + body
    with running(broker, listen, agent, tmp_path) as (ask, _heard, _process), ask.connect() as wire:
        wire.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" + head)
        found = b""
        while not found.endswith(b'{"live":true}'):  # then the piece of the next head is read, too
            found += wire.recv(65536)
        wire.sendall(rest)
        found = b""
        while part := wire.recv(65536):
            found += part
        assert found.count(b"HTTP/1.1 ") == 1
        assert found.startswith(b"HTTP/1.1 400")
        assert b"expected a JPEG" in found
        twice = ask.raw(POST + SIZED + POST + OFFER + SIZED)
        assert twice.count(b"HTTP/1.1 200") == 2


def test_who_closes_only_his_sending_side_is_answered(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """As `nc -N` and old scripts do; what is cut short by it is said to be so."""
    old = b"POST /predict/slow HTTP/1.0\r\n" + SIZED
    with running(broker, listen, agent, tmp_path) as (ask, _heard, process):
        for sent, answers in ((old, 1), (POST + SIZED, 1), ((POST + SIZED) * 3, 3)):
            found = ask.raw(sent, ends=True)
            assert found.count(b"HTTP/1.1 200") == found.count(b'"pipeline":"@infer"') == answers
        for cut in (POST, POST + SIZED[:-1]):
            assert ask.raw(cut, ends=True).startswith(b"HTTP/1.1 400")
        assert ask.raw(b"", ends=True) == b""
        assert "Traceback" not in process.words()


def test_requests_that_nobody_waits_to_have_answered_are_refused_and_not_kept(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """A stranger without the token sent 2000 in a row on each of 150 connections: gigabytes."""
    row = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with running(broker, listen, agent, tmp_path) as (ask, _heard, process):
        assert ask.raw(row * 16 + last).count(b"HTTP/1.1 200") == 17
        before = resident(process)
        crowd = [ask.connect() for _ in range(100)]
        for wire in crowd:
            with suppress(ConnectionError):
                wire.sendall(row * 2000)
        for wire in crowd:
            with suppress(ConnectionError), wire:
                assert wire.recv(65536).startswith(b"HTTP/1.1 429")
        assert ask("/v2/health/live").status == 200
        assert resident(process) - before < 100 * 2**20
        assert "Traceback" not in process.words()


def test_bodies_that_are_cut_do_not_stay_in_memory(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Phones that lose their network amid an upload, again and again: a small box ran out."""
    most = 8 * 2**20
    head = f"POST /predict/light HTTP/1.1\r\nHost: localhost\r\nContent-Length: {most}\r\n\r\n"
    begun, nearly = head.encode(), bytes(most - 1)
    with running(broker, listen, agent, tmp_path) as (ask, _heard, process):
        used = []
        for _ in range(4):
            with ThreadPoolExecutor(24) as pool, ExitStack() as stack:
                wires = [stack.enter_context(ask.connect()) for _ in range(24)]
                list(pool.map(lambda wire: wire.sendall(begun + nearly), wires))
            assert ask("/v2/health/live").status == 200
            used.append(resident(process))
        # What one round takes is kept for the next one.
        assert used[-1] - used[0] < 24 * most, used


def test_a_crowd_that_connects_takes_no_file_from_the_agent(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Any local user ended it with empty connections: thousands were accepted in one turn."""
    with running(broker, listen, agent, tmp_path) as (ask, _heard, process):
        number = process.process.pid
        resource.prlimit(number, resource.RLIMIT_NOFILE, (1024, 1024))
        process.signal(signal.SIGSTOP)  # what has come meanwhile is there in one turn
        with ExitStack() as stack:
            for _ in range(1500):
                wire = stack.enter_context(socket.socket())
                wire.setblocking(False)
                wire.connect_ex(("127.0.0.1", ask.address))
            process.signal(signal.SIGCONT)
        assert ask("/v2/health/live").status == 200
        assert process.process.poll() is None
        assert "no further open file" not in process.words()
        assert "Too many open files" not in process.words()


def test_who_is_refused_before_his_body_is_read_does_not_keep_the_connection(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """The rest of a body that came after the answer left a connection that nothing ended."""
    body = bytes(300_000)
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    with running(broker, listen, agent, tmp_path) as (ask, _heard, _process):
        for path in (b"/nothing", b"/predict/nothing", b"/v1/nothing"):
            said = ask.raw(b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b%b" % (path, length, body))
            assert said.count(b"HTTP/1.1 ") == 1, said
            assert said.startswith(b"HTTP/1.1 40"), said
        with ask.connect() as wire:
            wire.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n%b%b" % (length, body))
            assert wire.recv(65536).startswith(b"HTTP/1.1 404")
            wire.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda: b"HTTP/1.1 200" in wire.recv(65536), "the next answer")


def resident(process: AgentProcess) -> int:
    """Give the memory of a process, bytes."""
    pages = Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_a_socket_with_a_token_refuses_who_has_none_and_what_is_too_much(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """401 without it; 429 with Retry-After from `/predict`, 503 from `/v2`."""
    path = tmp_path / "http.sock"
    tables = {
        "http": {"listen": f"unix:{path}", "token": "geheim"},
        "infer": {"models": ["light"], "per_s": 0.001},
    }
    with running(broker, listen, agent, tmp_path, **tables) as (_, _heard, process):
        assert Caller(path)("/predict/light", GRAY).status == 401
        assert Caller(path, "wrong")("/v2/health/live").status == 401
        assert Caller(path)("/v2/health/live", Authorization="Basic geheim").status == 401
        # The scheme's letters may be small: RFC 9110, 11.1.
        assert Caller(path)("/v2/health/live", Authorization="bearer geheim").status == 200
        ask = Caller(path, "geheim")
        assert ask("/predict/light", GRAY).status == 200
        refused = ask("/predict/light", GRAY)
        assert refused.status == 429
        assert 0 < int(refused.headers["retry-after"]) <= 1000
        assert ask("/v2/models/light/infer", {"inputs": []}).status == 503
        assert path.stat().st_mode & 0o777 == 0o660
        assert "geheim" not in process.words()
    assert not path.exists()


def test_a_web_page_of_elsewhere_asks_and_reads_nothing(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """A page that is open on this machine could ask in the name of its user, without a token."""
    with running(broker, listen, agent, tmp_path) as (ask, _heard, _process):
        page = {"Origin": "http://page.example", "Content-Type": "text/plain"}
        said = ask("/predict/light", GRAY, **page)
        assert (said.status, "a web page of elsewhere" in said.json["error"]) == (403, True)
        assert ask("/predict/light", GRAY, Origin="http://localhost").status == 200
        assert ask("/predict/light", GRAY, Origin="null").status == 403
        # A picture or script of a page has no Origin: such requests had models loaded.
        for site in ("cross-site", "same-site"):
            assert ask("/v2/models/light/ready", Sec_Fetch_Site=site).status == 403
        for site in ("same-origin", "none"):  # none: typed into the address bar
            assert ask("/v2/models/light/ready", Sec_Fetch_Site=site).status == 200
        # Its own name made to lead here: then the browser lets it read the answers.
        for path in ("/metrics", "/v2/models/light", "/v1/models"):
            head = (
                f"GET {path} HTTP/1.1\r\nHost: page.example\r\nConnection: close\r\n\r\n".encode()
            )
            assert ask.raw(head).startswith(b"HTTP/1.1 403 ")
            one_word = head.replace(b"page.example", b"page")
            assert ask.raw(one_word).startswith(b"HTTP/1.1 403 ")
            local = head.replace(b"page.example", b"127.0.0.1:8000")
            assert ask.raw(local).startswith(b"HTTP/1.1 200 ")


def test_a_swap_loses_no_request(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """While a new version goes live every request is answered."""
    with running(broker, listen, agent, tmp_path) as (ask, _heard, process):
        served: set[str] = set()
        done = threading.Event()

        def call() -> set[int]:
            statuses = set()
            while not done.is_set():
                found = ask("/predict/light", GRAY)
                statuses.add(found.status)
                served.add(found.json.get("model", ""))
            return statuses

        newer = brightness(tmp_path / "newer" / "light", "2")
        with ThreadPoolExecutor(3) as pool:
            callers = [pool.submit(call) for _ in range(3)]
            try:
                wait_until(lambda: "light@1" in served, "the first version to answer")
                added = call_cli("add", str(newer), "--config", str(process.config))
                assert added.code == 0, added.err
                wait_until(lambda: "light@2" in served, "the new version to answer")
            finally:
                done.set()
            assert {status for caller in callers for status in caller.result(PATIENCE)} == {200}
        assert served == {"light@1", "light@2"}


def weighing(folder: Path, version: str, channels: list[str], window: int = 1) -> Path:
    """Make a model that returns the mean of a + 100 b in a window, whichever comes first."""
    folder.mkdir(parents=True)
    weights = np.array([{"a": 1}.get(name, 100) for name in channels], np.float32)
    save_onnx(
        folder / "model.onnx",
        [node("Flatten", ["row"], ["flat"]), node("MatMul", ["flat", "weights"], ["sum"])],
        [("row", "float32", (1, window, 2))],
        [("sum", "float32", (1, 1))],
        {"weights": np.tile(weights, window)[:, None] / np.float32(window)},
    )
    cut = {"channels": channels, "window": window, "layout": "tc"}
    tables = {"input": cut, "output": {"decoder": "raw"}}
    return write_manifest(folder, version, "regression", **tables)


def test_readings_are_read_as_the_version_takes_them_that_answers(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """At a swap and in a split, the second version had got the rows as the first one wants them."""
    named = {"readings": [[1, 10]], "columns": ["a", "b"]}
    weighing(tmp_path / "models" / "sum", "1", ["a", "b"])
    newer = weighing(tmp_path / "newer" / "sum", "2", ["b", "a"])
    for version, channels in (("1", ["a", "b"]), ("2", ["b", "a"])):
        weighing(tmp_path / "models" / f"both-{version}", version, channels, 1 + int(version))
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b\n" + "1,10\n" * 100)
    # With a pipeline questions take turns; a profile of little memory swaps one for the other.
    tables: dict[str, Any] = {
        "infer": {"models": ["sum", "both@1:50,both@2:50"], "per_s": 10_000},
        "profile": "arm-small",
        "pipelines": [{"name": "p", "source": f"csv:{rows}?rate=5&loop=1", "model": "sum@1"}],
    }
    with running(broker, listen, agent, tmp_path, **tables) as (ask, _heard, process):
        several = {**named, "readings": [[1, 10]] * 3}
        split = [ask("/predict/both", several).json for _ in range(4)]
        assert sorted(each["model"] for each in split) == ["both@1"] * 2 + ["both@2"] * 2
        assert {round(each["values"]["sum"]) for each in split} == {1001}
        assert ask("/v2/models/both/versions/2/ready").status == 200

        found: list[dict[str, Any]] = []
        done = threading.Event()

        def call() -> None:
            while not done.is_set():
                found.append(ask("/predict/sum", named).json)

        with ThreadPoolExecutor(6) as pool:
            callers = [pool.submit(call) for _ in range(6)]
            try:
                wait_until(lambda: len(found) > 6, "the first version to answer")
                assert call_cli("add", str(newer), "--config", str(process.config)).code == 0
                wait_until(lambda: found[-1]["model"] == "sum@2", "the new version to answer")
            finally:
                done.set()
            for caller in callers:
                caller.result(PATIENCE)
        assert {each["values"]["sum"] for each in found} == {1001}


def test_a_stop_answers_what_is_under_way(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """It is not ready first, then answers those whose bodies are still coming, then is closed."""
    with running(broker, listen, agent, tmp_path) as (ask, heard, process):
        assert ask("/predict/light", GRAY).status == 200  # it is loaded now
        wires = [ask.connect() for _ in range(4)]
        for wire in wires:
            wire.sendall(POST + SIZED[:100])
        heard.wait_for(
            lambda _: (h := heard.last(f"{D}/health")) and h["infer"]["waiting"] == 4, "them"
        )
        process.signal(signal.SIGTERM)
        wait_until(lambda: ask("/v2/health/ready").status == 503, "it to be not ready")
        assert ask("/predict/light", GRAY).status == 503
        for wire in wires:
            wire.sendall(SIZED[100:])
        for wire in wires:
            with wire:
                assert wire.recv(65536).startswith(b"HTTP/1.1 200")
        assert process.wait() == 0
        with pytest.raises(ConnectionError):
            ask.connect()


def test_a_stop_says_in_one_line_that_it_has_ended_uploads(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Each was a traceback of forty lines."""
    with running(broker, listen, agent, tmp_path) as (ask, heard, process):
        assert ask("/predict/light", GRAY).status == 200
        wires = [ask.connect() for _ in range(3)]
        for wire in wires:
            wire.sendall(POST + SIZED[:100])
        heard.wait_for(
            lambda _: (h := heard.last(f"{D}/health")) and h["infer"]["waiting"] == 3, "them"
        )
        assert process.stop() == 0
        for wire in wires:
            wire.close()
        assert "Traceback" not in process.words()
        assert process.words().count("Cancel 3 running task(s)") == 1


def test_a_flood_of_callers_that_never_wait_is_refused_one_and_all_also_at_a_stop(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Refusals beyond a burst are paused: each is sent, none asks for a body or hinders a stop."""
    infer = {"models": ["light"], "per_s": 0.001}
    with running(broker, listen, agent, tmp_path, infer=infer) as (ask, _heard, process):
        assert ask("/predict/light", GRAY).status == 200
        callers = [ask.connect() for _ in range(200)]
        gone = [ask.connect() for _ in range(20)]
        for round_ in range(2):
            for wire in callers:
                wire.sendall(POST + SIZED)
            for wire in gone:
                wire.sendall(POST + SIZED)
                wire.close()
            gone = []
            if round_:
                invited = ask.connect()
                invited.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n")
                callers.append(invited)
                assert ask("/v2/health/live").status == 200  # all have been read now
                process.signal(signal.SIGTERM)
            for wire in callers:
                said = b""
                while not said.endswith(b"}"):
                    part = wire.recv(65536)
                    assert part, said
                    said += part
                assert said.startswith(b"HTTP/1.1 429"), said
                assert b"\r\nretry-after: " in said
        for wire in callers:
            wire.close()
        assert process.wait() == 0
        assert "Traceback" not in process.words()


def test_an_answer_does_not_wait_for_the_acknowledgment_of_its_head() -> None:
    """A connection sends what it is given at once: head and body are given one after the other."""
    endpoint = Endpoint("127.0.0.1", free_port())
    with (
        bind(endpoint) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
