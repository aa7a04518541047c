"""Clips of events: the source's own packets, from before the event to after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from tests.helpers.cameras import RTSP_PACKAGES, RtspServer, rtsp_missing
from tests.helpers.small_disk import small_disk
from tests.helpers.small_models import brightness, decode_picture
from tests.helpers.support import (
    CHECKOUT,
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    run_cli,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"
CONVEYOR = CHECKOUT / "models" / "media" / "conveyor.mp4"
SEEN = {"name": "seen", "when": "count", "above": 0, "clip": True, "picture": "frame"}


def packets(path: Path) -> list[bytes]:
    """Read the packets of a video, as they are coded."""
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


GROUP, CYCLE, LIT = 15, 120, range(97, 105)
"""Of a numbered camera: frames from key frame to key frame, from flash to flash, and lit ones."""
BITS = 11


def numbered(path: Path, frames: int = 1200) -> Path:
    """Write a clip whose frames have their number as bars, 15 of them a second.

    Bright and dark are in balance but for the lower half, which is a lamp.
    """
    with av.open(str(path), "w") as container:
        options = {"g": str(GROUP), "keyint_min": str(GROUP), "bf": "0", "sc_threshold": "0"}
        stream: Any = container.add_stream("libx264", rate=15, options=options)
        stream.width, stream.height, stream.pix_fmt = 16 * BITS, 96, "yuv420p"
        for number in range(frames):
            bits = np.array([number >> n & 1 for n in range(BITS)], np.uint8) * 255
            bars = np.repeat(bits, 16)
            lamp = np.full_like(bars, 255 * (number % CYCLE in LIT))
            rows = np.repeat([bars, 255 - bars, lamp, lamp], 24, axis=0)
            frame = av.VideoFrame.from_ndarray(rows, format="gray8").reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 15)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def number_of(gray: NDArray[Any]) -> int:
    """Read the number of a frame of that clip."""
    return sum(int(gray[12, 16 * n + 8] > 127) << n for n in range(BITS))


def pictures_in(packet: bytes) -> bytes:
    """Leave what is coded pictures of a packet: servers repeat sets of parameters as they like."""
    kept = b""
    while packet:
        size = 4 + int.from_bytes(packet[:4], "big")
        kept += packet[:size] if packet[4] & 31 in {1, 5} else b""
        packet = packet[size:]
    return kept


def running(broker: Mosquitto, agent: Agents, source: str, **evidence: Any) -> AgentProcess:
    """Run an agent that keeps clips of the parts it sees."""
    belt = {"name": "belt", "source": source, "model": "parts-inspection", "rules": [SEEN]}
    settings = agent_settings(
        "box",
        broker.url,
        [belt],
        evidence={"keep_mb": 20, "before_s": 1.0, "after_s": 1.0, **evidence},
    )
    return agent(settings)


def wait_kept(heard: Listener, box: AgentProcess) -> Path:
    """Wait until a clip is kept; give its file."""
    folder = box.folder / "state" / "evidence" / "belt"
    heard.wait_for(lambda _: list(folder.glob("[!.]*.mp4")), "a clip")
    return min(folder.glob("[!.]*.mp4"))


def test_a_clip_is_what_the_source_has_sent(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Nothing is encoded anew, nothing is missing between; it is listed, saved, and fetched."""
    heard = listen(broker.port)
    box = running(broker, agent, f"file:{CONVEYOR}?loop=1")
    clip = wait_kept(heard, box)
    came, whole = packets(clip), packets(CONVEYOR)
    assert len(came) > 10
    begin = whole.index(came[0])
    assert came == whole[begin : begin + len(came)]
    with av.open(str(clip)) as container:
        assert next(container.decode(video=0)).key_frame
    common = ("--device", "box", "--broker", broker.url)
    listed = run_cli("evidence", "list", *common, "--json")
    kept = [json.loads(line) for line in listed.stdout.splitlines()]
    assert {each["kind"] for each in kept} == {"clip", "picture"}
    got = run_cli("evidence", "get", clip.stem, *common, "-o", str(tmp_path / "out"))
    assert got.returncode == 0, got.stderr
    saved = tmp_path / "out" / f"belt-{clip.stem}.mp4"
    assert saved.read_bytes() == clip.read_bytes()
    picture = saved.with_suffix(".jpg").read_bytes()
    assert picture.startswith(b"\xff\xd8")
    heard.publish(f"{D}/in/command/fetch", json.dumps({"id": "f", "event": clip.stem}))
    said = heard.wait_state(f"{D}/reply/f", ok=True)["result"]
    topic = f"{D}/clip/belt/{clip.stem}"
    heard.wait_for(
        lambda all_: sum(h.topic.startswith(topic) for h in all_) == 2 * said["blocks"],
        "its blocks, by `get` and once more",
    )
    blocks = {h.topic: h for h in heard.heard if h.topic.startswith(topic)}
    data = b"".join(blocks[f"{topic}/{number}"].payload for number in range(said["blocks"]))
    assert data == clip.read_bytes()
    assert {h.qos for h in blocks.values()} == {1}
    # A window of it costs no look at the rest: it is read for its digest once.
    known = clip.stat()
    clip.write_bytes(bytes(len(data)))
    os.utime(clip, ns=(known.st_atime_ns, known.st_mtime_ns))
    part = {"id": "g", "event": clip.stem, "first": said["blocks"] - 1, "count": 1}
    heard.publish(f"{D}/in/command/fetch", json.dumps(part))
    assert heard.wait_state(f"{D}/reply/g", ok=True)["result"] == said
    clip.write_bytes(data)
    assert box.stop() == 0
    here = run_cli("evidence", "export", "--config", str(box.config), "-o", str(tmp_path / "all"))
    assert here.returncode == 0, here.stderr
    assert (tmp_path / "all" / saved.name).read_bytes() == clip.read_bytes()


