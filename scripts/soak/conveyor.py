"""Count the parts of a rendered conveyor by a line, and compare with what was drawn.

    python scripts/soak/conveyor.py [--lossless] [--minutes 10] [--drop 0.2] [--frames FOLDER]

Three pipelines of one agent watch the same run through a camera each (MJPEG over HTTP): at 25
frames a second, at 5, and at 25 of which a share is dropped at random. The bundled detector finds
the parts; a line across the belt counts them, and the totals are read from a real mosquitto. It
takes a machine that does nothing else: where camera and agent do not get the processor in time,
many more frames are dropped. With `--lossless` they are pictures in folders, taken one after the
other however long that takes; of those that are dropped the agent is not even told.

For each it says how many parts have crossed of those that were drawn so; how far the totals by
label are from the labels that the detector gave these parts most on their way to the line; and how
far from what was drawn. Ends with 1 unless all are exact, with dropped frames within one in a
hundred.

Drawing takes about a minute for each minute, on one core; with `--frames` it is kept for next time.
"""

from __future__ import annotations

import argparse
import json
import mmap
import struct
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "assets"))

import cv2
import numpy as np
from draw_conveyor import FRAME, LABELS, clip, laid_out

from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings

ROOT = Path(__file__).resolve().parents[2]
FPS = 25
LINE = FRAME[0] / 2
"""Where parts cross: the middle of the frame, from right to left."""
CLEAR = 30
"""Pixels: at the first and the last frame no part is so near the line."""
PATIENCE = 3600
"""Seconds for all of it."""
EDGE = 3
"""Pixels: a box so near the frame's edge may be cut."""
PAST = 8
"""Pixels: so far beyond the line a part has crossed it."""
SAME = 24
"""Pixels: a detection so near a part's center is of this part."""


@dataclass(frozen=True)
class Frame:
    """What was drawn in one frame."""

    offset: float
    boxes: list[tuple[float, float, float, float]]
    labels: list[int]
    parts: list[int]


@dataclass(frozen=True)
class Case:
    """One pipeline: every so many frames, less a share."""

    name: str
    every: int
    drop: float


@dataclass
class Verdict:
    """What came of one pipeline."""

    name: str
    frames: int = 0
    results: int = 0
    parts: int = 0
    crossed: int = 0
    back: int = 0
    tracker_wrong: int = 0
    """Sum of what the totals by label differ from the labels that the parts had most."""
    model_wrong: int = 0
    """Parts that the detector mostly called something else than was drawn."""
    counted: dict[str, int] | None = None
    had: dict[str, int] | None = None
    drawn: dict[str, int] | None = None


def main() -> int:
    """Run it and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lossless", action="store_true", help="folders instead of cameras")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--drop", type=float, default=0.2, help="share of frames in the third case")
    parser.add_argument("--frames", type=Path, help="folder to keep what is drawn in")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="conveyor-") as scratch:
        folder = options.frames or Path(scratch)
        if not (folder / "truth.json").exists():
            draw(folder, options.minutes * 60)
        verdicts = measure(Path(scratch), folder, options.drop, lossless=options.lossless)
    for verdict in verdicts:
        if options.json:
            print(json.dumps(asdict(verdict)))
            continue
        print(verdict.name)
        for key, value in asdict(verdict).items():
            if key != "name":
                print(f"  {key:14} {value}")
    return 0 if all(good(verdict) for verdict in verdicts) else 1


def good(verdict: Verdict) -> bool:
    """Whether the agent has counted as it should."""
    may = verdict.parts // 100 if "dropped" in verdict.name else 0
    return (
        verdict.parts > 0
        and abs(verdict.crossed - verdict.parts) + verdict.back <= may
        and verdict.tracker_wrong <= 2 * may
        and verdict.model_wrong <= may
    )


def draw(folder: Path, seconds: float) -> None:
    """Draw a run, as JPEG one after the other, each behind its length; and the truth."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = []
    with (folder / "run.mjpg").open("wb") as file:
        for picture, there in clip(FPS, seconds):
            packed = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes()
            file.write(struct.pack("<I", len(packed)) + packed)
            truth.append(asdict(Frame(there.offset, there.boxes, there.labels, there.parts)))
    places = [part.x for part in laid_out(seconds)[0].parts]
    (folder / "truth.json").write_text(json.dumps({"x": places, "frames": truth}, default=float))


