"""Brokers and cameras that go away, freeze and come back, and agents that are killed."""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import psutil
import pytest

from tests.helpers.cameras import RTSP_PACKAGES, MjpegServer, RtspServer, rtsp_missing
from tests.helpers.small_models import (
    brightness,
    encode_jpeg,
    loudness,
    plain,
    write_clip,
    write_pictures,
)
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    Relay,
    agent_settings,
    check_account,
    free_port,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Make the one model that these tests need; as `models_dirs`."""
    brightness(tmp_path / "models" / "light")
    return [str(tmp_path / "models")]


@pytest.fixture
def relay(broker: Mosquitto) -> Iterator[Relay]:
    """Stand between agent and broker, to begin with closed."""
    relay = Relay(broker.port, opened=False)
    yield relay
    relay.shut()
    relay.cut()


def health_that(listener: Listener, claim: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait for a health payload of which *claim* is true."""

    def look(_: object) -> dict[str, Any] | None:
        health = listener.last(f"{D}/health")
        return health if health and claim(health) else None

    health: dict[str, Any] = listener.wait_for(look, "health as it should be")
    return health


def count_results(listener: Listener, pipeline: str, number: int) -> None:
    """Wait for so many results."""
    topic = f"{D}/result/{pipeline}"
    listener.wait_for(lambda heard: sum(h.topic == topic for h in heard) >= number, topic)


# A broker that is away


def test_what_was_seen_before_the_broker_came_is_told(
    broker: Mosquitto,
    relay: Relay,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    tmp_path: Path,
) -> None:
    """Without a broker a live source's last 100 results are held, and lossless sources wait.

    When it comes everything arrives in order; what exceeded the 100 is counted as lost.
    """
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(150)], rate=75)
    pictures = write_pictures(tmp_path / "in", [plain(10 * i) for i in range(12)])
    live = {"name": "live", "source": f"file:{clip}", "model": "light"}
    folder = {"name": "folder", "source": pictures, "model": "light"}
    listener = listen(broker.port)
    running = agent(agent_settings("box", relay.url, [live, folder], models_dirs=models))
    wait_until(lambda: "source of live: ended" in running.words(), "the clip to end")
    assert not listener.heard
    relay.open()

    listener.wait_state(f"{D}/source/folder", state="ended")
    health = health_that(listener, lambda h: h["pipelines"]["folder"]["source"] == "ended")
    for account in health["pipelines"].values():
        check_account(account)
    account = health["pipelines"]["live"]
    told = listener.on(f"{D}/result/live")
    assert account["inferred"] > 100
    assert (account["published"], account["lost"]) == (100, account["inferred"] - 100)
    assert len(told) == 100
    seqs = [result["seq"] for result in told]
    assert seqs == sorted(seqs)
    assert seqs[-1] == 149 or account["dropped"]["superseded"]
    folder_seqs = [result["seq"] for result in listener.on(f"{D}/result/folder")]
    assert folder_seqs == list(range(12))
    assert all("replayed" not in h.json for h in listener.heard if "/result/" in h.topic)
    assert listener.on(f"{D}/status")[0]["reason"] == "started"
    assert running.stop() == 0


