"""Evidence: no more of it than the settings say, whatever happens to the disk or the settings."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from edge_agent.config.rules import Rule
from edge_agent.config.settings import Evidence as EvidenceSettings
from edge_agent.config.settings import Pipeline, Settings
from edge_agent.rules.clips import MOST, Clips
from edge_agent.rules.dispatcher import LATE_HINT, MOST_PICTURES, EventQueue, Queued
from edge_agent.rules.event import Event
from edge_agent.rules.evidence import Allowance, Evidence
from edge_agent.sources.packet_ring import PACKETS
from edge_agent.sources.spec import parse_source
from tests.helpers.no_threads import without_threads
from tests.helpers.rule_engines import dispatcher_without_broker
from tests.helpers.small_disk import small_disk
from tests.helpers.support import CHECKOUT, PATIENCE, wait_until

PICTURE = bytes(200_000)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Have every file end before a picture does, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files(folder: Path) -> list[str]:
    """Name what is there."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def clips_of_a_pipeline(folder: Path) -> Clips:
    """Have a pipeline keep clips of its events."""
    pipeline = Pipeline(
        name="p",
        source=f"file:{CHECKOUT}/models/media/conveyor.mp4",
        model="m",
        rules=(Rule(name="r", when="enter", clip=True),),
    )
    settings = Settings(pipelines=(pipeline,), evidence=EvidenceSettings(keep_mb=1))
    clips = Clips(Evidence(folder), lambda: settings)
    clips.follow_settings()
    return clips


def event(name: str) -> Event:
    """Give an event of that pipeline."""
    return Event(name, "r", "enter", "p", "once", 0, 0, 0, {}, clip=True)


def test_where_no_thread_is_allowed_pictures_are_kept_and_the_oldest_go_later(
    tmp_path: Path,
) -> None:
    """The agent ended as soon as the limit was reached."""
    evidence = Evidence(tmp_path)
    with without_threads():
        for number in range(8):
            evidence.keep("p", f"e-{number}", PICTURE, 1)
    assert len(files(tmp_path)) == 8
    evidence.keep("p", "e-8", PICTURE, 1)
    evidence.close(PATIENCE)
    assert len(files(tmp_path)) <= 5


def test_where_the_clock_was_set_back_what_is_new_stays(tmp_path: Path) -> None:
    """Without a battery it is the past again at each start: each new picture went at once."""
    evidence = Evidence(tmp_path)
    for number in range(5):
        evidence.keep("p", f"before-{number}", PICTURE, 10)
        later = time.time() + 1e6 + number
        os.utime(tmp_path / "p" / f"before-{number}.jpg", (later, later))
    for number in range(3):
        evidence.keep("p", f"e-{number}", PICTURE, 10)
    evidence.prune(1)
    assert files(tmp_path) == ["before-3.jpg", "before-4.jpg", *(f"e-{n}.jpg" for n in range(3))]


def test_where_no_thread_is_allowed_a_clip_is_not_kept_and_that_is_said(tmp_path: Path) -> None:
    """The agent ended at the first event."""
    clips = clips_of_a_pipeline(tmp_path)
    with without_threads():
        clips.take(event("e-1"))
    (why,) = clips.problems()
    assert why.startswith("clips: the system allows no further thread; raise the limit")
    clips.close(PATIENCE)
    PACKETS.want({})


def test_a_clip_of_an_event_after_a_reconnect_shows_the_event(tmp_path: Path) -> None:
    """It had the seconds before the camera was lost, and ended there."""
    clips = clips_of_a_pipeline(tmp_path)
    source = f"file:{CHECKOUT}/models/media/conveyor.mp4"
    ring = PACKETS.ring(parse_source(source, Path()).text)
    assert ring is not None
    with av.open(source.removeprefix("file:")) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        for packet in packets[:30]:
            ring.add("one", stream, packet)
        clips.take(replace(event("e-1"), since=time.monotonic()))
        begun = tmp_path / "p" / ".e-1.mp4.part"
        wait_until(lambda: begun.exists() and begun.stat().st_size > 0, "a clip")
        ring.leave("one")
        for packet in packets[:50]:
            ring.add("two", stream, packet)
    clips.close(PATIENCE)
    PACKETS.want({})
    with av.open(str(tmp_path / "p" / "e-1.mp4")) as container:
        assert len([packet for packet in container.demux(video=0) if packet.size]) == 50