class Run:
    """A drawn run, from the first to the last frame in which no part is on the line."""

    def __init__(self, folder: Path) -> None:
        drawn = json.loads((folder / "truth.json").read_text())
        truth = [Frame(**frame) for frame in drawn["frames"]]
        self.x = drawn["x"]
        """Where the parts lie on the belt."""
        clear = [index for index, frame in enumerate(truth) if self._clear(frame)]
        span = slice(clear[0], clear[-1] + 1)
        self.frames = truth[span]
        with (folder / "run.mjpg").open("rb") as file:
            self._packed = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        places, at = [], 0
        while at < len(self._packed):
            (length,) = struct.unpack_from("<I", self._packed, at)
            places.append(slice(at + 4, at + 4 + length))
            at += 4 + length
        self._places = places[span]

    def _clear(self, frame: Frame) -> bool:
        return all(abs(self.x[part] - frame.offset - LINE) > CLEAR for part in frame.parts)

    def picture(self, index: int) -> bytes:
        """Return a frame as JPEG."""
        return self._packed[self._places[index]]

    def drawn(self) -> dict[int, int]:
        """Return the label of each part that crosses the line; -1: neither is right nor wrong."""
        first, last = self.frames[0].offset, self.frames[-1].offset
        seen: dict[int, Counter[int]] = defaultdict(Counter)
        for frame in self.frames:
            for box, label, part in zip(frame.boxes, frame.labels, frame.parts, strict=True):
                if box[0] > EDGE and box[2] < FRAME[0] - EDGE:
                    seen[part][label] += 1
        return {
            part: labels.most_common(1)[0][0]
            for part, labels in sorted(seen.items())
            if self.x[part] - first > LINE > self.x[part] - last
        }


def shown(run: Run, case: Case) -> list[int]:
    """Return the frames that a pipeline is shown."""
    rng = np.random.default_rng(8)
    return [i for i in range(0, len(run.frames), case.every) if rng.random() >= case.drop]


def pictures(run: Run, case: Case, folder: Path) -> str:
    """Write the frames of a pipeline as pictures; returns its source."""
    folder.mkdir()
    for index in shown(run, case):
        (folder / f"{index:06}.jpg").write_bytes(run.picture(index))
    return f"dir:{folder}"