def test_an_agent_without_a_broker_stops_when_asked(
    agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """SIGTERM ends an agent that has never reached its broker: exit 0."""
    pictures = write_pictures(tmp_path / "in", [plain(9)])
    pipeline = {"name": "p", "source": pictures, "model": "light"}
    url = f"mqtt://127.0.0.1:{free_port()}"
    running = agent(agent_settings("box", url, [pipeline], models_dirs=models))
    wait_until(lambda: "cannot be reached: connection refused" in running.words(), "a failed try")
    wait_until(lambda: "model light is live" in running.words(), "the model to be loaded")
    assert running.stop() == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_a_broker_that_is_killed_costs_no_lossless_result(
    broker: Mosquitto,
    relay: Relay,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    tmp_path: Path,
    qos: int,
) -> None:
    """Through SIGKILL and restart of the broker every picture's result arrives at least once.

    Second copies say `replayed`. Status, info, source and model are retained again, and the
    reconnect is counted.
    """
    pictures = write_pictures(tmp_path / "in", [plain(i % 250, 16, 16) for i in range(240)])
    source = {"name": "p", "source": pictures, "model": "light", "rate": 120.0, "qos": qos}
    listener = listen(broker.port)
    relay.open()
    running = agent(agent_settings("box", relay.url, [source], models_dirs=models))
    count_results(listener, "p", 40)

    relay.shut()
    listener.catch_up()
    broker.stop(signal.SIGKILL)
    before = len(listener.on(f"{D}/result/p"))
    assert before < 240
    wait_until(lambda: "lost:" in running.words(), "the agent to notice")
    subscribed = listener.subscribed
    broker.start()
    wait_until(lambda: listener.subscribed > subscribed, "the listener to be back")
    relay.open()

    again = listener.wait_state(f"{D}/status", state="online", reason="reconnected")
    listener.wait_state(f"{D}/source/p", state="ended")
    results = listener.on(f"{D}/result/p")
    copies = Counter(result["seq"] for result in results)
    assert sorted(copies) == list(range(240))
    fresh = Counter(result["seq"] for result in results if not result.get("replayed"))
    assert max(fresh.values()) == 1, "a second copy that does not say so"
    # Those who come later find everything: nothing of the old broker's memory was needed.
    late = listen(broker.port)
    topics = {f"{D}/{word}" for word in ("status", "info", "source/p", "model/light")}
    late.wait_for(
        lambda heard: topics <= {h.topic for h in heard if h.retained}, "what is retained"
    )
    assert late.last(f"{D}/status") == again
    health = health_that(listener, lambda h: h["pipelines"]["p"]["source"] == "ended")
    check_account(health["pipelines"]["p"])
    assert health["reconnects"] == 1
    assert health["pipelines"]["p"]["inferred"] == health["pipelines"]["p"]["published"] == 240
    assert health["pipelines"]["p"]["lost"] == 0
    assert {status["session"] for status in listener.on(f"{D}/status")} == {again["session"]}
    assert running.stop() == 0


def test_a_live_source_with_qos_1_outlasts_a_broken_connection(
    broker: Mosquitto,
    relay: Relay,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    tmp_path: Path,
) -> None:
    """With `qos = 1` every result of a live source arrives; without, those in between are lost.

    What waited says `replayed`.
    """
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(100)], rate=25)
    source: dict[str, Any] = {"source": f"file:{clip}", "model": "light"}
    pipelines = [{"name": "sure", "qos": 1, **source}, {"name": "quick", **source}]
    listener = listen(broker.port)
    relay.open()
    running = agent(agent_settings("box", relay.url, pipelines, models_dirs=models))
    count_results(listener, "sure", 10)
    count_results(listener, "quick", 10)
    relay.shut()
    relay.cut()
    wait_until(lambda: "source of sure: ended" in running.words(), "the clip to end")
    wait_until(lambda: "source of quick: ended" in running.words(), "the clip to end")
    relay.open()

    ended = health_that(listener, lambda h: h["reconnects"] and h["spool"]["waiting"] == 0)
    sure, quick = (ended["pipelines"][name] for name in ("sure", "quick"))
    results = listener.on(f"{D}/result/sure")
    assert len({result["seq"] for result in results}) == sure["inferred"] == sure["published"]
    last = max(results, key=lambda result: result["seq"])
    assert last["replayed"] is True
    assert results[0].get("replayed") is None
    assert sure["lost"] == 0
    assert quick["lost"] > 0
    assert quick["published"] + quick["lost"] == quick["inferred"]
    assert all("replayed" not in result for result in listener.on(f"{D}/result/quick"))
    assert running.stop() == 0


