"""The service in its machine, as somebody sees it who may look at everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from nspawn import Failed, Machine, wait

UNIT = "edge-agent.service"
RETRY = "edge-agent-retry.timer"
DEVICE = "edge-01"
PORT = 28883
PLAIN_PORT = 28884
"""Of the listener that asks for a password instead of a certificate."""
KEYS = "/root/keys"
MODELS = "/opt/edge-agent/current/lib/python3.11/site-packages/edge_agent/_bundled/models"
PYTHON = "/opt/edge-agent/current/bin/python"
SETTINGS = f"""\
device_id = "{DEVICE}"
engine = "{{engine}}"
models_dirs = ["/opt/models"]

[broker]
url = "mqtts://localhost:{PORT}"
ca_file = "tls/ca.pem"
cert_file = "tls/{DEVICE}.pem"
key_file = "tls/{DEVICE}.key"

[health]
interval_s = 1

[trust]
keys = ["/etc/edge-agent/trust.d"]

[[pipelines]]
name = "line"
source = "file:{MODELS}/media/conveyor.mp4?loop=1"
model = "parts-inspection"

{{more}}
"""


class Box:
    """The machine, and the service in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(root)
        self.run = self.machine.run
        self.files: set[str] = set()
        """What lay there before anything was installed."""

    # Looking

    def is_active(self) -> bool:
        return self.run(f"systemctl is-active {UNIT}", check=False) == "active"

    def property(self, name: str) -> str:
        return self.run(f"systemctl show {UNIT} --value -p {name}")

    def journal(self) -> str:
        """Give what the service has said since the machine booted."""
        return self.run(f"journalctl -u {UNIT} -b -o cat --no-pager")

    @staticmethod
    def client(program: str, who: str, topic: str, more: str) -> str:
        """Write the command of one of mosquitto's clients, as somebody with a certificate."""
        return (
            f"mosquitto_{program} -h localhost -p {PORT} --cafile {KEYS}/ca.pem "
            f"--cert {KEYS}/{who}.pem --key {KEYS}/{who}.key -V 5 -q 1 -t '{topic}' {more}"
        )

    def publish(self, who: str, topic: str, more: str) -> str:
        return self.client("pub", who, topic, more)

    def hear(
        self, topic: str, *, count: int = 1, who: str = "viewer", patience: int = 60
    ) -> list[dict[str, Any]]:
        """Hear messages as somebody, through mutual TLS and the access list."""
        text = self.run(self.client("sub", who, topic, f"-C {count} -W {patience}"))
        return [json.loads(line) for line in text.splitlines()]

    @contextmanager
    def recording(self, topic: str, who: str = "viewer") -> Iterator[Path]:
        """Write every message on a topic into a file, one a line, meanwhile."""
        name = f"heard-{len(list((self.root / 'root').glob('heard-*')))}"
        command = self.client("sub", who, topic, f">/root/{name} 2>/dev/null & echo $!")
        pid = self.run(command)
        file = self.root / "root" / name
        try:
            yield file
        finally:
            self.run(f"kill {pid}", check=False)

    def status(self) -> dict[str, Any]:
        return self.hear(f"edge/{DEVICE}/status")[0]

    def wait_status(
        self, state: str, session: str | None = None, patience: float = 60
    ) -> dict[str, Any]:
        """Wait for a state, of another session than the one given."""
        found: dict[str, Any] = {}

        def look() -> bool:
            nonlocal found
            found = self.status()
            return bool(found["state"] == state and found["session"] != session)

        wait(f"status {state}", look, patience)
        return found

    def results(self, pipeline: str = "line") -> dict[str, Any]:
        """Give the third result from now."""
        return self.hear(f"edge/{DEVICE}/result/{pipeline}", count=3)[-1]

    def health(self) -> dict[str, Any]:
        return self.hear(f"edge/{DEVICE}/health")[0]

    # Doing

    def configure(self, engine: str, more: str = "") -> None:
        (self.root / "root/config.toml").write_text(SETTINGS.format(engine=engine, more=more))
        self.run("install -m 0640 -g edge-agent /root/config.toml /etc/edge-agent/config.toml")

    def restart(self) -> None:
        self.run(f"systemctl restart {UNIT}")


def lines(file: Path) -> list[dict[str, Any]]:
    """Read what a recording has so far; a last line may be under way."""
    found = []
    for line in file.read_text().split("\n")[:-1]:
        try:
            found.append(json.loads(line))
        except ValueError:
            raise Failed(f"not JSON: {line[:200]}") from None
    return found


def turns(file: Path) -> list[tuple[str, str, str]]:
    """Give the states that a recording of the status has, which is repeated: each once in a row."""
    said = ((line["state"], line["reason"], line["session"]) for line in lines(file))
    return [state for state, _ in groupby(said)]
