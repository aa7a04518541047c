"""`edge-agent demo`: a broker, bundled clip and models, and live results in the terminal."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import quote

from ...config.load import PREFIX
from ...config.settings import Broker
from ...core.bundled import bundled
from ...core.errors import AgentError, BrokerError, UsageError
from ...core.scratch import scratch_folder
from ...mqtt.loopback import Loopback, broker, free_port
from ...mqtt.one_shot import OneShotClient
from ..live import LiveView
from ..options import Options, positive
from ..picture_file import PictureFile
from ..terminal import printable_json, say

DEVICE = "demo"
TOPIC = "demo/vibration"
"""The topic for the readings of a simulated sensor."""
BEARING = "bearing-vibration"
PIPELINES = {
    "conveyor": ("file:{media}/conveyor.mp4?loop=1", "parts-inspection"),
    # So that a publisher that is late on a busy machine causes no gap.
    "vibration": (f"mqtt:{TOPIC}?field=accel&gap_s=60", BEARING),
    "bearing": ("csv:{media}/bearing.csv?loop=1&rate=6400", BEARING),
}
UNASKED = ("conveyor", "vibration")
"""Pipelines that run if none is named; the third plays the recording used for the second."""
MESSAGES = 10
"""Messages per second from the sensor."""
PICTURED = "conveyor"
"""The pipeline whose frames are shown with their boxes: in the terminal or, if it cannot show
pictures, in a file."""
PICTURE = Path("demo.jpg")
PICTURE_WIDTH = 640
PICTURE_SECONDS = 0.5
START_SECONDS = 60.0
FIRST_PAGE_PORT = 8080


EXAMPLES = (
    "edge-agent demo                                 until Ctrl-C",
    "edge-agent demo --pipeline conveyor --seconds 20",
    "edge-agent demo --seconds 5 --json | head -n 1  results for a program",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--seconds", type=positive, metavar="N", help="end after N seconds; default: at Ctrl-C"
    )
    parser.add_argument("--pipeline", metavar="NAME", help="only this one of the demo's pipelines")
    parser.add_argument(
        "--ui", action="store_true", help="the operator's page, too, opened in a browser"
    )
    parser.add_argument("--json", action="store_true", help="results as JSON, one per line")


def main(options: Options) -> int:
    """Run the demo; 0 only if results arrived."""
    names = list(UNASKED)
    if options.pipeline is not None:
        if options.pipeline not in PIPELINES:
            raise UsageError(
                f"--pipeline: there is no {options.pipeline!r}; there are {', '.join(PIPELINES)}"
            )
        names = [options.pipeline]
    with scratch_folder("demo") as folder, broker(folder) as loopback:
        view = LiveView(
            "edge-agent demo",
            _notes(loopback, names),
            pipelines=names,
            quiet=options.json,
        )
        file = None
        if PICTURED in names and not options.json and sys.stdout.isatty():
            file = PictureFile(PICTURE, "frames with their boxes", bytes)
            view.notes.append(file.note())
        settings = folder / "edge-agent.toml"
        text = _settings(folder, loopback, names, pictures=file is not None or options.ui)
        settings.write_text(text, encoding="utf-8")
        with _page(loopback, folder) if options.ui else nullcontext() as note:
            view.notes += [note] if note else []
            return _watch(options, folder, loopback, settings, names, view, file)


def _notes(loopback: Loopback, names: list[str]) -> list[str]:
    notes = [
        f"broker   {loopback.name} on 127.0.0.1:{loopback.port}, started for this demo",
        f"look on  mosquitto_sub -p {loopback.port} -v -t 'edge/{DEVICE}/#'",
        f"or       edge-agent tail --broker {loopback.url} --kind all",
    ]
    if "vibration" in names:
        notes.append(f"sensor   publishes {MESSAGES} messages a second on {TOPIC}")
    return notes


def _settings(folder: Path, loopback: Loopback, names: list[str], *, pictures: bool) -> str:
    lines = [
        f'device_id = "{DEVICE}"',
        f"state_dir = {json.dumps(str(folder / 'state'))}",
        "[broker]",
        f'url = "{loopback.url}"',
        f"protocol = {loopback.protocol}",
        "[health]",
        "interval_s = 2",
    ]
    media = quote(str(bundled("models") / "media"))
    for name in names:
        source, model = PIPELINES[name]
        source = source.format(media=media)
        lines += [
            "[[pipelines]]",
            f'name = "{name}"',
            f"source = {json.dumps(source)}",
            f'model = "{model}"',
        ]
        if pictures and name == PICTURED:
            lines.append(f"snapshot = {{ width = {PICTURE_WIDTH}, every_s = {PICTURE_SECONDS} }}")
    return "\n".join(lines) + "\n"


def _publish(broker: Broker, closing: threading.Event) -> None:
    """Publish readings as a sensor on the bundled bearing would: ten messages a second."""
    import numpy as np

    from ...models.manifest import load

    rate = load(bundled("models") / BEARING).manifest.input.rate_hz or 1000.0
    rows = np.loadtxt(bundled("models") / "media" / "bearing.csv", skiprows=1)
    count = round(rate / MESSAGES)
    due, at = time.monotonic(), 0
    try:
        with OneShotClient(broker, []) as client:
            while not closing.wait(max(0.0, due - time.monotonic())):
                some = rows[np.arange(at, at + count) % len(rows)]
                client.publish(TOPIC, json.dumps({"accel": some.tolist()}).encode(), qos=0)
                client.next(0.0)
                at, due = at + count, due + count / rate
    except BrokerError:
        return  # reported by the code that waits for results


def _watch(
    options: Options,
    folder: Path,
    loopback: Loopback,
    settings: Path,
    names: list[str],
    view: LiveView,
    file: PictureFile | None,
) -> int:
    """Run the agent beside the view."""
    log = folder / "agent.log"
    if options.json:
        for note in view.notes:
            print(note, file=sys.stderr)
    wanted = [f"edge/{DEVICE}/{kind}/+" for kind in ("result", "snapshot")]
    address = Broker(url=loopback.url, protocol=loopback.protocol)
    closing = threading.Event()
    sensor = threading.Thread(target=_publish, args=(address, closing), name="sensor")
    run = ("run", "--config", str(settings))
    with OneShotClient(address, wanted) as client, _child(*run, log=log) as agent:
        if "vibration" in names:
            sensor.start()
        try:
            with view:
                _show(options, client, agent, view, names, file)
        except KeyboardInterrupt:
            pass
        finally:
            closing.set()
    for line in view.summary_lines():
        say(line, sys.stderr if options.json else sys.stdout)
    if view.rows and not options.json:
        if file is not None and file.written:
            say(f"picture  {file.path}: the last frame with its boxes")
        say("next     edge-agent try SOURCE MODEL: your own camera and model; see README.md")
    if not view.rows:
        words = log.read_text(errors="replace").strip().splitlines()
        raise AgentError(
            f"no result arrived; the agent's last word: {words[-1] if words else 'none'}"
        )
    return 0


@contextmanager
def _child(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our commands in the background; its first line can be read, the rest is logged."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "edge_agent", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if arguments[0] == "ui" else output,
            stderr=output,
            env=_plain_environment(),
            # Ctrl-C is for this process, which then ends the child.
            start_new_session=True,
        )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def _page(loopback: Loopback, folder: Path) -> Iterator[str]:
    """Serve the operator's page, and open it if there is a desktop; yield its note."""
    log, listen = folder / "page.log", f"127.0.0.1:{free_port(FIRST_PAGE_PORT)}"
    arguments = ("ui", "--broker", loopback.url, "--listen", listen)
    with _child(*arguments, log=log) as child:
        note = child.stdout.readline().decode().strip() if child.stdout else ""
        if not note:
            why = log.read_text(errors="replace").strip().removeprefix("edge-agent: ")
            raise AgentError(f"--ui: {why}")
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            webbrowser.open(f"http://{listen}")
        yield note


def _plain_environment() -> dict[str, str]:
    """Return the environment without variables that would override the demo's settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX)
        and name not in {"CREDENTIALS_DIRECTORY", "STATE_DIRECTORY", "NOTIFY_SOCKET"}
    }


def _show(
    options: Options,
    client: OneShotClient,
    agent: subprocess.Popen[bytes],
    view: LiveView,
    names: list[str],
    file: PictureFile | None,
) -> None:
    """Show results until the time is over, counted from when each pipeline has given a result."""
    deadline = time.monotonic() + START_SECONDS
    waiting = set(names)
    while time.monotonic() < deadline:
        if agent.poll() is not None:
            return
        try:
            heard = client.next(timeout=0.25)
        except BrokerError as problem:
            view.print(str(problem))
            return
        if heard is None:
            view.tick()
            continue
        if "/snapshot/" in heard.topic:
            if file is not None:
                file.take(partial(bytes, heard.payload))
                file.write()
            continue
        payload = json.loads(heard.payload)
        if waiting:
            waiting.discard(payload["pipeline"])
            if not waiting:
                deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
        if options.json:
            print(printable_json(payload), flush=True)
        view.result(payload)