class Camera:
    """Plays the run once, when it is asked for it; then the picture stands still."""

    def __init__(self, run: Run, case: Case) -> None:
        self.shown = shown(run, case)
        self.done = threading.Event()
        self._asked = threading.Lock()
        camera = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not camera._asked.acquire(blocking=False):
                    self.send_error(503, "the run is played once")
                    return
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
                self.end_headers()
                camera.play(run, self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def play(self, run: Run, request: BaseHTTPRequestHandler) -> None:
        """Send each frame when it is due, then hold the connection."""
        pause = threading.Event()
        began = time.monotonic()
        for index in self.shown:
            pause.wait(max(0.0, began + index / FPS - time.monotonic()))
            picture = run.picture(index)
            request.wfile.write(
                b"--frame\r\nContent-Type: image/jpeg\r\n"
                + f"Content-Length: {len(picture)}\r\n\r\n".encode()
                + picture
                + b"\r\n"
            )
        self.done.set()
        pause.wait(60)

    def close(self) -> None:
        """Take no more connections."""
        self._http.shutdown()
        self._http.server_close()


def measure(scratch: Path, folder: Path, drop: float, *, lossless: bool) -> list[Verdict]:
    """Let an agent watch the run for all cases at once, and judge its counts."""
    run = Run(folder)
    cases = [
        Case("25-a-second", 1, 0.0),
        Case("5-a-second", FPS // 5, 0.0),
        Case(f"25-a-second-{drop:.0%}-dropped".replace("%", "-percent"), 1, drop),
    ]
    cameras = [] if lossless else [Camera(run, case) for case in cases]
    if lossless:
        sources = [pictures(run, case, scratch / case.name) for case in cases]
    else:
        sources = [camera.url for camera in cameras]
    pipelines = [
        {
            "name": case.name,
            "source": source,
            "model": "parts-inspection",
            "lines": [
                {"name": "gate", "points": [[0.5, 1.0], [0.5, 0.0]], "anchor": "center"},
            ],
        }
        for case, source in zip(cases, sources, strict=True)
    ]
    broker = Mosquitto(scratch / "broker")
    ears = Listener(broker.port)
    agent = AgentProcess(
        scratch / "agent",
        agent_settings("box", broker.url, pipelines, models_dirs=[str(ROOT / "models")]),
    )
    try:
        for camera in cameras:
            if not camera.done.wait(2 * len(run.frames) / FPS):
                raise SystemExit(f"conveyor: a camera was left before its end\n{agent.words()}")
        for case in cases if lossless else []:
            ears.wait_state(f"edge/box/source/{case.name}", PATIENCE, state="ended")
        threading.Event().wait(3)  # counts are published once a second
        agent.stop()
        ears.catch_up()
        return [judge(run, case, ears) for case in cases]
    finally:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
        ears.close()
        broker.stop()
        for camera in cameras:
            camera.close()


def judge(run: Run, case: Case, ears: Listener) -> Verdict:
    """Compare the totals with the labels that the parts had in the results, and with the truth."""
    drawn = run.drawn()
    totals = ears.last(f"edge/box/count/{case.name}")
    if totals is None:
        raise SystemExit(f"conveyor: no count of {case.name} was heard")
    ways = {way: Counter(totals["lines"]["gate"][way]) for way in ("in", "out")}
    results = ears.on(f"edge/box/result/{case.name}")
    frames = shown(run, case)
    most = labels_had(run, frames, results)
    there, back = sorted(ways.values(), key=Counter.total, reverse=True)
    had = Counter(most.get(part, "none") for part in drawn)
    return Verdict(
        case.name,
        frames=len(frames),
        results=len(results),
        parts=len(drawn),
        crossed=there.total(),
        back=back.total(),
        tracker_wrong=sum(abs(there[label] - had[label]) for label in {*there, *had}),
        model_wrong=sum(
            label >= 0 and most.get(part) != LABELS[label] for part, label in drawn.items()
        ),
        counted=dict(sorted(there.items())),
        had=dict(sorted(had.items())),
        drawn=dict(
            sorted(
                Counter(
                    LABELS[label] if label >= 0 else "half hidden" for label in drawn.values()
                ).items()
            )
        ),
    )


def labels_had(
    run: Run, frames: Sequence[int], results: Sequence[dict[str, Any]]
) -> dict[int, str]:
    """Return the label that each part had most in the results, by score, until it had crossed."""
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for result in results:
        frame = run.frames[frames[result["seq"]]]
        places = {
            part: ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
            for box, part in zip(frame.boxes, frame.parts, strict=True)
            if run.x[part] - frame.offset > LINE - PAST and box[2] < FRAME[0] - EDGE
        }
        for found in result["detections"]:
            x = (found["box"][0] + found["box"][2]) / 2
            y = (found["box"][1] + found["box"][3]) / 2
            for part, (at_x, at_y) in places.items():
                if (x - at_x) ** 2 + (y - at_y) ** 2 < SAME**2:
                    votes[part][found["label"]] += found["score"]
    return {part: labels.most_common(1)[0][0] for part, labels in votes.items()}


if __name__ == "__main__":
    sys.exit(main())
