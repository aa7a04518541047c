"""The scripts that the agent's cameras are compared with, one thread per camera.

One reads all frames with PyAV, and converts and infers those due. The other has FFmpeg as a child
that decodes and writes raw frames to a pipe at the wanted rate, as Frigate does. Run as
`python -m edge_agent.bench.cameras.plain_cameras WAY MODEL RATE ADDRESS WIDTH HEIGHT FPS COUNT PORT
TOPIC`; plays until it is terminated.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import av
import cv2
import numpy as np

from ...core.types import Array
from ..common.start_script import prepare
from ..pipeline.plain import Script, connect

RTSP = "rtsp:"
Frames = Iterator[tuple[int, float, Array]]
"""Number of a frame, when it was captured, and the frame in BGR."""


def by_pyav(address: str, rate: float, _shape: tuple[int, int, int]) -> Frames:
    """Read and decode all frames, and convert those due; a file is repeated at its own rate."""
    seq, slot, begun = 0, -1, time.monotonic()
    while True:
        with (
            suppress(av.FFmpegError),  # a server that stalls for one client answers the next
            av.open(address, options={"rtsp_transport": "tcp"}, timeout=10) as container,
        ):
            first = time.monotonic()
            for frame in container.decode(video=0):
                if not address.startswith(RTSP):
                    time.sleep(max(0.0, first + float(frame.time or 0) - time.monotonic()))
                seq += 1
                due = int((time.monotonic() - begun) * rate)
                if due != slot:
                    slot = due
                    yield seq, time.time(), frame.to_ndarray(format="bgr24")


def by_ffmpeg(address: str, rate: float, shape: tuple[int, int, int]) -> Frames:
    """Read and convert a child's output, which is YUV 4:2:0 as in Frigate."""
    width, height, fps = shape
    rtsp = ["-rtsp_transport", "tcp", "-timeout", "10000000"]  # microseconds
    given = rtsp if address.startswith(RTSP) else ["-re", "-stream_loop", "-1"]
    command = ["ffmpeg", "-nostdin", "-loglevel", "error", *given, "-i", address]
    wanted = ["-an", "-r", f"{rate:g}", "-pix_fmt", "yuv420p", "-f", "rawvideo", "pipe:1"]
    size, numbers = width * height * 3 // 2, count()
    while True:
        with subprocess.Popen([*command, *wanted], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None  # noqa: S101 - it was started with a pipe
            while len(data := child.stdout.read(size)) == size:
                planes = np.frombuffer(data, np.uint8).reshape(height * 3 // 2, width)
                picture = cv2.cvtColor(planes, cv2.COLOR_YUV2BGR_I420)
                yield int(next(numbers) * fps / rate), time.time(), picture


WAYS = {"loop": by_pyav, "ffmpeg": by_ffmpeg}


def main(way: str, model: str, rate: str, address: str, *rest: str) -> None:
    """Play every camera through the model and publish every result, forever."""
    *shape, cameras, port, topic = rest
    width, height, fps = map(int, shape)
    script, client = Script(model), connect(port)

    def play(number: int) -> None:
        for seq, taken, frame in WAYS[way](address, float(rate), (width, height, fps)):
            tensor, placed = prepare(frame, script.how)
            found = script.find(tensor, placed, script.infer(tensor))
            client.publish(f"{topic}{number}", script.payload(seq, taken, found))

    threads = [threading.Thread(target=play, args=(number,)) for number in range(int(cameras))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