@pytest.mark.parametrize("before", [False, True], ids=["of minutes", "of a large prelude"])
def test_a_clip_that_would_take_all_room_ends_and_the_older_evidence_stays(
    before: bool, tmp_path: Path
) -> None:
    """One that was larger than `keep_mb`: everything went, and then it did, unsaid."""
    clips = clips_of_a_pipeline(tmp_path)
    clips.evidence.keep("p", "before", b"a picture", 1)
    source = f"file:{CHECKOUT}/models/media/conveyor.mp4"
    ring = PACKETS.ring(parse_source(source, Path()).text)
    assert ring is not None
    kept, left = tmp_path / "p" / "e-1.mp4", 1_800_000 if before else 900_000
    if not before:
        clips.take(replace(event("e-1"), since=time.monotonic()))
    while left > 0:
        with av.open(source.removeprefix("file:")) as container:
            stream = container.streams.video[0]
            for packet in container.demux(stream):
                if packet.size and left > 0:
                    ring.add("one", stream, packet)
                    left -= packet.size
    if before:
        clips.take(replace(event("e-1"), since=time.monotonic()))
    wait_until(kept.exists, "the end of the clip")
    assert 2**19 <= kept.stat().st_size < 2**20
    assert kept.with_name("before.jpg").exists()
    (said,) = clips.problems()
    assert said.startswith("clips cut short: 1; one may take half of evidence.keep_mb")
    clips.close(PATIENCE)
    PACKETS.want({})


def test_evidence_that_fills_the_disk_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit was above what the disk has: settings, pushes and the journal found no room."""
    with small_disk(tmp_path / "disk", "4m") as disk:
        evidence = Evidence(disk / "evidence")
        for number in range(50):
            evidence.keep("p", f"e-{number}", b"x" * 100_000, 200)
            evidence.close(PATIENCE)
        assert "e-0.jpg" not in files(disk / "evidence"), "one has made room"
        monkeypatch.setattr("edge_agent.rules.evidence.SHORT_SECONDS", 0)
        for number in range(50, 100):
            evidence.keep("p", f"e-{number}", b"x" * 100_000, 200)
            evidence.close(PATIENCE)
        left = files(disk / "evidence")
        assert {"e-98.jpg", "e-99.jpg"} & {*left}
        assert "e-20.jpg" not in left
        assert len(left) > 20


@pytest.mark.parametrize(("size", "most"), [("8m", 600_000), ("64m,nr_inodes=240", 9)])
def test_evidence_makes_room_as_often_as_that_helps(tmp_path: Path, size: str, most: int) -> None:
    """A pause began each time that one picture took the reserve: the next ones were lost.

    And where a disk takes no more files, only one gave way at a time: to the next picture.
    """
    with small_disk(tmp_path / "disk", size) as disk:
        evidence = Evidence(disk / "evidence")
        evidence.limit(200)
        evidence.close(PATIENCE)
        lost = 0
        for number in range(400):
            evidence.keep("p", f"e-{number}", b"x" * most, 200)
            evidence.close(PATIENCE)
            lost += not (disk / "evidence" / "p" / f"e-{number}.jpg").exists()
            (disk / "state").write_bytes(b"x" * 1000)
            (disk / "state").unlink()
        assert lost <= 1
        assert len(files(disk / "evidence")) > 8


def test_no_evidence_goes_as_a_clip_ends_while_the_settings_keep_none(tmp_path: Path) -> None:
    """A settings file that is not whole for a moment; it has ten minutes to become so again."""
    evidence = Evidence(tmp_path)
    evidence.keep("p", "before", PICTURE, 1)
    evidence.added(1000, 0)
    evidence.close(PATIENCE)
    assert files(tmp_path) == ["before.jpg"]


def test_events_that_had_no_clip_in_a_crowd_were_not_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Health counts them, and the log says so once."""
    clips = clips_of_a_pipeline(tmp_path)
    for number in range(MOST + 3):
        clips.take(event(f"e-{number}"))
    why = f"at most {MOST} are written at a time: shorten evidence.after_s"
    (said,) = clips.problems()
    assert said.startswith(f"events without a clip: 3; {why}")
    clips.close(PATIENCE)
    PACKETS.want({})
    assert [why in each for each in caplog.messages].count(True) == 1


