"""The owner of the device's retained topics: publishes on them, and clears outdated ones.

A payload is published if it differs from the previous one; the outbox repeats it over every new
connection. The topics are remembered over restarts: otherwise the last state of a pipeline would
stay on the broker forever if it is removed from the settings while the agent is not running.
Independent of payloads. Only `status`, the last will, belongs to the client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.state_file import StateFile, only_looking
from .topics import Topics, object_id

log = logging.getLogger(__name__)

LEDGER = "announced.json"
"""The ledger's name in the state folder."""
_FORGOTTEN = "earlier retained topics, which stay on the broker,"

Current = Callable[[], Iterable[str] | None]
"""Returns the present topics; None: not known yet, so that none is cleared."""


class Retained:
    """Publishes and clears retained topics; may be called by any thread."""

    def __init__(
        self,
        send: Callable[[str, bytes], None],
        ledger: Path | None,
        topics: Topics,
        uncleared: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Set up without reading the ledger; without one the topics are forgotten at the end.

        *send* publishes at QoS 1; an empty payload clears the topic. *topics* are the device's.
        *uncleared* returns the topics that the broker is not known to have cleared yet.
        """
        self._send = send
        self._uncleared = uncleared
        self._topics = topics
        self._file = None if ledger is None else StateFile(ledger, _FORGOTTEN)
        self._lock = threading.Lock()
        """Guards the payloads; not held during a write of the ledger, which may take long."""
        self._published: dict[str, bytes] = {}
        """The latest payload by topic, without the time if that was added."""
        self._prefixes: dict[str, Current] = {}
        self._ledger: set[str] | None = None
        """The topics under registered prefixes, as last seen; None: the file is not read yet."""
        self._saved: set[str] = set()
        """The topics in the file: also those that are being cleared, until they are."""
        self._clearing = threading.Lock()
        """Held while the ledger is compared and written."""

    def register(self, prefix: str, current: Current) -> None:
        """Own the topics under *prefix*, which ends in a slash.

        Those that *current* no longer lists are cleared.
        """
        self._prefixes[prefix] = current

    def publish(self, topic: str, payload: Mapping[str, Any], *, timestamp: bool = False) -> None:
        """Publish a payload if it differs from the last one; *timestamp* adds `time` to it."""
        from . import payloads

        body = payloads.encode(payload)
        with self._lock:
            if self._published.get(topic) == body:
                return
            self._published[topic] = body
            if timestamp:
                body = payloads.encode({**payload, "time": payloads.iso(time.time_ns())})
            self._send(topic, body)

    def clear_gone(self) -> None:
        """Clear the topics of this run or an earlier one that no longer exist."""
        with self._clearing:
            if self._ledger is None:
                self._ledger = self._saved = self._read()
            now: set[str] = set()
            for prefix, current in self._prefixes.items():
                topics = current()
                if topics is None:
                    topics = [topic for topic in self._ledger if topic.startswith(prefix)]
                now.update(topics)
            for topic in self._ledger - now:
                with self._lock:
                    self._published.pop(topic, None)
                    self._send(topic, b"")
            self._ledger = now
            known = now | self._saved.intersection(self._uncleared())
            if known != self._saved:
                self._saved = known
                if self._file is not None:
                    self._file.save(sorted(known))

    def _read(self) -> set[str]:
        """Return the topics in the ledger, without those of another device.

        A state folder may have been copied for a second device, while the first is still there.
        """
        found: set[str] = (self._file and self._file.read(_parse)) or set()
        others = sorted(topic for topic in found if not _is_own(topic, self._topics))
        if others and self._file is not None:
            log.warning(
                "the state folder is another device's: what that has retained stays (%d topics, "
                "such as %s); if there is no such device any more, `edge-agent models --forget` "
                "clears it",
                len(others),
                others[0],
            )
            found.difference_update(others)
            self._file.save(sorted(found))
        return found


def announced(ledger: Path, topics: Topics) -> set[str] | None:
    """Return the topics in the ledger of a device that does not run; None: it cannot be read."""
    with only_looking():
        found = StateFile(ledger, _FORGOTTEN).read(_parse)
    return None if found is None else {topic for topic in found if _is_own(topic, topics)}


def _is_own(topic: str, topics: Topics) -> bool:
    device, level = ["", "", *topic.split("/")][-3:-1]
    return device == topics.device or level == object_id(topics)


_MOST = 65_535
"""Most bytes of a topic."""


def _parse(content: Any) -> set[str]:
    for topic in content:
        # Otherwise the client would refuse to publish on it.
        if not isinstance(topic, str) or not 0 < len(topic) <= _MOST or set(topic) & set("+#\0"):
            raise ValueError("no topic")
    return set(content)
