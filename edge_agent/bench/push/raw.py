"""The rate of a broker for messages of given sizes: the upper limit for a push.

One publisher here, one subscriber in a separate process (`python -m edge_agent.bench.push.raw`),
QoS 1, paced by the subscriber's reports: unpaced, mosquitto drops messages beyond 1,000 in its
queue. Plain paho on both sides, without the agent's code.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from ...core.errors import AgentError

AHEAD = 64
"""Most messages in transit: twice a push's window, so that pacing costs nothing."""
REPORT_EVERY = 8
PATIENCE_SECONDS = 120.0


class Rates(NamedTuple):
    """Bytes per second, from when the first message is sent."""

    confirmed: float
    """Until the publisher knows that the last has arrived, as for a push."""
    arrived: float
    """Until the last has arrived: without the way back, where a plain script waits for delayed TCP
    acknowledgments, which is most of the time for a few megabytes."""


def rate(port: int, protocol: int, sizes: Sequence[int]) -> Rates:
    """Send messages of these sizes from one process to another."""
    topic = f"raw/{secrets.token_hex(4)}"
    noise = secrets.token_bytes(max(sizes))
    changed = threading.Condition()
    reports = [(-1, 0.0)]
    """Reports of the subscriber: messages received, 0 once it listens, and when the last one came,
    by a clock shared by all processes on a machine."""

    def on_report(_client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
        count, at = message.payload.split()
        with changed:
            reports.append((int(count), float(at)))
            changed.notify_all()

    def wait_for(count: int) -> None:
        with changed:
            if not changed.wait_for(lambda: reports[-1][0] >= count, PATIENCE_SECONDS):
                raise AgentError(f"raw rate: {reports[-1][0]} of {len(sizes)} messages arrived")

    client = _listening(port, protocol, f"{topic}/report", on_report)
    command = [sys.executable, "-m", __name__, str(port), str(protocol), topic, str(len(sizes))]
    with subprocess.Popen(command) as subscriber:
        try:
            wait_for(0)
            start = time.monotonic()
            for number, size in enumerate(sizes):
                wait_for(number - AHEAD)
                client.publish(f"{topic}/data", noise[:size], 1)
            wait_for(len(sizes))
            end = time.monotonic()
            subscriber.wait(PATIENCE_SECONDS)
        finally:
            subscriber.kill()
            client.disconnect()
            client.loop_stop()
    return Rates(sum(sizes) / (end - start), sum(sizes) / (reports[-1][1] - start))


def main(port: str, protocol: str, topic: str, count: str) -> None:
    """Receive *count* messages, and report their number every few."""
    times = [0.0]
    done = threading.Event()

    def report(client: mqtt.Client) -> mqtt.MQTTMessageInfo:
        return client.publish(f"{topic}/report", f"{len(times) - 1} {times[-1]}", 1)

    def on_message(client: mqtt.Client, _userdata: object, _message: mqtt.MQTTMessage) -> None:
        times.append(time.monotonic())
        if len(times) > int(count):
            done.set()
        elif len(times) % REPORT_EVERY == 0:
            report(client)

    client = _listening(int(port), int(protocol), f"{topic}/data", on_message)
    report(client)
    if done.wait(PATIENCE_SECONDS):
        # From here: a disconnect would overtake messages that a callback has queued.
        report(client).wait_for_publish(PATIENCE_SECONDS)
    client.disconnect()
    client.loop_stop()


def _listening(
    port: int,
    protocol: int,
    topic: str,
    on_message: Callable[[mqtt.Client, object, mqtt.MQTTMessage], None],
) -> mqtt.Client:
    """Connect and subscribe; return once the broker has confirmed it."""
    version = mqtt.MQTTv5 if protocol == 5 else mqtt.MQTTv311
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=version)
    subscribed = threading.Event()
    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.subscribe(topic, 1)
    client.loop_start()
    if not subscribed.wait(PATIENCE_SECONDS):
        raise AgentError("raw rate: the broker does not take a subscription")
    return client


if __name__ == "__main__":
    main(*sys.argv[1:5])