class Reel(Sequence[bytes]):
    """A camera's pictures; counts those that were taken."""

    def __init__(self, pictures: list[bytes]) -> None:
        self._pictures = pictures
        self.taken = 0

    def __len__(self) -> int:
        return len(self._pictures)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        self.taken += 1
        return self._pictures[index]


def test_a_frozen_broker_holds_nothing_up(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """While the broker is stopped (SIGSTOP) the camera is read on and memory does not grow.

    A lossless source waits. Once the broker goes on nothing lossless is missing, and no connection
    was given up.
    """
    random = np.random.default_rng(0)
    noise = random.integers(0, 255, (480, 640, 3)).astype(np.uint8)
    reel = Reel([encode_jpeg(noise)])
    pictures = write_pictures(tmp_path / "in", [plain(i % 250, 16, 16) for i in range(900)])
    listener = listen(broker.port)
    with MjpegServer(reel, rate=50) as server:
        pipelines = [
            {"name": "camera", "source": server.url(), "model": "light"},
            {"name": "folder", "source": pictures, "model": "light"},
        ]
        running = agent(agent_settings("box", broker.url, pipelines, models_dirs=models))
        count_results(listener, "camera", 5)
        count_results(listener, "folder", 5)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        try:
            grown = psutil.Process(running.process.pid)
            before, taken = grown.memory_info().rss, reel.taken
            # 200 kB each: more than all buffers on the way to an agent that does not read.
            assert len(reel[0]) * 150 > 2**24
            wait_until(lambda: reel.taken > taken + 150, "the camera to be read on")
            assert grown.memory_info().rss - before < 2**26
        finally:
            broker.process.send_signal(signal.SIGCONT)
        listener.wait_state(f"{D}/source/folder", state="ended")
        health = health_that(listener, lambda h: h["pipelines"]["folder"]["source"] == "ended")
        assert [r["seq"] for r in listener.on(f"{D}/result/folder")] == list(range(900))
        for account in health["pipelines"].values():
            check_account(account)
        assert health["reconnects"] == 0
        assert running.stop() == 0


def test_a_frozen_broker_does_not_keep_the_agent_from_stopping(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """SIGTERM ends the agent with 0 although nobody takes its goodbye; the will says it is lost."""
    pictures = write_pictures(tmp_path / "in", [plain(9)])
    pipeline = {"name": "p", "source": pictures, "model": "light"}
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    listener.wait_state(f"{D}/source/p", state="ended")
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        assert running.stop() == 0
    finally:
        broker.process.send_signal(signal.SIGCONT)
    listener.wait_state(f"{D}/status", state="offline")


# The agent's own end


def test_an_agent_that_is_told_to_stop_says_goodbye(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """SIGTERM and SIGINT: retained `offline`, `stopped`, exit 0, and no will after it."""
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(50)])
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "light"}
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    sessions = set()
    for number in (signal.SIGTERM, signal.SIGINT):
        count_results(listener, "p", 5)
        sessions.add(
            listener.wait_state(f"{D}/status", state="online", reason="started")["session"]
        )
        running.signal(number)
        assert running.wait() == 0
        # Retained, as one finds who comes after the broker has noticed the closed connection.
        late = listen(broker.port, f"{D}/status")
        late.wait_state(f"{D}/status", state="offline", reason="stopped")
        assert "Traceback" not in running.words()
        listener.heard.clear()
        running.restart()
    count_results(listener, "p", 5)
    assert running.stop() == 0
    said = [(status["state"], status["reason"]) for status in listener.on(f"{D}/status")]
    assert ("offline", "lost") not in said
    assert len(sessions) == 2, "each start is a session of its own"


