"""The packets that are kept of a camera, for clips of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import pytest

from edge_agent.core.errors import AgentError
from edge_agent.sources import packet_ring
from edge_agent.sources.packet_ring import ClipWriter, Packet, PacketRing
from tests.helpers.support import CHECKOUT


def test_a_camera_without_key_frames_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is kept stays within its bound, and begins anew with the next key frame."""
    monkeypatch.setattr(packet_ring, "MOST_BYTES", 30_000)
    ring = PacketRing(60.0)
    with av.open(str(CHECKOUT / "models" / "media" / "conveyor.mp4")) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        first = packets[0]
        assert first.is_keyframe
        sizes = []
        for packet in packets:
            if packet is not first:
                packet.is_keyframe = False
            ring.add("camera", stream, packet)
            sizes.append(sum(len(each.data) for each in ring.read(0)))
        assert max(sizes) <= 30_000 + max(packet.size for packet in packets)
        assert ring.start(0.0) is None
        ring.add("camera", stream, first)
        assert [each.key for each in ring.read(0)] == [True]


def test_two_sessions_of_one_camera_do_not_take_each_others_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two pipelines with `share = false` the first one's packets are kept, till it is silent."""
    ring = PacketRing(60.0)
    with av.open(str(CHECKOUT / "models" / "media" / "conveyor.mp4")) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        for packet in packets:
            packet.is_keyframe = True
            ring.add("one", stream, packet)
            ring.add("two", stream, packet)
        assert ring.session == "one"
        assert [each.dts for each in ring.read(0)] == [packet.dts for packet in packets]
        monkeypatch.setattr(packet_ring, "SILENT", 0.0)
        ring.add("two", stream, packets[0])
        assert (ring.session, len(ring.read(0))) == ("two", 1)


def test_a_camera_that_is_back_soon_is_kept_from_its_first_key_frame_on() -> None:
    """Its packets were left out for two seconds, as if another pipeline read it, too."""
    ring = PacketRing(60.0)
    with av.open(str(CHECKOUT / "models" / "media" / "conveyor.mp4")) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        ring.add("one", stream, packets[0])
        ring.leave("another")
        ring.add("two", stream, packets[0])
        sessions = [ring.session]
        ring.leave("one")
        for packet in packets[:9]:
            ring.add("two", stream, packet)
        ring.add("one", stream, packets[0])
        assert [*sessions, ring.session] == ["one", "two"]
        assert len(ring.read(0)) == 9


@pytest.fixture
def ring() -> Iterator[PacketRing]:
    """Keep the packets of a clip."""
    ring = PacketRing(60.0)
    with av.open(str(CHECKOUT / "models" / "media" / "conveyor.mp4")) as container:
        stream = container.streams.video[0]
        for packet in container.demux(stream):
            ring.add("camera", stream, packet)
        yield ring


MOST = 2**63 - 1


@pytest.mark.parametrize(
    "times",
    [
        lambda number: (MOST, number * 512 - 2**62),
        lambda number: (-MOST, number * 512 + 2**62),
        lambda number: (0, MOST if number % 2 else -MOST),
        lambda number: (MOST if number % 3 == 2 else number * 512, number * 512),
        lambda number: (MOST if number % 2 else -MOST, None),
    ],
)
def test_a_camera_whose_times_span_more_than_64_bits_ended_the_agent(
    ring: PacketRing, tmp_path: Path, times: Callable[[int], tuple[int, int | None]]
) -> None:
    """All of its packets are in the clip, which lasts no longer than it did."""
    writer = ClipWriter(str(tmp_path / "clip.mp4"), ring)
    packets = ring.read(0)[:60]
    for number, packet in enumerate(packets):
        pts, dts = times(number)
        writer.write(packet._replace(pts=pts, dts=dts))
    writer.close()
    with av.open(str(tmp_path / "clip.mp4")) as container:
        assert (container.duration or 0) < 60 * av.time_base
        kept = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    assert kept == [packet.data for packet in packets]


def test_a_packet_that_no_clip_can_hold_ended_the_agent(ring: PacketRing, tmp_path: Path) -> None:
    """Whatever is wrong with it, it is an error of the clip."""
    wrong: list[Packet] = [
        ring.read(0)[1]._replace(time_base=Fraction(0, 1)),
        ring.read(0)[1]._replace(time_base=None),
    ]
    for each in wrong:
        writer = ClipWriter(str(tmp_path / "clip.mp4"), ring)
        writer.write(ring.read(0)[0])
        with pytest.raises(AgentError, match="the stream cannot be stored"):
            writer.write(each)
        writer.close()