def test_evidence_of_no_such_pipeline_is_refused_and_none_is_said(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """A typed name gave an empty list, and 0: from afar and here; of one that was there, all."""
    heard = listen(broker.port)
    box = running(broker, agent, f"file:{CONVEYOR}?loop=1")
    heard.wait_state(f"{D}/status", state="online")
    old = box.folder / "state" / "evidence" / "gate" / "gate-1.jpg"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"a picture")
    for place in (("--device", "box", "--broker", broker.url), ("--config", str(box.config))):
        wrong = call_cli("evidence", "list", "--pipeline", "bellt", *place)
        assert (wrong.code, wrong.out) == (1, "")
        assert "pipeline: there is no 'bellt'; did you mean 'belt'?" in wrong.error
        none = call_cli("evidence", "list", "--pipeline", "belt", "--since=2999-01-01", *place)
        assert (none.code, none.out) == (0, "")
        assert "nothing of that is kept; evidence.keep_mb" in none.err
        gone = call_cli("evidence", "list", "--pipeline", "gate", *place)
        assert (gone.code, gone.err, gone.out.split()[2]) == (0, "", "gate-1")


def test_evidence_of_a_device_that_is_away_is_refused_at_once(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Unknown or offline, it was waited for until the timeout, and called silent."""
    heard = listen(broker.port)
    box = running(broker, agent, f"file:{CONVEYOR}?loop=1")
    heard.wait_state(f"{D}/status", state="online")
    common = ("--device", "box", "--broker", broker.url)
    missing = run_cli("evidence", "get", "belt-9", *common)
    assert missing.returncode == 1
    assert "nothing of event belt-9 is kept; a clip is written" in missing.stderr
    assert box.stop() == 0
    for who, why in (("box", "device box is offline since"), ("fox", "fox is unknown; known: box")):
        away = run_cli("evidence", "list", "--device", who, "--broker", broker.url)
        assert away.returncode == 1
        assert why in away.stderr
        assert "--wait" not in away.stderr, "it has no such option"


@pytest.mark.skipif(rtsp_missing() is not None, reason=f"no RTSP server: {RTSP_PACKAGES}")
def test_a_clip_of_a_camera_begins_before_the_frame_of_its_event(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """The frames of two seconds before a flash and one after it are there, as the camera sent them.

    It begins with the key frame before; none is missing and none is there twice.
    """
    whole = packets(numbered(tmp_path / "numbered.mp4"))
    brightness(tmp_path / "models" / "light")
    flash = {"name": "flash", "when": "value", "value": "light", "above": 120.0}
    flash |= {"clip": True, "picture": "frame"}
    camera = RtspServer(clip=tmp_path / "numbered.mp4")
    try:
        belt = {"name": "belt", "source": camera.url(), "model": "light", "rules": [flash]}
        settings = agent_settings(
            *("box", broker.url, [belt]),
            models_dirs=[str(tmp_path / "models")],
            evidence={"keep_mb": 20, "before_s": 2.0, "after_s": 1.0},
        )
        heard = listen(broker.port)
        box = agent(settings)
        clip = wait_kept(heard, box)
        with av.open(str(clip)) as container:
            frames = list(container.decode(video=0))
        numbers = [number_of(frame.to_ndarray(format="gray8")) for frame in frames]
        seen = number_of(decode_picture(clip.with_suffix(".jpg").read_bytes())[:, :, 0])
        assert seen % CYCLE in LIT
        flashed = seen - seen % CYCLE + LIT.start
        begin = (flashed - 30) // GROUP * GROUP
        assert numbers == list(range(begin, begin + len(numbers)))
        assert numbers[-1] >= flashed + len(LIT) + GROUP - GROUP // 2
        assert [pictures_in(each) for each in packets(clip)] == [
            pictures_in(whole[number]) for number in numbers
        ]
        assert box.stop() == 0
    finally:
        camera.kill()


def test_what_a_kill_leaves_of_a_clip_is_kept_at_the_next_start(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """It is written in fragments: what is there can be played."""
    heard = listen(broker.port)
    box = running(broker, agent, f"file:{CONVEYOR}?loop=1", after_s=60.0)
    folder = box.folder / "state" / "evidence" / "belt"
    heard.wait_for(
        lambda _: any(p.stat().st_size > 20_000 for p in folder.glob(".*.mp4.part")), "half a clip"
    )
    box.process.kill()
    box.wait()
    left = {path.name[1:].removesuffix(".part") for path in folder.glob(".*.mp4.part")}
    box.restart()
    heard.wait_for(lambda _: {p.name for p in folder.glob("[!.]*.mp4")} >= left, "what was left")
    clip = folder / min(left)
    # The last one may be cut off.
    assert set(packets(clip)[:-1]) <= set(packets(CONVEYOR))
    assert box.stop() == 0


UNREADABLE = Path("/sys/class/net/lo/speed")
"""A file of 4096 bytes that opens, and whose every read fails, as on a disk with a bad sector."""


@pytest.mark.skipif(not UNREADABLE.exists(), reason="needs sysfs")
def test_a_bad_sector_in_a_clip_ended_the_agent(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Whoever fetches it is told, also where its digest is known from an earlier request."""
    heard = listen(broker.port)
    box = running(broker, agent, f"file:{CONVEYOR}?loop=1")
    heard.wait_for(lambda _: heard.last(f"{D}/result/belt"), "a result")
    folder = box.folder / "state" / "evidence" / "belt"
    folder.mkdir(parents=True, exist_ok=True)
    known, clip = UNREADABLE.stat(), folder / "e-1.mp4"
    clip.write_bytes(bytes(known.st_size))
    os.utime(clip, ns=(known.st_atime_ns, known.st_mtime_ns))
    heard.publish(f"{D}/in/command/fetch", json.dumps({"id": "f", "event": "e-1"}))
    said = heard.wait_state(f"{D}/reply/f", ok=True)["result"]
    clip.unlink()
    clip.symlink_to(UNREADABLE)
    heard.publish(f"{D}/in/command/fetch", json.dumps({"id": "g", "event": "e-1"}))
    assert heard.wait_state(f"{D}/reply/g", ok=True)["result"] == said
    wait_until(lambda: "e-1.mp4 cannot be read: Invalid argument" in box.words(), "a line")
    heard.publish(f"{D}/in/command/fetch", json.dumps({"id": "h", "event": "e-1"}))
    why = heard.wait_state(f"{D}/reply/h", ok=False)["error"]
    assert why == "event: the clip of e-1 cannot be read: Invalid argument"
    assert box.stop() == 0


@pytest.mark.parametrize("wrong", ["../../etc/passwd", "nothing-of-that-name", ""])
def test_only_clips_are_fetched(
    broker: Mosquitto, listen: Listeners, agent: Agents, wrong: str
) -> None:
    """An event that is none, or is gone, is an answer of one line."""
    heard = listen(broker.port)
    running(broker, agent, f"file:{CONVEYOR}?loop=1")
    heard.wait_for(lambda _: heard.last(f"{D}/result/belt"), "a result")
    heard.publish(f"{D}/in/command/fetch", json.dumps({"id": "f", "event": wrong}))
    assert "event" in heard.wait_state(f"{D}/reply/f", ok=False)["error"]


@pytest.mark.parametrize("since", ["20s", "10m", "2h", "3d", "2026-11-25", "2026-11-25T08:00"])
def test_since_is_a_time_or_how_long_ago(since: str, tmp_path: Path) -> None:
    """Of seconds, minutes, hours or days; anything else is refused."""
    config = tmp_path / "config.toml"
    config.write_text(f'state_dir = "{tmp_path}"\n')
    for words, code in ((since, 0), (f"{since}x", 2), ("-1s", 2), ("1w", 2)):
        listed = call_cli("evidence", "list", f"--since={words}", "--config", str(config))
        assert (listed.code, listed.out) == (code, "")


def test_a_folder_that_cannot_be_written_ends_nothing(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Clips that cannot be kept are a reason of `degraded`; results go on."""
    heard = listen(broker.port)
    evidence = tmp_path / "agent" / "state" / "evidence"
    evidence.mkdir(parents=True)
    (evidence / "belt").write_text("a file where a folder should be")
    box = running(broker, agent, f"file:{CONVEYOR}?loop=1")
    heard.wait_for(
        lambda _: any("clips: " in why for why in (heard.last(f"{D}/health") or {}).get("why", [])),
        "that clips are not kept",
    )
    before = len(heard.on(f"{D}/result/belt"))
    heard.wait_for(lambda _: len(heard.on(f"{D}/result/belt")) > before, "results")
    assert box.stop() == 0


def test_a_clip_that_finds_no_room_leaves_nothing_behind(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """It is said, results go on, and once there is room the next clip is kept."""
    heard = listen(broker.port)
    evidence = tmp_path / "agent" / "state" / "evidence"
    evidence.mkdir(parents=True)
    with small_disk(evidence / "belt", "1m") as full:
        filler = full / "others"
        filler.write_bytes(bytes(2**20 - 16 * 1024))
        parts = {"name": "part", "when": "enter", "clip": True}
        belt = {"name": "belt", "source": f"file:{CONVEYOR}?loop=1", "model": "parts-inspection"}
        kept = {"keep_mb": 20, "before_s": 0.5, "after_s": 0.2}
        settings = agent_settings("box", broker.url, [{**belt, "rules": [parts]}], evidence=kept)
        box = agent(settings)
        heard.wait_why("clips: No space left on device")
        before = len(heard.on(f"{D}/result/belt"))
        heard.wait_for(lambda _: len(heard.on(f"{D}/result/belt")) > before, "results")
        heard.publish(f"{D}/in/set/belt/enabled", "OFF")
        heard.wait_state(f"{D}/source/belt", state="off")
        wait_until(lambda: [each.name for each in full.iterdir()] == ["others"], "no half a clip")
        filler.unlink()
        # Not only once there is another event.
        heard.wait_for(lambda _: (heard.last(f"{D}/health") or {})["state"] == "ok", "health")
        heard.publish(f"{D}/in/set/belt/enabled", "ON")
        assert packets(wait_kept(heard, box))
        assert box.stop() == 0


def test_all_clips_of_a_device_are_exported(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """One is asked for as soon as the one before has come."""
    heard = listen(broker.port)
    parts = {"name": "part", "when": "enter", "clip": True}
    belt = {"name": "belt", "source": f"file:{CONVEYOR}?loop=1", "model": "parts-inspection"}
    settings = agent_settings(
        "box",
        broker.url,
        [{**belt, "rules": [parts]}],
        evidence={"keep_mb": 200, "before_s": 0.5, "after_s": 0.2},
    )
    box = agent(settings)
    folder = box.folder / "state" / "evidence" / "belt"
    heard.wait_for(lambda _: len(list(folder.glob("[!.]*.mp4"))) >= 6, "six clips")
    heard.publish(f"{D}/in/set/belt/enabled", "OFF")
    heard.wait_state(f"{D}/source/belt", state="off")
    out = tmp_path / "all"
    done = run_cli("evidence", "export", "--device", "box", "--broker", broker.url, "-o", str(out))
    assert done.returncode == 0, done.stderr
    clips = {path.name.removeprefix("belt-") for path in out.glob("*.mp4")}
    assert clips >= {path.name for path in sorted(folder.glob("[!.]*.mp4"))[:6]}
    assert box.stop() == 0


KEPT = {"pipeline": "door", "event": "e-1", "kind": "picture", "bytes": 3, "time": "2026"}


@pytest.mark.parametrize(
    "result",
    [
        {"kept": [{**KEPT, "pipeline": "../escaped"}]},
        {"kept": [{**KEPT, "event": "/tmp/escaped"}]},  # noqa: S108 - nothing is written there
        {"kept": [{**KEPT, "kind": "x"}]},
        {"kept": ["door"]},
        {"kept": None},
        [],
    ],
)
def test_a_device_cannot_name_the_files_of_its_evidence(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], result: object
) -> None:
    """A hostile one had a picture of its choice written outside the folder that was named."""
    heard = listen(broker.port, "edge/#")
    heard.publish("edge/bad/status", json.dumps({"state": "online"}), retain=True)
    out = tmp_path / "in" / "out"
    command = ["evidence", "export", "--device", "bad", "--broker", broker.url, "-o", str(out)]
    running = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    asked = heard.wait_for(
        lambda all_: next((h.json for h in all_ if h.topic.endswith("/evidence")), None), "it"
    )
    reply = {"id": asked["id"], "ok": True, "result": result}
    heard.publish(f"edge/bad/reply/{asked['id']}", json.dumps(reply))
    said, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, said) == (1, "")
    assert error == ("edge-agent: device bad has answered as no agent does; nothing is taken\n")
    assert not list(tmp_path.rglob("*.jpg"))


def test_export_from_a_device_saves_all_that_it_keeps(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """It saved the latest 500, ended with 0, and said nothing; some are of one moment."""
    heard = listen(broker.port)
    box = agent(agent_settings("box", broker.url, [], evidence={"keep_mb": 20}))
    heard.wait_state(f"{D}/status", state="online")
    folder = box.folder / "state" / "evidence" / "belt"
    folder.mkdir(parents=True)
    for number in range(1100):
        picture = folder / f"belt-{number}.jpg"
        picture.write_bytes(b"%d" % number)
        os.utime(picture, (1_700_000_000 + number // 700, 1_700_000_000 + number // 700))
    place = ("--device", "box", "--broker", broker.url)
    here = call_cli("evidence", "list", "--config", str(box.config))
    there = call_cli("evidence", "list", *place)
    assert (there.code, there.err, there.out) == (0, "", here.out)
    some = call_cli("evidence", "list", "--latest", "501", *place)
    assert some.out.splitlines() == here.out.splitlines()[:501]
    out = tmp_path / "out"
    done = call_cli("evidence", "list", "--since=2023-11-14T22:13:21+00:00", *place)
    assert len(done.out.splitlines()) == 400
    for picture in list(folder.iterdir())[600:]:
        picture.unlink()
    done = call_cli("evidence", "export", *place, "-o", str(out))
    assert (done.code, done.err) == (0, "")
    kept = {f"belt-{each.name}": each.read_bytes() for each in folder.iterdir()}
    assert {each.name: each.read_bytes() for each in out.iterdir()} == kept


def test_export_from_a_former_device_ends_with_1_where_it_may_keep_more(
    broker: Mosquitto, tmp_path: Path
) -> None:
    """Its list ends after 500, and does not say so."""
    ready = threading.Event()
    entry = {"pipeline": "door", "kind": "picture", "bytes": 1, "time": "2026-11-25T08:00:00.000Z"}
    kept = [{**entry, "event": f"door-{number}"} for number in range(500)]

    def answer(client: Client, _: object, message: MQTTMessage) -> None:
        asked = json.loads(message.payload)
        topic = f"edge/old/picture/door/{asked.get('event')}"
        client.publish(topic, b"x")
        result = {"topic": topic} if "event" in asked else {"kept": kept}
        reply = {"id": asked["id"], "ok": True, "result": result}
        client.publish(f"edge/old/reply/{asked['id']}", json.dumps(reply))

    old = Client(CallbackAPIVersion.VERSION2)
    old.on_subscribe = lambda *_: ready.set()
    old.on_message = answer
    old.connect("127.0.0.1", broker.port)
    old.subscribe("edge/old/in/#")
    old.loop_start()
    assert ready.wait(PATIENCE)
    old.publish("edge/old/status", '{"state": "online"}', 1, retain=True).wait_for_publish(PATIENCE)
    out = tmp_path / "out"
    place = ("--device", "old", "--broker", broker.url)
    done = call_cli("evidence", "export", *place, "-o", str(out))
    listed = call_cli("evidence", "list", *place)
    old.disconnect()
    old.loop_stop()
    assert (listed.code, listed.err) == (0, done.err)
    assert done.code == 1
    assert "device old lists the latest 500 only, and may keep more" in done.err
    assert len(list(out.iterdir())) == 500