def test_the_will_says_that_a_killed_agent_is_lost(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """SIGKILL: the broker retains `offline`, `lost` for it; started again it is `online`."""
    pictures = write_pictures(tmp_path / "in", [plain(9)])
    pipeline = {"name": "p", "source": pictures, "model": "light"}
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    online = listener.wait_state(f"{D}/status", state="online", reason="started")
    running.signal(signal.SIGKILL)
    running.wait()
    lost = listener.wait_state(f"{D}/status", state="offline", reason="lost")
    assert lost["session"] == online["session"]
    running.restart()
    again = listener.wait_state(f"{D}/status", state="online", reason="started")
    assert again["session"] != online["session"]
    assert running.stop() == 0


def test_what_is_gone_from_the_settings_is_cleared_at_the_next_start(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """A pipeline and a model removed between two runs leave no retained topic behind."""
    brightness(tmp_path / "models" / "lamp")
    pictures = write_pictures(tmp_path / "in", [plain(9)])
    old = {"name": "old", "source": pictures, "model": "lamp"}
    new = {"name": "new", "source": pictures, "model": "light"}
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [old], models_dirs=models))
    listener.wait_state(f"{D}/source/old", state="ended")
    listener.wait_state(f"{D}/model/lamp", live="1")
    assert running.stop() == 0
    running.config.write_text(agent_settings("box", broker.url, [new], models_dirs=models))
    running.restart()
    listener.wait_state(f"{D}/source/new", state="ended")
    listener.wait_state(f"{D}/model/light", live="1")
    gone = {f"{D}/source/old", f"{D}/model/lamp"}
    listener.wait_for(lambda heard: gone <= {h.topic for h in heard if not h.payload}, "clearing")
    late = listen(broker.port)
    # What is retained comes first.
    late.publish("edge/end", b"")
    late.wait_for(lambda heard: "edge/end" in {h.topic for h in heard}, "our own word")
    retained = {h.topic for h in late.heard if h.retained}
    assert f"{D}/source/new" in retained
    assert not retained & gone
    assert running.stop() == 0


# Cameras


@pytest.fixture
def jpegs() -> list[bytes]:
    """Give a few pictures as a camera sends them."""
    return [encode_jpeg(plain(40 * i)) for i in range(6)]


def test_an_mjpeg_camera_that_comes_back_is_used_again(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], jpegs: list[bytes]
) -> None:
    """A stream that breaks is `lost` with the reason; when it is there again, `running`."""
    listener = listen(broker.port)
    server = MjpegServer(jpegs)
    pipeline = {"name": "p", "source": server.url(), "model": "light"}
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    count_results(listener, "p", 10)
    server.cut()
    lost = listener.wait_state(f"{D}/source/p", state="lost")
    assert lost["error"]
    degraded = health_that(listener, lambda h: h["state"] == "degraded")
    assert any("source of p" in why for why in degraded["why"])
    with MjpegServer(jpegs, port=server.port):
        listener.wait_state(f"{D}/source/p", state="running")
        number = len(listener.on(f"{D}/result/p"))
        count_results(listener, "p", number + 10)
        health = health_that(listener, lambda h: h["state"] == "ok")
        check_account(health["pipelines"]["p"])
        seqs = [result["seq"] for result in listener.on(f"{D}/result/p")]
        assert seqs == sorted(set(seqs)), "seq goes on over the loss"
        assert running.stop() == 0
    statuses = listener.on(f"{D}/status")
    assert [status["reason"] for status in statuses] == ["started", "stopped"]


@pytest.mark.rtsp
@pytest.mark.skipif(rtsp_missing() is not None, reason=f"no RTSP server: {RTSP_PACKAGES}")
def test_an_rtsp_camera_that_comes_back_is_used_again(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str]
) -> None:
    """A camera that is killed is `lost`, and `running` when it is back; one that freezes, too."""
    listener = listen(broker.port)
    server = RtspServer()
    pipeline = {"name": "p", "source": server.url(), "model": "light"}
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    try:
        count_results(listener, "p", 10)
        server.kill()
        listener.wait_state(f"{D}/source/p", state="lost")
        server = RtspServer(port=server.port)
        listener.wait_state(f"{D}/source/p", state="running")
        number = len(listener.on(f"{D}/result/p"))
        count_results(listener, "p", number + 5)
        psutil.Process(server.pid).suspend()
        listener.wait_state(f"{D}/source/p", state="lost")
        psutil.Process(server.pid).resume()
        listener.wait_state(f"{D}/source/p", state="running")
        assert running.stop() == 0
    finally:
        server.kill()
    assert [s["reason"] for s in listener.on(f"{D}/status")] == ["started", "stopped"]


