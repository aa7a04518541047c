"""The packets that are kept of a camera, for clips of events."""

from __future__ import annotations

import av
import pytest

from edge_agent.sources import packet_ring
from edge_agent.sources.packet_ring import PacketRing
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
