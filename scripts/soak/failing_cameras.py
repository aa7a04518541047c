"""Eight cameras that fail in turn, read by one agent: what they do leaves nothing behind.

    python scripts/soak/failing_cameras.py [--minutes 30] [--seed 7]

Three speak RTSP, three send MJPEG and two MPEG-TS over HTTP. One after another hangs up, falls
silent, sends garbage, changes its size, or its codec, and is well again. Of a camera that is well
the pictures are seen to be right: each size has a brightness of its own.

Prints one JSON object; ends with 1 if the agent died or wrote a traceback, if memory, threads or
descriptors grew (see `soak.py`), if an account does not add up or a result was not heard, if a
camera did not come back, a picture was wrong, or a camera was asked for more often than its
failures explain.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import av
import psutil
from soak import Ears, Stand, camera, judged

from tests.helpers.small_models import brightness, encode_jpeg, plain
from tests.helpers.support import Mosquitto

RATE = 10
SIZES = {"small": ((160, 96), 60), "large": ((320, 192), 180)}
"""Width and height, and the brightness of all pictures of that size."""
FAILURES = ("hang up", "silence", "garbage", "size", "codec")
STALL = 4
"""Seconds of silence after which a camera is lost."""
PATIENCE = 90.0
"""Seconds within which one that is well again gives results."""
ASKED = 12
"""Connections for each failure: pauses between tries double, and of HTTP each try has two."""


def clip(codec: str, size: str, form: str) -> list[bytes]:
    """Encode two seconds of gray pictures; gives the packets, or of `mpegts` pieces of the file."""
    (width, height), value = SIZES[size]
    file = io.BytesIO()
    packets: list[bytes] = []
    with av.open(file, "w", format=form) as container:
        options = {"g": "10", "tune": "zerolatency", "preset": "ultrafast"}
        if codec == "libx265":
            options["x265-params"] = "log-level=none:repeat-headers=1:pools=1"
        stream: Any = container.add_stream(codec, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(2 * RATE):
            picture = plain(value, width, height)
            frame = av.VideoFrame.from_ndarray(picture, format="bgr24").reformat(format="yuv420p")
            frame.pts = number
            for packet in stream.encode(frame):
                packets.append(bytes(packet))
                container.mux(packet)
        for packet in stream.encode(None):
            packets.append(bytes(packet))
            container.mux(packet)
    if form != "mpegts":
        return packets
    data = file.getvalue()
    step = len(data) // (2 * RATE) // 188 * 188 + 188
    return [data[at : at + step] for at in range(0, len(data), step)]


class Camera:
    """A camera that can be told to fail."""

    kinds: tuple[str, str]
    """Its codec, and the one that it changes to."""
    form = "h264"

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name, self._dice = name, dice
        self.mood, self.size, self.codec = "well", "small", self.kinds[0]
        self.asked = 0
        self._clips = {
            (codec, size): self.encode(codec, size) for codec in self.kinds for size in SIZES
        }
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._welcome, daemon=True).start()

    def encode(self, codec: str, size: str) -> list[bytes]:
        """Make the pieces that are sent at RATE, over and over."""
        return clip(codec, size, self.form)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/stream?stall_s={STALL}"

    def cut(self) -> None:
        """Hang up on everyone."""
        for taken in self._taken:
            with suppress(OSError):
                taken.shutdown(socket.SHUT_RDWR)
        self._taken.clear()

    def _welcome(self) -> None:
        while True:
            taken = self._door.accept()[0]
            self.asked += 1
            self._taken.append(taken)
            threading.Thread(target=self._serve, args=(taken,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.mood != "hang up":
                self.serve(client)

    def pieces(self) -> Any:
        """Yield what is to be sent, at the camera's rate, as its mood is."""
        number, before = 0, None
        while True:
            time.sleep(1 / RATE)
            if self.mood == "silence":
                continue
            pieces = self._clips[self.codec, self.size]
            # Anything new begins with a key frame.
            number = number if pieces is before else 0
            before = pieces
            piece = pieces[number % len(pieces)]
            if self.mood == "garbage" and self._dice.random() < 0.7:
                piece = self._dice.randbytes(len(piece))
            yield piece
            number += 1

    def serve(self, client: socket.socket) -> None:
        """Answer a client until it goes."""
        raise NotImplementedError


