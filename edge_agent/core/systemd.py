"""The service manager's notify socket, `sd_notify(3)`. Without one, nothing is sent."""

from __future__ import annotations

import os
import socket


def notify(*lines: str) -> None:
    """Send lines to systemd, e.g. `notify("READY=1", "STATUS=2 cameras")`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto("\n".join(lines).encode(), address)
        except OSError:
            # A service manager that does not listen is no reason to stop the agent.
            return


def watchdog_seconds() -> float | None:
    """Return the interval of `WATCHDOG=1` in seconds, half of systemd's limit; None: off."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdecimal() and int(microseconds) > 0 else None
