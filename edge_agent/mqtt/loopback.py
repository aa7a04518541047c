"""A broker on 127.0.0.1 for `demo`: mosquitto if it is installed, else amqtt.

amqtt supports only MQTT 3.1.1 and loses messages that it should keep for absent clients: it is only
good for a demo on loopback.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BrokerError, UsageError

FIRST_PORT = 1883
START_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Loopback:
    """A running broker."""

    name: str
    port: int
    protocol: int

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"


@contextmanager
def broker(folder: Path, more: str = "") -> Iterator[Loopback]:
    """Run a broker within a `with` block; *more*: extra settings lines, only for mosquitto.

    Raises:
        UsageError: none is installed.
        BrokerError: it does not start.
    """
    process, made = _start(folder, more)
    try:
        yield made
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(folder: Path, more: str) -> tuple[subprocess.Popen[bytes], Loopback]:
    """Start a broker, on another port if its own was just taken; wait until it listens."""
    mosquitto, first = find_mosquitto(), FIRST_PORT
    log = folder / "broker.log"
    while True:
        port = free_port(first)
        if mosquitto is not None:
            settings = folder / "mosquitto.conf"
            settings.write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n{more}"
            )
            command, made = [mosquitto, "-c", str(settings)], Loopback("mosquitto", port, 5)
        elif importlib.util.find_spec("amqtt") is not None:
            command = [sys.executable, "-m", "edge_agent.mqtt.amqtt_broker", str(port)]
            made = Loopback("amqtt", port, 4)
        else:
            raise UsageError(
                "demo needs a broker: install mosquitto (apt install mosquitto), "
                f"or amqtt ({sys.executable} -m pip install amqtt)"
            )
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if _is_running(process, log):
            return process, made
        process.kill()
        process.wait()
        if "in use" not in log.read_text(errors="replace").lower():
            words = log.read_text(errors="replace").strip().splitlines()
            raise BrokerError(f"{made.name} does not start: {words[-1] if words else 'no output'}")
        first = port + 1


def find_mosquitto() -> str | None:
    """Find the program; Debian installs it in a folder that is only in root's PATH."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which("mosquitto", path=places)


def free_port(first: int = FIRST_PORT) -> int:
    """Return a free port on loopback: *first* or one of the next ports.

    Raises:
        UsageError: 200 ports from *first* on are taken.
    """
    for port in range(first, first + 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UsageError(f"demo: no free port from {first} to {first + 199} on 127.0.0.1")


def _is_running(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until a broker reports that it runs; False: it has ended, or does not report it.

    A connection proves nothing: another demo started at the same time may have the port.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        over = process.poll() is not None
        if b" running" in log.read_bytes():
            return not over
        if over:
            return False
        time.sleep(0.02)
    return False
