"""`edge-agent infer`: asks a model of a running agent, over MQTT or HTTP."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...config.answers import UNIX
from ...config.settings import Settings
from ...core.errors import AgentError, BrokerError, SampleError, UsageError
from ...core.names import NAME_RULE, is_name
from ...core.text import printable, redact
from ...mqtt.connection import parse_object
from ...mqtt.look import texts_in
from ...mqtt.one_shot import OneShotClient
from ...sources.spec import guess_source, parse_source
from ..broker_settings import broker_settings
from ..fleet import Fleet, look_filters, online_targets, unheard
from ..options import Options, add_broker, positive
from ..terminal import printable_json, summary

if TYPE_CHECKING:
    from http.client import HTTPConnection

EXAMPLES = (
    "edge-agent infer photo.jpg --model face-detector --device edge-01",
    "edge-agent infer vibration.csv --model bearing   the device of these settings",
    "edge-agent infer rows.json --model fraud --url http://127.0.0.1:8001 --json",
)
MOST_BYTES = 256 * 2**20
"""Limit for a file: no device takes more."""
MOST_VALUES = 2**24
"""Limit for a recording."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help='a JPEG or PNG, a recording (.csv, .npy, .wav), or JSON: {"tensors": {name: lists}}, '
        '{"readings": [[…], …]}, {"texts": […]}, {"prompt": "…"} or {"messages": […]}',
    )
    parser.add_argument("--model", required=True, metavar="M", help="one of its infer.models")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--device", metavar="ID", help="default: the one in the settings")
    where.add_argument("--url", metavar="URL", help="over HTTP: http://host:port or unix:/path")
    parser.add_argument("--json", action="store_true", help="the answer unchanged, on one line")
    parser.add_argument("--timeout", type=positive, default=60.0, metavar="S", help="default 60")
    add_broker(parser)


def main(options: Options) -> int:
    """Ask, and print the answer; returns 1 if there is none."""
    for name, given in (("--model", options.model), ("--device", options.device)):
        if given is not None and not is_name(given):
            raise UsageError(f"{name}: {given!r} is not a name ({NAME_RULE})")
    settings = broker_settings(options)
    question = _question(options.file)
    ask = _over_mqtt if options.url is None else _over_http
    try:
        answer = ask(settings, question, options)
    except AgentError as problem:
        if "infer.max_mb" not in str(problem) or not question.startswith(b"{"):
            raise
        size = f"as JSON, {options.file} takes {len(question) / 2**20:.1f} MB"
        raise AgentError(f"{problem}; {size}: give a part of it") from None
    for warning in texts_in(answer.get("warnings")):
        print(printable(f"edge-agent: {warning}"), file=sys.stderr)
    if options.json:
        print(printable_json(answer))
        return 0
    try:
        took = answer.get("timing", {}).get("infer_ms", 0.0)
        line = f"{summary(answer)} · {answer.get('model')} · {took:.1f} ms"
    except (KeyError, TypeError, ValueError, AttributeError):
        line = printable_json(answer)  # another version's, or another program's
    print(printable(line))
    return 0


def _question(file: str) -> bytes:
    """Read the question from a file."""
    spec = parse_source(guess_source(file), Path.cwd())
    if spec.path is None:
        raise UsageError(f"{file}: expected a file")
    if spec.kind == "signal":
        return _recording(file)
    path = Path(spec.path)
    if path.exists() and not path.is_file():  # a device would be read without end
        raise UsageError(f"{path}: expected a file")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: is larger than {MOST_BYTES // 2**20} MiB")
        return path.read_bytes()
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror}") from None


def _recording(file: str) -> bytes:
    """Read all rows of a recording, as JSON."""
    from ...sources.source import open_source, readings

    source = open_source(parse_source(guess_source(file), Path.cwd()))
    rows: list[Any] = []
    columns: tuple[str, ...] = ()
    rate: float | None = None
    values = 0
    try:
        for reading in readings(source):
            if isinstance(reading, SampleError):
                raise reading
            values += reading.data.size
            if values > MOST_VALUES:
                raise UsageError(f"{file}: has more than {MOST_VALUES} values; give a part of it")
            rows += reading.data.tolist()
            columns, rate = reading.columns, reading.rate_hz
    finally:
        source.close()
    more: dict[str, Any] = {"columns": list(columns)} if columns else {}
    if rate is not None:
        more["rate_hz"] = rate
    return json.dumps({"readings": rows, **more}).encode()


def _over_mqtt(settings: Settings, question: bytes, options: Options) -> Mapping[str, Any]:
    device, root = options.device or settings.device_id, settings.broker.topic_root
    request = uuid.uuid4().hex
    filters = look_filters(root, device, f"reply/{request}")
    with OneShotClient(settings.broker, filters) as client:
        most = client.max_packet
        if most is not None and len(question) + 256 > most:
            raise AgentError(f"{options.file}: the broker takes no more than {most} bytes")
        online_targets(Fleet(client, root), device, timeout=options.timeout)
        client.publish(f"{root}/{device}/in/infer/{options.model}/{request}", question)
        deadline = time.monotonic() + options.timeout
        while (left := deadline - time.monotonic()) > 0:
            heard = client.next(left)
            if heard is None or not heard.topic.endswith(f"/reply/{request}"):
                continue
            reply = heard.body
            if reply is None:
                raise BrokerError(f"device {device}: its answer is no JSON object")
            if not reply.get("ok"):
                raise AgentError(f"device {device}: {reply.get('error')}")
            return reply
    silent = f"device {device} has not answered within {options.timeout:.0f} s"
    raise AgentError(f"{silent}{unheard(f'{root}/{device}/in/#')}")


def _over_http(settings: Settings, question: bytes, options: Options) -> Mapping[str, Any]:
    """Ask at a URL, with the token from the settings."""
    from http.client import HTTPException

    headers = {"Content-Type": "application/octet-stream"}
    if settings.http.token:
        headers["Authorization"] = f"Bearer {settings.http.token}"
    connection = _connection(options.url, options.timeout)
    try:
        connection.request("POST", f"/predict/{options.model}", question, headers)
        response = connection.getresponse()
        answer = parse_object(response.read())
    except TimeoutError:
        raise AgentError(f"{options.url} has not answered within {options.timeout:.0f} s") from None
    except (OSError, HTTPException) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "no answer in HTTP"
        raise AgentError(f"{options.url}: {why or problem}") from None
    finally:
        connection.close()
    if answer is None or response.status != 200:
        why = (answer or {}).get("error", response.reason)
        raise AgentError(f"{options.url}: {why} ({response.status})")
    if answer.get("pipeline") != "@infer":
        raise AgentError(f"{options.url}: answers otherwise than an edge-agent; check the URL")
    return answer


def _connection(url: str, timeout: float) -> HTTPConnection:
    """Prepare a connection."""
    from http.client import HTTPConnection, HTTPSConnection

    if url.startswith(UNIX):
        connection = HTTPConnection("localhost", timeout=timeout)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout)
        try:
            connection.sock.connect(url.removeprefix(UNIX))
        except OSError as problem:
            raise AgentError(f"{url}: {problem.strerror}") from None
        return connection
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme not in {"http", "https"} or not host or parts.path not in {"", "/"}:
        raise UsageError(f"--url: {redact(url)!r}: expected http://host:8001 or unix:/path")
    kind = HTTPSConnection if scheme == "https" else HTTPConnection
    return kind(host, port, timeout=timeout)