def test_a_camera_that_never_answers_harms_nobody_else(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], jpegs: list[bytes]
) -> None:
    """A server that takes the connection and says nothing is `lost`; others run, SIGTERM works."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as mute, MjpegServer(jpegs) as server:

        def accept() -> None:
            while True:
                try:
                    taken.append(mute.accept()[0])
                except OSError:
                    return  # the test is over

        threading.Thread(target=accept, daemon=True).start()
        silent = f"http://127.0.0.1:{mute.getsockname()[1]}/stream.mjpg"
        pipelines = [
            {"name": "mute", "source": silent, "model": "light"},
            {"name": "good", "source": server.url(), "model": "light"},
        ]
        listener = listen(broker.port)
        running = agent(agent_settings("box", broker.url, pipelines, models_dirs=models))
        count_results(listener, "good", 10)
        assert taken
        # The next try is on its way into the driver while this one is stopped.
        listener.wait_state(f"{D}/source/mute", state="lost")
        number = len(listener.on(f"{D}/result/good"))
        count_results(listener, "good", number + 10)
        tries = len(taken)
        wait_until(lambda: len(taken) > tries, "another try")
        assert running.stop() == 0
        mute.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()
    assert listener.last(f"{D}/status") is not None
    listener.wait_state(f"{D}/status", state="offline", reason="stopped")


def test_a_source_that_is_not_there_yet_is_waited_for(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """A folder that is missing is `lost` with a reason, and read to its end once it is there."""
    pipeline = {"name": "p", "source": f"dir:{tmp_path / 'later'}", "model": "light"}
    listener = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    lost = listener.wait_state(f"{D}/source/p", state="lost")
    assert "No such file or directory" in lost["error"]
    write_pictures(tmp_path / "soon", [plain(9), plain(10)])
    (tmp_path / "soon").rename(tmp_path / "later")
    listener.wait_state(f"{D}/source/p", state="ended")
    assert [result["seq"] for result in listener.on(f"{D}/result/p")] == [0, 1]
    assert running.stop() == 0


def test_a_recording_that_never_fits_is_lost_once(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """Ready inputs for a model that takes windows: `lost` with the reason, until there are rows."""
    loudness(tmp_path / "models" / "loud", window=4)
    ready = tmp_path / "ready.npy"
    np.save(ready, np.zeros((3, 1, 4), np.float32))
    pipeline = {"name": "p", "source": f"npy:{ready}", "model": "loud"}
    listener = listen(broker.port)
    models = [str(tmp_path / "models")]
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    lost = listener.wait_state(f"{D}/source/p", state="lost")
    assert "loud@1 does not fit this source: input.window: the source gives ready" in lost["error"]
    since = health_that(listener, lambda health: health["state"] == "degraded")["uptime_s"]
    # By then it has been opened again, after half a second and after one more.
    health_that(listener, lambda health: health["uptime_s"] > since + 2.5)
    states = [says["state"] for says in listener.on(f"{D}/source/p")]
    assert states == ["running", "lost"]
    np.save(tmp_path / "rows.npy", np.zeros((8, 1), np.float32))
    (tmp_path / "rows.npy").replace(ready)
    listener.wait_state(f"{D}/source/p", state="ended")
    assert len(listener.on(f"{D}/result/p")) == 2
    assert running.words().count("source of p: loud@1 does not fit") == 1
