"""Runs amqtt on 127.0.0.1 until SIGTERM: `python -m edge_agent.mqtt.amqtt_broker PORT`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import suppress

from amqtt.broker import Broker


async def serve(port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            },
        }
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await broker.start()
    # Worded like mosquitto's message, which `loopback` waits for.
    sys.stdout.write(f"amqtt running on {port}\n")
    sys.stdout.flush()
    await stopping.wait()
    with suppress(asyncio.CancelledError):
        await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(serve(int(sys.argv[1])))
