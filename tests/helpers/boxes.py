"""Many devices in one thread, by the public interface alone: what they say, draw and answer.

They run no model: what is complete is live, but on those that reject it. MQTT 3.1.1 over sockets.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import itertools
import json
import random
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Self

WINDOW = 32
PACE = 1.0
TOLD = 2.0
SILENCE = 10.0
PART = 64 * 1024
ENTRY = struct.Struct(">I32s")


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _packet(kind: int, body: bytes) -> bytes:
    length, size = len(body), b""
    while True:
        length, digit = divmod(length, 128)
        size += bytes([digit | (128 if length else 0)])
        if not length:
            return bytes([kind]) + size + body


class Simulated:
    """One device."""

    def __init__(self, boxes: Boxes, name: str) -> None:
        self.boxes = boxes
        self.name = name
        self.live = "1"
        self.words: dict[str, dict[str, Any]] = {}
        """By roll-out: what it has said last."""
        self.settings: list[dict[str, Any]] = []
        """Those that it has taken over."""
        self.asked_again = 0
        self.received = 0
        """Bytes of blocks."""
        self._plans: dict[str, dict[str, Any]] = {}
        self._package: dict[str, Any] = {}
        self._parts: dict[int, bytes] = {}
        self._missing: set[int] = set()
        self._asked: set[int] = set()
        self._came_at = self._interval = self._told_at = 0.0
        self._outcome: tuple[str, str | None] = ("need", None)
        """What it says of the package."""
        self._ended: Callable[[str, str | None], None] = lambda _state, _why: None
        self._mid = 0
        self._inbox = bytearray()
        self._outbox: deque[bytes] = deque()
        self.wire = socket.create_connection(("127.0.0.1", boxes.port))
        self.send(0x10, _text("MQTT") + b"\x04\x02\x00\x00" + _text(f"sim-{name}"))
        self.subscribe([f"edge/{name}/in/#", "edge/@lab/in/#", "edge/@rollout/#"])
        self.say("status", {"state": "online", "reason": "started", "session": "s"})
        self.say("info", {"groups": ["lab"], "pipelines": []})
        self.healthy()
        self.wire.setblocking(False)

    # MQTT

    def send(self, kind: int, body: bytes) -> None:
        self._outbox.append(_packet(kind, body))
        self.boxes.wants_to_write(self)

    def subscribe(self, topics: Iterable[str]) -> None:
        self._mid = self._mid % 65535 + 1
        body = b"".join(_text(topic) + b"\x01" for topic in topics)
        self.send(0x82, self._mid.to_bytes(2, "big") + body)

    def unsubscribe(self, topics: Iterable[str]) -> None:
        self._mid = self._mid % 65535 + 1
        self.send(0xA2, self._mid.to_bytes(2, "big") + b"".join(map(_text, topics)))

    def publish(self, topic: str, says: dict[str, Any], *, retain: bool) -> None:
        payload = json.dumps({"schema": 1, **says, "time": _now()}).encode()
        self.send(0x30 | retain, _text(topic) + payload)

    def say(self, kind: str, says: dict[str, Any], *, retain: bool = True) -> None:
        self.publish(f"edge/{self.name}/{kind}", says, retain=retain)

    def healthy(self) -> None:
        self.say("health", {"state": "ok", "why": [], "interval_s": 600, "uptime_s": 60})

    def write(self) -> None:
        while self._outbox:
            try:
                sent = self.wire.send(self._outbox[0])
            except BlockingIOError:
                return
            if sent < len(self._outbox[0]):
                self._outbox[0] = self._outbox[0][sent:]
                return
            self._outbox.popleft()

    @property
    def has_output(self) -> bool:
        return bool(self._outbox)

    def read(self) -> None:
        try:
            data = self.wire.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError(self.name)
        self._inbox += data
        while (end := self._next()) is not None:
            start, kind = end[0], self._inbox[0]
            body = bytes(self._inbox[start : end[1]])
            del self._inbox[: end[1]]
            if kind >> 4 == 3:
                self._published(kind, body)

    def _next(self) -> tuple[int, int] | None:
        """Give where the body of the first packet begins and ends; None: it is not whole."""
        length = shift = 0
        for at in range(1, min(5, len(self._inbox))):
            length |= (self._inbox[at] & 0x7F) << shift
            shift += 7
            if not self._inbox[at] & 0x80:
                return (at + 1, at + 1 + length) if len(self._inbox) > at + length else None
        return None

    def _published(self, kind: int, body: bytes) -> None:
        size = int.from_bytes(body[:2], "big")
        topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
        if kind & 6:
            self.send(0x40, rest[:2])
            rest = rest[2:]
        match topic.split("/")[1:]:
            case ["@rollout", name]:
                self._rollout(name, rest)
            case [_, "in", "push", transfer, "offer"]:
                offer = json.loads(rest)
                assert offer["drawn"] is True
                if self._package.get("id") == transfer:  # once more
                    self._progress(transfer, *self._outcome)
                    return
                self._draw(transfer, lambda state, why: self._progress(transfer, state, why))
                self._offer(rest)
            case ["@package", transfer, *what] if rest and transfer == self._package.get("id"):
                self._drawn(what, rest)

    # Packages

    def _progress(self, transfer: str, state: str, why: str | None) -> None:
        total = self._package.get("blocks", 0)
        have = total - len(self._missing)
        says = {"transfer": transfer, "state": state, "drawn": True, "why": why}
        says |= {"have": have, "total": total, "percent": 100 * have / max(total, 1)}
        self.say(f"push/{transfer}", says, retain=False)

    def _draw(self, transfer: str, ended: Callable[[str, str | None], None]) -> None:
        self._package, self._ended = {"id": transfer}, ended
        self._outcome = "need", None
        self._parts, self._missing, self._asked = {}, set(), set()
        self._came_at = self._interval = self._told_at = 0.0

    def _offer(self, offer: bytes) -> None:
        header = base64.b64decode(json.loads(offer)["package"])
        transfer = hashlib.sha256(header).hexdigest()[:32]
        assert transfer == self._package["id"]
        self._package |= json.loads(header)
        parts = -(-self._package["blocks"] * ENTRY.size // PART)
        self.subscribe(f"edge/@package/{transfer}/list/{n}" for n in range(parts))

    def _drawn(self, what: list[str], data: bytes) -> None:
        transfer = self._package["id"]
        topic = "/".join(("edge/@package", transfer, *what))
        match what:
            case ["offer"] if "blocks" not in self._package:
                self._offer(data)
            case ["list", number]:
                self._parts[int(number)] = data
                listed = b"".join(self._parts[n] for n in sorted(self._parts))
                if hashlib.sha256(listed).hexdigest() == self._package["blocks_sha256"]:
                    self._package["listed"] = listed
                    self._missing = set(range(self._package["blocks"]))
                    self._came_at = time.monotonic()
                    self._watch(self.received)
            case ["block", number] if int(number) in self._missing:
                at = int(number) * ENTRY.size
                _, digest = ENTRY.unpack(self._package["listed"][at : at + ENTRY.size])
                assert hashlib.sha256(data).digest() == digest
                self.received += len(data)
                gap = time.monotonic() - self._came_at
                self._came_at += gap
                self._interval = 0.8 * self._interval + 0.2 * gap if self._interval else gap
                self._missing.discard(int(number))
                self._asked.discard(int(number))
                if not self._missing:
                    self.unsubscribe([topic])
                    self._complete()
                    return
        self.unsubscribe([topic])
        # As much as comes in a second, as a device does.
        window = max(1, min(WINDOW, int(PACE / self._interval))) if self._interval else 1
        if len(self._asked) <= window // 2 and self._missing:
            new = sorted(self._missing - self._asked)[: window - len(self._asked)]
            self._asked.update(new)
            if new:
                self.subscribe(f"edge/@package/{transfer}/block/{n}" for n in new)
            if time.monotonic() - self._told_at >= TOLD:
                self._told_at = time.monotonic()
                self._progress(transfer, "need", None)

    def _watch(self, received: int) -> None:
        """Ask again after a silence, as a device does."""

        def look() -> None:
            if self._missing and self.received == received:
                self.asked_again += 1
                transfer = self._package["id"]
                self.subscribe(f"edge/@package/{transfer}/block/{n}" for n in sorted(self._asked))
            if self._missing:
                self._watch(self.received)

        self.boxes.later(SILENCE, look)

    def _complete(self) -> None:
        version = self._package["version"]
        self._outcome = "live", None
        if self.boxes.rejects(self.name, version):
            self._outcome = "rejected", "golden outputs differ"
        else:
            self.live = version
        self._ended(*self._outcome)

    # Roll-outs

    def _rollout(self, name: str, payload: bytes) -> None:
        if not payload.startswith(b"{"):  # cleared, or none
            self._plans.pop(name, None)
            return
        plan = json.loads(json.loads(payload)["signed"])
        known = self._plans.get(name)
        self._plans[name] = plan
        digest = hashlib.sha256(f"{name}\0{self.name}".encode()).digest()[:8]
        rank = int.from_bytes(digest, "big") / 2**64
        waves = (
            n
            for n, each in enumerate(plan["waves"])
            if self.name in each["devices"]
            or (not each["devices"] and each["group"] in {None, "lab"} and rank < each["share"])
        )
        if (wave := next(waves, None)) is None:
            return
        said = self.words.get(name, {}).get("state")
        if plan.get("settings") is not None:
            if self.words.get(name, {}).get("created") != plan["created"]:
                pause = random.uniform(0, plan["spread_s"])  # noqa: S311 - no secret
                self.boxes.later(pause, lambda: self._take_over(name, plan))
            return
        if plan["state"] == "aborted":
            if said == "live" and plan["back"]:
                self.live = self.words[name]["from"]
                self._word(name, wave, "rolled-back", plan["why"])
            elif said not in {"live", "rejected", "rolled-back"}:
                self._package, self._missing = {}, set()
                self._word(name, wave, "aborted", plan["why"])
        elif plan["state"] in {"running", "done"} and plan["wave"] >= wave and said is None:
            assert known is None or known["serial"] < plan["serial"]
            self._word(name, wave, "receiving", None)
            pause = random.uniform(0, plan["spread_s"])  # noqa: S311 - no secret
            self.boxes.later(pause, lambda: self._begin(name, wave))

    def _begin(self, name: str, wave: int) -> None:
        plan = self._plans.get(name)
        if plan is not None and plan["state"] != "aborted":
            self._draw(plan["transfer"], lambda state, why: self._word(name, wave, state, why))
            self.subscribe([f"edge/@package/{plan['transfer']}/offer"])

    def _take_over(self, name: str, plan: dict[str, Any]) -> None:
        """Take settings over as a device does that has no trouble with them."""
        self.settings.append(plan["settings"])
        word = {"id": name, "wave": 0, "created": plan["created"]}
        for state in ("probation", "live"):
            self.words[name] = {**word, "state": state}
            self.say("rollout", self.words[name])

    def _word(self, name: str, wave: int, state: str, why: str | None) -> None:
        before = self.words.get(name, {}).get("from", self.live)
        word = {"id": name, "wave": wave, "state": state, "why": why, "from": before, "was": "ok"}
        self.words[name] = word
        self.say("rollout", {key: value for key, value in word.items() if value is not None})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())


class Boxes:
    """All of them, and the thread that they run in."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.rejects: Callable[[str, str], bool] = lambda _name, _version: False
        """Whether a device rejects a version."""
        self._selector = selectors.DefaultSelector()
        self._writers: set[Simulated] = set()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._orders: deque[Callable[[], None]] = deque()
        self._closing = False
        self.all: dict[str, Simulated] = {}
        self.add(f"box-{number:04}" for number in range(count))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            made = self.all[name] = Simulated(self, name)
            self._selector.register(made.wire, selectors.EVENT_READ, made)

    def remove(self, names: Iterable[str]) -> None:
        """Take devices off the network, as after a power cut that a will has told of."""
        for name in names:
            gone = self.all.pop(name)
            self._selector.unregister(gone.wire)
            self._writers.discard(gone)
            gone.wire.setblocking(True)
            gone.say("status", {"state": "offline", "reason": "lost", "session": "s"})
            gone.write()
            gone.wire.close()

    def do(self, order: Callable[[], None]) -> None:
        """Have the thread do something, and wait for that."""
        done = threading.Event()

        def carry_out() -> None:
            order()
            done.set()

        self._orders.append(carry_out)
        assert done.wait(60)

    def wants_to_write(self, box: Simulated) -> None:
        self._writers.add(box)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), call))

    def states(self, name: str) -> Counter[str]:
        """Count what the devices say of a roll-out."""
        return Counter(box.words.get(name, {}).get("state", "") for box in self.all.values())

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(0.01):
                key.data.read()
            while self._orders:
                self._orders.popleft()()
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            for box in list(self._writers):
                box.write()
                if not box.has_output:
                    self._writers.discard(box)

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        for box in self.all.values():
            box.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