def test_events_that_had_no_picture_in_a_crowd_were_not_said() -> None:
    """Of a picture that is only asked about, the answer says so."""
    queue = EventQueue()
    picture = np.zeros((2, 2, 3), np.uint8)
    for number in range(MOST_PICTURES + 2):
        shown = replace(event(f"e-{number}"), picture=picture, shown=number > MOST_PICTURES)
        queue.put(Queued(shown, {}, None, 0.0))
    why = f"at most {MOST_PICTURES} wait at a time: {LATE_HINT}"
    assert queue.unseen.problems() == [f"events without a picture: 1; {why}"]
    assert [each.event.unseen for each in queue.take(0.0)].count(True) == 2


@pytest.mark.usefixtures("full_disk")
def test_a_picture_that_finds_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    """The begun file would stay for ever, and take the last of the disk with others."""
    evidence = Evidence(tmp_path)
    for number in range(3):
        evidence.keep("p", f"e-{number}", PICTURE, 1)
    assert files(tmp_path) == []


def test_what_a_kill_has_left_half_written_goes_and_a_lower_limit_holds(tmp_path: Path) -> None:
    """Also without another picture: none are kept is what 0 means."""
    evidence = Evidence(tmp_path)
    for number in range(6):
        evidence.keep("p", f"e-{number}", PICTURE, 2)
    (tmp_path / "p" / ".e-9.part").write_bytes(PICTURE[:1000])
    evidence = Evidence(tmp_path)
    evidence.prune(1)
    assert files(tmp_path) == [f"e-{number}.jpg" for number in range(1, 6)]
    evidence.prune(0)
    assert files(tmp_path) == []


def test_a_clip_that_a_power_cut_has_cut_short_is_kept_where_the_clock_starts_behind(
    tmp_path: Path,
) -> None:
    """Without a battery the clock goes on from the last time saved, before that of the clip."""
    (tmp_path / "p").mkdir()
    part = tmp_path / "p" / ".e-1.mp4.part"
    part.write_bytes(PICTURE)
    later = time.time() + 2400
    os.utime(part, (later, later))
    Evidence(tmp_path).prune(1)
    assert files(tmp_path) == ["e-1.mp4"]


def test_a_clip_that_is_being_written_stays_where_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half clips were listed as whole, and then `cannot be kept: No such file or directory`."""
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 3600.0)
        evidence = Evidence(tmp_path)
    (tmp_path / "p").mkdir()
    part = tmp_path / "p" / ".e-1.mp4.part"
    part.write_bytes(PICTURE)
    evidence.prune(1)
    assert files(tmp_path) == [".e-1.mp4.part"]


@pytest.mark.parametrize(("keep_mb", "left"), [(1, 5), (0, 0)])
def test_a_limit_that_was_lowered_holds_from_the_start_on(
    tmp_path: Path, keep_mb: int, left: int
) -> None:
    """And not only once there is another picture."""
    for number in range(6):
        Evidence(tmp_path / "evidence").keep("p", f"e-{number}", PICTURE, 2)
    dispatcher = dispatcher_without_broker(tmp_path, evidence=EvidenceSettings(keep_mb=keep_mb))
    dispatcher.close()
    dispatcher.run()
    assert len(files(tmp_path / "evidence")) == left


def test_a_settings_file_that_is_not_whole_for_a_moment_removes_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one was read by a reload: all pictures and clips were gone, without a word."""
    evidence = Evidence(tmp_path)
    evidence.keep("p", "e-1", PICTURE, 2)
    allowance = Allowance(evidence)
    for keep_mb in (2, 0, 0, 2):
        allowance.follow(keep_mb)
        evidence.close(PATIENCE)
    assert files(tmp_path) == ["e-1.jpg"]
    monkeypatch.setattr("edge_agent.rules.evidence.RESPITE_SECONDS", 0)
    for _ in range(2):
        allowance.follow(0)
        evidence.close(PATIENCE)
    assert files(tmp_path) == []


def test_pictures_that_a_power_cut_has_emptied_are_gone(tmp_path: Path) -> None:
    """They were listed, exported and published, with no byte in them."""
    evidence = Evidence(tmp_path / "evidence")
    evidence.keep("p", "s-1", b"jpeg", 10)
    evidence.keep("p", "s-2", b"jpeg", 10)
    emptied = tmp_path / "evidence" / "p" / "s-2.jpg"
    os.truncate(emptied, 0)
    os.utime(emptied, (0, 0))  # of the last run
    assert evidence.find("s-1", "picture") is not None
    assert evidence.find("s-2", "picture") is None
    assert [each["event"] for each in evidence.list()] == ["s-1"]
    evidence.prune(10)
    assert files(tmp_path / "evidence") == ["s-1.jpg"]