class Mjpeg(Camera):
    """Sends JPEG pictures; of the other codec, MPEG-TS, after it was asked again."""

    kinds = ("mjpeg", "libx264")

    def encode(self, codec: str, size: str) -> list[bytes]:
        if codec != "mjpeg":
            return clip(codec, size, "mpegts")
        (width, height), value = SIZES[size]
        return [encode_jpeg(plain(value, width, height))]

    def serve(self, client: socket.socket) -> None:
        client.recv(65536)
        jpeg = self.codec == "mjpeg"
        kind = "multipart/x-mixed-replace; boundary=x" if jpeg else "video/mp2t"
        client.sendall(f"HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode())
        for piece in self.pieces():
            head = b"--x\r\nContent-Type: image/jpeg\r\n\r\n" if jpeg else b""
            client.sendall(head + piece + (b"\r\n" if jpeg else b""))


class Transport(Camera):
    """Sends MPEG-TS; its codec changes in the middle of the stream."""

    kinds = ("libx264", "mpeg2video")
    form = "mpegts"

    def serve(self, client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n")
        for piece in self.pieces():
            client.sendall(piece)


class Rtsp(Camera):
    """Speaks RTSP over TCP; its codec changes in the middle of a session, as its size does."""

    kinds = ("libx264", "libx265")

    def encode(self, codec: str, size: str) -> list[bytes]:
        return clip(codec, size, "h264" if codec == "libx264" else "hevc")

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.port}/stream?stall_s={STALL}"

    def serve(self, client: socket.socket) -> None:
        stream = client.makefile("rb")
        playing = False
        while line := stream.readline():
            if line[:1] == b"$":
                rest = line[1:] + stream.read(max(0, 4 - len(line)))
                stream.read(max(0, int.from_bytes(rest[1:3]) - (len(rest) - 3)))
                continue
            heads = [line]
            while (head := stream.readline()) not in {b"\r\n", b""}:
                heads.append(head)
            verb = line.split()[0].decode()
            number = next(h for h in heads if h.lower().startswith(b"cseq")).split(b":")[1].strip()
            more, body = "Session: 1\r\n", ""
            name = "H264" if self.codec == "libx264" else "H265"
            if verb == "OPTIONS":
                more = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER\r\n"
            elif verb == "DESCRIBE":
                body = (
                    "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n"
                    f"a=rtpmap:96 {name}/90000\r\na=control:track\r\n"
                )
                more = f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
            elif verb == "SETUP":
                more += "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
            answer = f"RTSP/1.0 200 OK\r\nCSeq: {number.decode()}\r\n{more}\r\n{body}"
            client.sendall(answer.encode())
            if verb == "PLAY" and not playing:
                playing = True
                threading.Thread(target=self._play, args=(client,), daemon=True).start()

    def _play(self, client: socket.socket) -> None:
        sequence, at = 0, 0
        with suppress(OSError):
            for piece in self.pieces():
                at += 90000 // RATE
                parts = self._parts(piece)
                for number, part in enumerate(parts):
                    mark = 0x80 if number == len(parts) - 1 else 0
                    head = bytes([0x80, mark | 96]) + (sequence & 0xFFFF).to_bytes(2)
                    packet = head + (at & 0xFFFFFFFF).to_bytes(4) + b"\0\0\0\1" + part
                    client.sendall(b"$\0" + len(packet).to_bytes(2) + packet)
                    sequence += 1

    def _parts(self, piece: bytes) -> list[bytes]:
        """Cut an access unit into payloads: a NAL unit each, or pieces of one (RFC 6184, 7798)."""
        parts = []
        wide = self.codec == "libx265"
        for unit in re.split(b"\0\0\0\1|\0\0\1", piece):
            if len(unit) < 1300:
                parts += [unit] if len(unit) > 2 else []
                continue
            if wide:
                head, kind, rest = bytes([unit[0] & 0x81 | 49 << 1, unit[1]]), unit[0] >> 1 & 63, 2
            else:
                head, kind, rest = bytes([unit[0] & 0xE0 | 28]), unit[0] & 31, 1
            cuts = range(rest, len(unit), 1300)
            for at in cuts:
                first, last = at == rest, at + 1300 >= len(unit)
                flags = bytes([first << 7 | last << 6 | kind])
                parts.append(head + flags + unit[at : at + 1300])
        return parts


class Judge(Ears):
    """Hears the agent, and judges each result."""

    def __init__(self, port: int) -> None:
        self.wrong_pictures: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.doubtful: set[str] = set()
        """Cameras that send garbage, or have until a moment ago."""
        super().__init__(port)

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        super()._on_message(client, userdata, message)
        if "/result/" not in message.topic:
            return
        result = json.loads(message.payload)
        name = result["pipeline"]
        self.results[name] += 1
        size = result["source"]["width"], result["source"]["height"]
        self.sizes[f"{size[0]}x{size[1]}"] += 1
        light = next(iter(result["values"].values()))
        right = any(size == each and abs(light - value) < 4 for each, value in SIZES.values())
        if not right and name not in self.doubtful:
            self.wrong_pictures[f"{name}: {size} {light:.0f}"] += 1


def fail(stand: Stand, watch: Judge, one: Camera, failure: str) -> float:
    """Let a camera fail for a while and be well again; gives how long it then took to be back."""
    name, pause = one.name, threading.Event()
    if failure in {"size", "codec"}:
        if failure == "size":
            one.size = "large" if one.size == "small" else "small"
        else:
            one.codec = one.kinds[1] if one.codec == one.kinds[0] else one.kinds[0]
            if isinstance(one, Mjpeg):
                one.cut()
    else:
        one.mood = failure
        if failure == "garbage":
            watch.doubtful.add(name)
        if failure == "hang up":
            one.cut()
        pause.wait(2.0 * STALL)
        one.mood = "well"
    began = time.monotonic()
    # The next may fail meanwhile only once this one is back: so each failure has its own time.
    before = watch.results[name]
    while watch.results[name] < before + 10:
        if time.monotonic() - began > PATIENCE:
            stand.body.wrong.append(f"{name} was not back {PATIENCE:.0f} s after: {failure}")
            break
        pause.wait(0.1)
    back = time.monotonic() - began
    pause.wait(2.0)
    watch.doubtful.discard(name)
    return back


def run(stand: Stand, watch: Judge, options: argparse.Namespace) -> dict[str, Any]:
    """Let cameras fail in turn until the time is over."""
    dice = random.Random(options.seed)
    kinds = (Rtsp, Mjpeg, Transport, Rtsp, Mjpeg, Transport, Rtsp, Mjpeg)
    cameras = {f"cam{n}": kind(f"cam{n}", dice) for n, kind in enumerate(kinds)}
    stand.start([camera(name, one.url, model="light") for name, one in cameras.items()])
    for name in cameras:
        stand.wait(lambda name=name: watch.results[name] >= 5, f"results of {name}")  # type: ignore[misc]
    asked_at_first = {name: one.asked for name, one in cameras.items()}
    done: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    back: dict[str, list[float]] = {failure: [] for failure in FAILURES}
    end = time.monotonic() + 60 * options.minutes
    process = psutil.Process(stand.body.agent.process.pid)
    turn = 0
    while time.monotonic() < end:
        name = f"cam{turn % len(cameras)}"
        failure = FAILURES[(turn + turn // len(cameras)) % len(FAILURES)]
        turn += 1
        done[failure] += 1
        failures[name] += 1
        back[failure].append(fail(stand, watch, cameras[name], failure))
        stand.body.look()
    seconds = sum(process.cpu_times()[:2])
    accounts = stand.check_accounts()
    asked = {name: one.asked - asked_at_first[name] for name, one in cameras.items()}
    for name, count in asked.items():
        if count > ASKED * failures[name]:
            stand.body.wrong.append(f"{name} was asked for {count} times")
    if watch.wrong_pictures:
        stand.body.wrong.append(f"wrong pictures: {dict(watch.wrong_pictures)}")
    for name, account in accounts.items():
        if abs(account["published"] - watch.results[name]) > RATE:
            stand.body.wrong.append(
                f"{name}: {account['published']} published, {watch.results[name]} heard"
            )
    total = sum((Counter(each["dropped"]) for each in accounts.values()), Counter())
    return {
        "seed": options.seed,
        "failures": dict(done),
        "back_s": {each: [round(max(took), 1)] for each, took in back.items() if took},
        "asked": asked,
        "captured": sum(each["captured"] for each in accounts.values()),
        "results": sum(watch.results.values()),
        "dropped": dict(total),
        "sizes": dict(watch.sizes),
        "cpu_s": round(seconds, 1),
    }


def main() -> int:
    """Run it and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cameras-") as place, ExitStack() as stack:
        folder = Path(place)
        brightness(folder / "library" / "light")
        broker = Mosquitto(folder / "broker")
        stack.callback(broker.stop)
        ears = Judge(broker.port)
        stack.callback(ears.close)
        stand = Stand(folder, broker, ears, stack)
        return judged(stand, {}, lambda: run(stand, ears, options))


if __name__ == "__main__":
    sys.exit(main())
