"""A client in a process of its own, to be killed: sends numbered results without end.

    python -m tests.helpers.spool_case URL SPOOL SESSION RATE

After each it prints its number, how many messages lie on disk, and how many wait in all.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.helpers.mqtt_client import make_client, message


def main() -> None:
    """Send until killed."""
    url, spool, session, rate = sys.argv[1:]
    client = make_client(url, spool=Path(spool))
    channel = client.open_channel("p", qos=1, lossless=False)
    threading.Thread(target=client.run, daemon=True).start()
    pause = threading.Event()
    number = 0
    while not pause.wait(1 / float(rate)):
        client.publish_message(message(channel, number, session=session))
        counters = client.counters()
        print(number, counters.on_disk, counters.waiting, flush=True)
        number += 1


if __name__ == "__main__":
    main()
