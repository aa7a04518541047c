"""Damaged clips and cameras: what cannot be decoded is counted, and the rest comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import SampleError, SourceError
from edge_agent.sources.opencv import load
from edge_agent.sources.source import Source, open_source
from edge_agent.sources.spec import parse_source
from tests.helpers.cameras import MjpegServer
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    ASSETS,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    needs_assets,
)

cv2 = load()

FRAMES = 40
JPEG_BEGINS = b"\xff\xd8\xff"
JPEG_ENDS = b"\xff\xd9"
NO_PICTURE = bytes(500)


def shade(number: int) -> int:
    """Give the gray of a frame by its number, from 0."""
    return 40 + 5 * number


def write_damaged(path: Path, damaged: Iterable[int]) -> Path:
    """Write a clip of FRAMES pictures, some of which hold zeros in place of their JPEG."""
    data = bytearray(write_clip(path, [plain(shade(i)) for i in range(FRAMES)]).read_bytes())
    begins, at = [], data.find(JPEG_BEGINS)
    while at >= 0:
        begins.append(at)
        at = data.find(JPEG_BEGINS, at + 1)
    assert len(begins) == FRAMES
    for number in damaged:
        end = data.index(JPEG_ENDS, begins[number]) + len(JPEG_ENDS)
        data[begins[number] : end] = bytes(end - begins[number])
    path.write_bytes(data)
    return path


def opened(text: str, base: Path) -> Source:
    """Open a source by its text."""
    return open_source(parse_source(text, base))


def look(source: Source, limit: int = 10_000) -> list[int | None]:
    """Take what comes, up to *limit*: the number of each frame, None where there is no picture."""
    seen: list[int | None] = []
    while len(seen) < limit and source.grab():
        try:
            seen.append(round((float(source.retrieve().data.mean()) - shade(0)) / 5))
        except SampleError:
            seen.append(None)
    return seen


@pytest.mark.parametrize("pace", ["real", "max"])
@pytest.mark.parametrize(
    "damaged",
    [[7], [0, 1], [10, 11, 12, 30], list(range(5, 35))],
    ids=["one", "first", "two", "most"],
)
def test_damaged_frames_of_a_clip_cost_only_themselves(
    damaged: list[int], pace: str, tmp_path: Path
) -> None:
    """Each frame that cannot be decoded is one reading that is none; all others come, in order."""
    write_damaged(tmp_path / "clip.avi", damaged)
    source = opened(f"file:clip.avi?pace={pace}", tmp_path)

    seen = look(source)

    assert seen == [None if i in damaged else i for i in range(FRAMES)]
    assert source.trouble == (
        f"{len(damaged)} of the frames could not be decoded, the first is number {damaged[0] + 1}"
    )
    source.close()


def test_a_damaged_clip_that_loops_goes_on_as_a_whole_one(tmp_path: Path) -> None:
    """After its last frame comes its first, pass by pass, the same ones missing in each."""
    write_damaged(tmp_path / "clip.avi", [3, 20])
    source = opened("file:clip.avi?pace=max&loop=1", tmp_path)
    once = [None if i in {3, 20} else i for i in range(FRAMES)]
    assert look(source, 3 * FRAMES) == 3 * once
    source.close()


@pytest.mark.parametrize("loop", ["", "&loop=1"])
@pytest.mark.parametrize("name", ["clip.avi", "clip.mp4", "clip.mkv"])
def test_a_whole_clip_ends_without_an_error(name: str, loop: str, tmp_path: Path) -> None:
    """Of what is not damaged no frame is missed and none made up, whatever the container."""
    codec = cv2.VideoWriter.fourcc(*("mp4v" if name.endswith("mp4") else "MJPG"))
    writer = cv2.VideoWriter(str(tmp_path / name), codec, 25.0, (64, 48))
    for number in range(FRAMES):
        writer.write(plain(shade(number)))
    writer.release()
    source = opened(f"file:{name}?pace=max{loop}", tmp_path)

    seen = look(source, 2 * FRAMES if loop else 10_000)

    # MPEG-4 does not keep a gray to the digit.
    assert len(seen) == (2 * FRAMES if loop else FRAMES)
    assert None not in seen
    assert seen[:FRAMES] == pytest.approx(range(FRAMES), abs=1)
    assert seen[FRAMES:] in ([], seen[:FRAMES])
    assert source.trouble is None
    source.close()


def test_a_clip_whose_end_is_damaged_says_so(tmp_path: Path) -> None:
    """Frames that fail up to the end are told from the end, each for itself."""
    write_damaged(tmp_path / "clip.avi", range(30, FRAMES))
    source = opened("file:clip.avi?pace=max", tmp_path)
    assert look(source) == [*range(30), *[None] * 10]
    assert source.trouble == "10 of the frames could not be decoded, the first is number 31"
    source.close()


def test_a_clip_that_loses_its_end_says_so(tmp_path: Path) -> None:
    """A file that holds fewer frames than its header promises was cut short."""
    path = write_damaged(tmp_path / "clip.avi", [])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    source = opened("file:clip.avi?pace=max", tmp_path)
    seen = look(source)
    assert 20 < len(seen) < 35
    assert source.trouble is not None
    assert f"of {FRAMES} frames; the file is damaged or cut short" in source.trouble
    source.close()


@needs_assets
@pytest.mark.assets
def test_a_damaged_film_gives_all_that_can_be_decoded(tmp_path: Path) -> None:
    """Of an H.264 film with a piece of nonsense, what can be decoded comes, to the end."""
    data = bytearray((ASSETS / "media" / "bottle-detection.mp4").read_bytes())
    begin, end = len(data) * 2 // 5, len(data) * 3 // 5
    data[begin:end] = np.random.default_rng(5).bytes(end - begin)
    path = tmp_path / "film.mp4"
    path.write_bytes(data)

    source = opened("file:film.mp4?pace=max", tmp_path)
    seen = look(source)
    source.close()

    whole = 1189
    assert 0.7 * whole < sum(number is not None for number in seen) < whole
    assert len(seen) <= whole
    assert None in seen


@pytest.fixture
def flawed() -> Iterable[MjpegServer]:
    """Serve a camera of which each fifth picture is none."""
    pictures = [cv2.imencode(".jpg", plain(shade(i), 320, 240))[1].tobytes() for i in range(4)]
    with MjpegServer([*pictures, NO_PICTURE]) as server:
        yield server


def test_a_camera_may_send_a_damaged_picture(flawed: MjpegServer, tmp_path: Path) -> None:
    """Pictures that cannot be decoded are readings that are none; the stream goes on."""
    source = opened(flawed.url(), tmp_path)
    seen = look(source, 60)
    begin = seen.index(0)
    assert seen[begin:] == ([0, 1, 2, 3, None] * 12)[: 60 - begin]
    flawed.cut()
    with pytest.raises(SourceError, match="stopped sending pictures"):
        look(source)
    source.close()


def test_a_camera_that_sends_nothing_but_damage_is_lost(tmp_path: Path) -> None:
    """A stream of which no picture can be decoded any more does not hold a reader for ever."""
    good = cv2.imencode(".jpg", plain(90, 320, 240))[1].tobytes()
    with MjpegServer([good] * 30 + [NO_PICTURE] * 1000, rate=200) as server:
        source = opened(server.url(), tmp_path)
        with pytest.raises(SourceError, match="stopped sending pictures"):
            look(source)
        source.close()


def test_the_account_of_damaged_sources(
    flawed: MjpegServer,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """What cannot be decoded is captured and dropped as `error`; the end says it, a camera runs on.

    `seq` leaves a gap for each; the log has one line of it.
    """
    damaged = [8, 9, 10, 25]
    clip = write_damaged(tmp_path / "clip.avi", damaged)
    models = tmp_path / "models"
    brightness(models / "light")
    settings = agent_settings(
        "box",
        broker.url,
        [
            {"name": "clip", "source": f"file:{clip}?pace=max", "model": "light"},
            {"name": "camera", "source": flawed.url(), "model": "light"},
        ],
        models_dirs=[str(models)],
    )
    heard = listen(broker.port)
    process = agent(settings)

    ended = heard.wait_state("edge/box/source/clip", state="ended")
    assert ended["error"] == "4 of the frames could not be decoded, the first is number 9"

    def settled(_: Any) -> dict[str, Any] | None:
        pipelines = (heard.last("edge/box/health") or {}).get("pipelines", {})
        done = pipelines and pipelines["clip"]["source"] == "ended"
        return pipelines if done and pipelines["camera"]["dropped"]["error"] >= 5 else None

    health = heard.wait_for(settled, "damaged pictures of both in health")
    assert (health["clip"]["captured"], health["clip"]["inferred"]) == (FRAMES, FRAMES - 4)
    assert health["clip"]["dropped"]["error"] == 4
    for pipeline in health.values():
        check_account(pipeline)
    seqs = [result["seq"] for result in heard.on("edge/box/result/clip")]
    assert seqs == [i for i in range(FRAMES) if i not in damaged]
    states = [said["state"] for said in heard.on("edge/box/source/camera")]
    assert states == ["running"]
    assert process.stop() == 0
    words = process.words()
    # The same line is logged once; the rest are counted, and the count is logged at the end.
    lines = [line for line in words.splitlines() if "clip: a frame is dropped: " in line]
    assert len(lines) == 2
    assert re.search(r"\(again, 3 times, last at \d\d:\d\d:\d\d\)$", lines[1])
    assert "the file is damaged: frames of it cannot be decoded, the first is number 9" in words


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("HEIC", b"\0\0\0\x18ftypheic"),
        ("JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n"),
        ("JPEG 2000", b"\0\0\0\x0cjP  \r\n\x87\n"),
        ("web page", b"<!DOCTYPE html>"),
    ],
)
def test_a_healthy_picture_of_another_kind_is_not_called_damaged(
    name: str, head: bytes, tmp_path: Path
) -> None:
    """A phone's HEIC under the name of a JPEG, as uploads and photo folders have it."""
    picture = tmp_path / "IMG_0042.jpg"
    picture.write_bytes(head + bytes(500))
    with closing(open_source(parse_source(f"dir:{picture}", tmp_path))) as source:
        assert source.grab()
        with pytest.raises(SampleError, match=f"{name}.*convert it to JPEG"):
            source.retrieve()
    with pytest.raises(SourceError, match=f"{name}.*convert it to JPEG"):
        open_source(parse_source(f"file:{picture}", tmp_path))


@pytest.mark.parametrize("brand", [b"avif", b"mif1"])
def test_an_avif_is_no_heic(brand: bytes, tmp_path: Path) -> None:
    """AVIF may begin as HEIC does, and is played; so is a clip with bytes of other marks."""
    data = bytearray(cv2.imencode(".avif", plain(200))[1].tobytes())
    assert data[8:12] == b"avif"
    data[8:12] = brand
    (tmp_path / "picture.avif").write_bytes(data)
    clip = write_clip(tmp_path / "clip.avi", [plain(200)])
    clip.write_bytes(b"RIFF\xff\x0a\0\0" + clip.read_bytes()[8:])
    for name in ("picture.avif", "clip.avi"):
        with closing(opened(f"file:{name}", tmp_path)) as source:
            assert source.grab()
            assert source.retrieve().data.mean() == pytest.approx(200, abs=3)
