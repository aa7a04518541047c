"""Models that crash or hang the whole process: counted over restarts, then left alone."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from edge_agent.core.flight_recorder import (
    FILE,
    EngineCall,
    PreviousCrash,
    Recorder,
    call_target,
    clear_starting,
    mark_starting,
    previous_crash,
)
from edge_agent.daemon.hang_watch import SURE_SECONDS, HangWatch
from edge_agent.serving.verdicts import LIMIT, Verdicts
from tests.delivery.test_push_rejections import crash
from tests.helpers.memory_groups import filling, limited
from tests.helpers.push import PlainSender, model_folder, plain_package, start_box
from tests.helpers.small_models import brightness, loudness, plain, write_clip, write_manifest
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings, wait_until
from tests.helpers.tiny_networks import node, save_onnx

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]

FACE = "face@3 openvino:GPU 1-2"
CUT = PreviousCrash("was killed, or the power failed", (), self_inflicted=False)


def died(state: Path, script: str) -> int:
    """Run a few lines that end badly, with a recorder open on *state*; gives the status."""
    head = (
        "from edge_agent.core.flight_recorder import recorder, EngineCall\n"
        f"recorder.open({str(state)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", head + script], check=False, capture_output=True)
    return done.returncode


# The page that outlives the process


def test_a_crash_inside_an_engine_names_the_model(tmp_path: Path) -> None:
    """After a SIGSEGV the next run knows which call it happened in, and none that was over."""
    status = died(
        tmp_path,
        "import faulthandler\n"
        "recorder.leave(recorder.enter('load', 'other@1 openvino:CPU 0-0'))\n"
        f"recorder.enter('infer', {FACE!r})\n"
        "faulthandler._sigsegv()",
    )
    last = previous_crash(str(tmp_path))
    assert status == -signal.SIGSEGV
    assert last is not None
    assert last.why == "crashed (Segmentation fault)"
    assert [(each.kind, each.target) for each in last.calls] == [("infer", FACE)]


def test_a_crash_in_one_thread_is_not_held_against_another(tmp_path: Path) -> None:
    """Of two calls that were under way, only that of the thread that crashed is to blame."""
    last = None
    status = died(
        tmp_path,
        "import faulthandler, threading\n"
        "ready, never = threading.Event(), threading.Event()\n"
        "def other():\n"
        "    recorder.enter('infer', 'good@1 openvino:CPU 0-0'); ready.set(); never.wait()\n"
        "threading.Thread(target=other, daemon=True).start(); ready.wait()\n"
        f"recorder.enter('infer', {FACE!r})\n"
        "faulthandler._sigabrt()",
    )
    last = previous_crash(str(tmp_path))
    assert status == -signal.SIGABRT
    assert last is not None
    assert [each.target for each in last.calls] == [FACE]


def test_a_kill_in_the_middle_of_an_inference_blames_nobody(tmp_path: Path) -> None:
    """SIGKILL, as by an operator or a power cut, is told from a crash: no model is to blame."""
    status = died(
        tmp_path,
        f"import os\nrecorder.enter('infer', {FACE!r})\nos.kill(os.getpid(), 9)",
    )
    last = previous_crash(str(tmp_path))
    assert status == -signal.SIGKILL
    assert last == CUT


def test_a_kill_for_lack_of_memory_blames_the_inference_in_flight(tmp_path: Path) -> None:
    """Another boot's kills say nothing about it, and none in flight is nobody's."""
    with limited(64) as members:
        status = died(tmp_path, f"recorder.enter('infer', {FACE!r})\n{filling(members)}")
        last = previous_crash(str(tmp_path))
        assert status == -signal.SIGKILL
        assert last is not None
        assert last.why == "was killed for lack of memory"
        assert last.self_inflicted
        assert [(each.kind, each.target) for each in last.calls] == [("infer", FACE)]
        page, boot = tmp_path / FILE, Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
        page.write_bytes(page.read_bytes().replace(boot, boot[::-1]))
        assert previous_crash(str(tmp_path)) == CUT
        died(tmp_path, filling(members))
        why = "was killed for lack of memory"
        assert previous_crash(str(tmp_path)) == PreviousCrash(why, (), self_inflicted=False)


def test_a_kill_of_another_before_the_last_look_blames_nobody(tmp_path: Path) -> None:
    """What lacked memory then was not this process, which was killed later."""
    with limited(64) as members:
        died(
            tmp_path,
            "import os, subprocess, sys\n"
            f"subprocess.run([sys.executable, '-c', {filling(members)!r}])\n"
            "recorder.remember_kills()\n"
            f"recorder.enter('load', {FACE!r})\nos.kill(os.getpid(), 9)",
        )
    assert previous_crash(str(tmp_path)) == CUT


def test_what_was_seen_to_hang_before_the_kill_is_to_blame(tmp_path: Path) -> None:
    """A hang is noted while it lasts; whoever kills the process then, the model is named."""
    died(
        tmp_path,
        f"import os\nrecorder.enter('infer', {FACE!r})\n"
        f"recorder.mark_hung(EngineCall('infer', {FACE!r}))\nos.kill(os.getpid(), 9)",
    )
    last = previous_crash(str(tmp_path))
    assert last is not None
    assert last.why == "hung inside an engine"
    assert [each.target for each in last.calls] == [FACE]


def test_an_orderly_end_and_no_run_at_all_leave_no_words(tmp_path: Path) -> None:
    """Nothing is said of a run that closed its recorder, of none, and of a file of nonsense."""
    assert previous_crash(str(tmp_path)) is None
    assert died(tmp_path, f"recorder.enter('infer', {FACE!r})\nrecorder.close()") == 0
    assert previous_crash(str(tmp_path)) is None
    (tmp_path / FILE).write_bytes(b"\xff" * 9000)
    assert previous_crash(str(tmp_path)) is None


def test_notes_cost_no_more_places_than_there_are() -> None:
    """Calls beyond those that have a place go unnoted, and all places come back."""
    own = Recorder()
    numbers = [own.enter("infer", f"m@{i} openvino:CPU 0-0") for i in range(30)]
    assert numbers.count(-1) == 10
    for number in numbers:
        own.leave(number)
    assert sorted(own.enter("infer", FACE) for _ in range(20)) == list(range(20))


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """Without a place to write the notes are kept in memory only."""
    own = Recorder()
    own.open(str(tmp_path / "absent"))
    with own.call("infer", FACE):
        assert own.stuck(-1.0) == EngineCall("infer", FACE)
    assert own.stuck(-1.0) is None
    own.close()


def test_a_page_that_can_no_longer_be_written_ends_nothing(tmp_path: Path) -> None:
    """A store into it raises SIGBUS, as on btrfs with a full disk: here its file is cut off."""
    status = died(
        tmp_path,
        "import os\n"
        f"os.truncate({str(tmp_path / FILE)!r}, 0)\n"
        f"recorder.leave(recorder.enter('infer', {FACE!r}))\n"
        f"recorder.mark_hung(EngineCall('infer', {FACE!r}))\n"
        "recorder.remember_kills()\n"
        "recorder.close()\n",
    )
    assert status == 0


def test_a_quick_start_that_got_nowhere_is_not_repeated(tmp_path: Path) -> None:
    """The quick way is taken again only if the last one came as far as being the one agent."""
    state = str(tmp_path)
    assert mark_starting(state)
    assert not mark_starting(state)
    clear_starting(state)
    assert mark_starting(state)
    assert mark_starting(str(tmp_path / "absent")), "a folder that takes nothing is no reason"


# What is counted


OTHER_RELEASE = {
    "found": {},
    "races": {},
    "crashes": {"agent": "0.0", "counts": {FACE: [LIMIT, "the agent crashed"]}},
}
"""A ledger that another version of the agent has left."""


def words(what: str = FACE) -> PreviousCrash:
    """Make the last words of a run that crashed while it loaded something."""
    return PreviousCrash("crashed (Aborted)", (EngineCall("load", what),))


def test_after_three_crashes_in_a_row_a_pair_is_left_alone(tmp_path: Path) -> None:
    """Counted over restarts; another version of the file, or another engine, is another pair."""
    for number in range(LIMIT):
        assert Verdicts(tmp_path).why_left_alone(FACE) is None
        Verdicts(tmp_path).add_crash(words())
        assert bool(Verdicts(tmp_path).problems()) == (number + 1 < LIMIT)
    why = Verdicts(tmp_path).why_left_alone(FACE)
    assert why is not None
    assert "crashed (Aborted) while loading it, 3 times in a row" in why
    assert Verdicts(tmp_path).why_left_alone(FACE.replace("GPU", "CPU")) is None
    assert Verdicts(tmp_path).why_left_alone(FACE.replace("1-2", "1-3")) is None


def test_a_good_run_forgives_what_has_not_come_to_the_limit(tmp_path: Path) -> None:
    """In a row means in a row; what is left alone already stays so."""
    crashes = Verdicts(tmp_path)
    for _ in range(LIMIT):
        crashes.add_crash(words("bad@1 openvino:GPU 1-2"))
    crashes.add_crash(words())
    crashes.forgive()
    again = Verdicts(tmp_path)
    assert again.problems() == []
    assert again.why_left_alone("bad@1 openvino:GPU 1-2") is not None
    for _ in range(LIMIT - 1):
        again.add_crash(words())
    assert again.why_left_alone(FACE) is None


def test_of_several_that_may_be_to_blame_it_is_the_one_in_flight_each_time(tmp_path: Path) -> None:
    """The others were there by chance: they serve on when it is left alone."""
    verdicts = Verdicts(tmp_path)
    calls = [EngineCall("infer", target) for target in (FACE, "a@1 e:CPU 1-2", "b@1 e:CPU 1-2")]
    for others in (calls[1:2], calls[2:], calls[1:]):
        why = "was killed for lack of memory"
        # Twice at a time on two lanes it is still one end.
        verdicts.add_crash(PreviousCrash(why, (calls[0], calls[0], *others)))
    assert verdicts.why_left_alone(FACE) is not None
    assert [words.partition(" engine")[0] for words in verdicts.problems()] == [
        "model a@1 e:CPU: the agent was killed for lack of memory while running it (1 of 3 times)"
    ]


def test_what_a_client_asks_counts_against_no_engine_of_a_pipeline(tmp_path: Path) -> None:
    """Whoever knew an input that hangs a model had it passed over on its engine for cameras."""
    died(
        tmp_path,
        "import os, threading\n"
        "def lanes():\n"
        f"    recorder.enter('infer', {FACE!r})\n"
        "    recorder.enter('infer', 'lamp@1 onnxruntime:CPU 1-2')\n"
        f"    recorder.enter('ask', {FACE!r})\n"
        "thread = threading.Thread(target=lanes)\n"
        "thread.start()\n"
        "thread.join()\n"
        "os.abort()  # as in a thread of an engine's own\n",
    )
    last = previous_crash(str(tmp_path))
    assert last is not None
    assert [(call.kind, call.target) for call in last.calls] == [("ask", FACE)]
    shared, alone = last.for_use({"face"}), last.for_use({"lamp"})
    assert shared.asked
    assert not alone.asked, "nobody but those who ask is served"
    verdicts = Verdicts(tmp_path)
    for number in range(LIMIT):
        assert verdicts.why_not_asked(FACE) is None
        assert number == 0 or verdicts.problems() != []
        verdicts.forgive()
        assert verdicts.problems() == []
        verdicts.add_crash(shared)
    assert verdicts.why_left_alone(FACE) is None
    why = Verdicts(tmp_path).why_not_asked(FACE)
    assert why is not None
    assert "crashed (Aborted) while answering a client with it, 3 times" in why
    # The agent exchanges engines by itself: questions were answered again, and could hang that one.
    assert verdicts.why_not_asked(FACE.replace("openvino:GPU", "onnxruntime:CPU")) == why
    assert verdicts.why_not_asked(FACE.replace("1-2", "1-3")) is None
    for _ in range(LIMIT):
        verdicts.add_crash(alone)
    assert verdicts.why_left_alone(FACE) is not None


def test_a_damaged_count_is_a_clean_slate(tmp_path: Path) -> None:
    """A file of nonsense, and one of another release, bar nothing."""
    for content in ("nonsense", "[]", json.dumps(OTHER_RELEASE)):
        (tmp_path / "engines.json").write_text(content)
        assert Verdicts(tmp_path).why_left_alone(FACE) is None


def test_another_file_is_another_place(tmp_path: Path) -> None:
    """A model whose file has been replaced under the same version is given a new chance."""
    network = tmp_path / "model.onnx"
    network.write_bytes(b"one")
    before = call_target("face@3", "openvino", "CPU", str(network))
    network.write_bytes(b"another")
    assert call_target("face@3", "openvino", "CPU", str(network)) != before


# Hangs


def test_a_hang_is_said_once_and_ends_the_agent_where_nobody_watches() -> None:
    """It must last while we are awake; one that comes back is forgotten."""
    own, ends = Recorder(), list[str]()
    hangs = HangWatch(own, -1.0, ends.append)
    number = own.enter("infer", FACE)
    assert not hangs.check(100.0), "a process that was frozen itself has seen nothing"
    assert not hangs.check(100.0 + SURE_SECONDS / 2)
    assert hangs.check(100.0 + SURE_SECONDS)
    assert hangs.check(101.0 + SURE_SECONDS)
    assert ends == ["model face@3 openvino:GPU: hangs inside the engine (infer)"]
    own.leave(number)
    assert not hangs.check(102.0 + SURE_SECONDS)


def test_a_load_may_take_longer_than_an_inference() -> None:
    """A network that is being built on a GPU is not taken for a hang after half a minute."""
    own = Recorder()
    number = own.enter("load", FACE)
    assert own.stuck(-1.0) is None
    assert own.problems() == []
    own.leave(number)


# The agent


def hanging(folder: Path, version: str = "1", window: int = 0) -> Path:
    """Make a model that never comes back from a bright picture, and at once from a dark one.

    With a *window*: from values above 1000, and at once from others.
    """
    from onnx import TensorProto, helper

    folder.mkdir(parents=True)
    shape = (1, 1, window) if window else (1, 3, 16, 16)
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Sin", ["state"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, (1,)),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, (1,)),
        ],
    )
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["sample"], ["mean"], axes=[*range(1, len(shape))], keepdims=0),
            node("Sub", ["mean", "usual"], ["above"]),
            node("Relu", ["above"], ["excess"]),
            node("Mul", ["excess", "huge"], ["share"]),
            node("Cast", ["share"], ["many"], to=7),
            node("Squeeze", ["many"], ["trips"]),
            node("Loop", ["trips", "true", "mean"], ["light"], body=body),
        ],
        [("sample", "float32", shape)],
        [("light", "float32", (1,))],
        {
            "usual": np.array(1000 if window else 0, np.float32),
            "huge": np.array(1e12, np.float32),
            "true": np.array(True),
        },
    )
    if not window:
        return write_manifest(folder, version, "regression", output={"decoder": "raw"})
    entries = {"window": window, "layout": "ct"}
    output = {"decoder": "score", "threshold": 100.0}
    return write_manifest(folder, version, "anomaly", input=entries, output=output)


def test_a_model_that_hangs_is_said_and_left_alone_at_last(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """An inference that does not come back ends the feeding of the watchdog; then it is counted.

    The test is the service manager: it is told that the agent is well, then nothing, and kills it.
    """
    brightness(tmp_path / "models" / "light")
    network = hanging(tmp_path / "models" / "lamp") / "model.onnx"
    clip = write_clip(tmp_path / "clip.avi", [plain(200)] * 50)
    pipelines = [
        {"name": name, "source": f"file:{clip}?loop=1", "model": model}
        for name, model in (("bad", "lamp"), ("good", "light"))
    ]
    state = tmp_path / "agent" / "state"
    state.mkdir(parents=True)
    lamp = call_target("lamp@1", "onnxruntime", "CPU", str(network))
    for _ in range(LIMIT - 1):
        Verdicts(state).add_crash(
            PreviousCrash("hung inside an engine", (EngineCall("infer", lamp),))
        )
    listener = listen(broker.port)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0.0)
        running = agent(
            agent_settings("box", broker.url, pipelines, models_dirs=[str(tmp_path / "models")]),
            environ={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"},
        )
        words = "model lamp@1 onnxruntime:CPU: hangs inside the engine (infer)"
        wait_until(lambda: words in running.words(), "the agent to see it")
        fed = heard_of(manager)
        assert b"WATCHDOG=1" in fed
        assert running.words().count(words) == 1
        listener.wait_for(
            lambda _: (
                (h := listener.last("edge/box/health"))
                and any("lamp@1 onnxruntime:CPU: is inside one inference" in w for w in h["why"])
            ),
            "health to say so",
        )
        assert b"WATCHDOG=1" not in heard_of(manager)
        running.signal(signal.SIGKILL)
        running.wait()
    listener.heard.clear()
    running.restart()
    listener.wait_for(
        lambda _: (
            (h := listener.last("edge/box/health"))
            and any("lamp@1: is not loaded" in reason for reason in h["why"])
        ),
        "a health that says so",
    )
    listener.wait_for(lambda _: len(listener.on("edge/box/result/good")) > 3, "the good model")
    assert running.stop() == 0


def test_a_version_that_hangs_in_its_probation_is_rolled_back(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """The probation was over before the watchdog was sure of the hang: the version was live."""
    loudness(tmp_path / "models" / "level", 2)
    two = hanging(tmp_path / "level-2", "2", window=2)
    listener = listen(broker.port)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, ExitStack() as stack:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0.0)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        box = start_box(
            *(tmp_path, broker, listener, partial(agent, environ=told), "box"),
            source="mqtt:plant/v",
            pipelines=[{"name": "door", "model": "level"}],
            version=None,
            models_dirs=[str(tmp_path / "models")],
            trust={"allow_unsigned": True},
            trial={"shadow_frames": 1, "probation_s": 3},
        )
        value, stop = [0], threading.Event()

        def feed() -> None:
            while not stop.wait(0.01):
                listener.publish("plant/v", json.dumps(value[0]).encode())

        feeding = threading.Thread(target=feed)
        feeding.start()
        stack.callback(feeding.join)
        stack.callback(stop.set)
        box.results_go_on("1")
        sender = stack.enter_context(
            PlainSender(broker.port, "box", plain_package(two, "level", "2"))
        )
        sender.offer().wait("probation")
        value[0] = 2000
        words = "model level@2 onnxruntime:CPU: hangs inside the engine (infer)"
        wait_until(lambda: words in box.agent.words(), "the agent to see it")
        assert box.model()["candidate"]["phase"] == "probation"
        value[0] = 0
        box.agent.signal(signal.SIGKILL)
        box.agent.wait()
        box.agent.restart()
        state = box.wait_settled(outcome="rolled-back", version="2")
        assert state["last"]["why"] == "the agent hung inside an engine during its probation"
        box.results_go_on("1")


def test_a_question_that_hangs_takes_no_model_from_a_pipeline(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """One had a version on probation rolled back; three had the engine passed over for cameras."""
    loudness(tmp_path / "models" / "level", 2)
    two = hanging(tmp_path / "level-2", "2", window=2)
    listener = listen(broker.port)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, ExitStack() as stack:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0.0)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        box = start_box(
            *(tmp_path, broker, listener, partial(agent, environ=told), "box"),
            source="mqtt:plant/v",
            pipelines=[{"name": "door", "model": "level"}],
            version=None,
            models_dirs=[str(tmp_path / "models")],
            trust={"allow_unsigned": True},
            trial={"shadow_frames": 1, "probation_s": 3},
            infer={"models": ["level"]},
        )
        stop = threading.Event()

        def feed() -> None:
            while not stop.wait(0.01):
                listener.publish("plant/v", b"0")

        feeding = threading.Thread(target=feed)
        feeding.start()
        stack.callback(feeding.join)
        stack.callback(stop.set)
        box.results_go_on("1")
        sender = stack.enter_context(
            PlainSender(broker.port, "box", plain_package(two, "level", "2"))
        )
        sender.offer().wait("probation")
        evil = json.dumps({"readings": [[2000], [2000]]})
        words = "model level@2 onnxruntime:CPU: hangs inside the engine (ask)"

        def hung(times: int) -> bool:
            return box.agent.words().count(words) == times

        for number in range(LIMIT):
            listener.publish(f"edge/box/in/infer/level/evil-{number}", evil)
            wait_until(partial(hung, number + 1), "the hang")
            heard_of(manager)
            box.agent.signal(signal.SIGKILL)
            box.agent.wait()
            listener.heard.clear()
            box.agent.restart()
            box.results_go_on("2")
        listener.publish("edge/box/in/infer/level/again", json.dumps({"readings": [[0], [0]]}))
        reply = listener.wait_for(lambda _: listener.last("edge/box/reply/again"), "a refusal")
        assert (
            "takes no questions: the agent hung inside an engine while answering" in reply["error"]
        )
        listener.wait_for(
            lambda _: (
                (h := listener.last("edge/box/health"))
                and any("level@2: takes no questions" in why for why in h["why"])
            ),
            "health to say so",
        )
        state = box.wait_settled(outcome="live", version="2")
        assert state["live"] == "2"
        box.results_go_on("2")


def heard_of(manager: socket.socket) -> set[bytes]:
    """Take all that a service manager has been told so far."""
    told = set()
    while True:
        try:
            told.add(manager.recv(4096))
        except BlockingIOError:
            return told


DEATHS = {-signal.SIGFPE, -signal.SIGSEGV}
"""Of a division that is refused. While the record of it is written other threads run on, whose
frames it looks at: once in some hundred times that kills as well, after what counts is written."""


def test_a_model_that_crashes_at_every_start_does_not_take_the_box_down(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """After three deaths the agent runs without it, says why, and serves the other model.

    The engine dies of an integer division that the processor refuses, when the model is loaded.
    """
    brightness(tmp_path / "models" / "light")
    crash(model_folder(tmp_path / "models" / "level", "1"))
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(50)])
    pipelines = [
        {"name": name, "source": f"file:{clip}?loop=1", "model": model}
        for name, model in (("bad", "level"), ("good", "light"))
    ]
    listener = listen(broker.port)
    settings = agent_settings("box", broker.url, pipelines, models_dirs=[str(tmp_path / "models")])
    running = agent(settings)
    for _ in range(LIMIT):
        assert running.wait() in DEATHS
        running.restart()
    why = "crashed (Floating point exception)"
    listener.wait_for(
        lambda heard: any(h.topic == "edge/box/result/good" for h in heard), "the good model"
    )
    listener.wait_for(
        lambda _: (
            (h := listener.last("edge/box/health"))
            and h["state"] == "degraded"
            and any("level@1: is not loaded" in reason and why in reason for reason in h["why"])
        ),
        "a health that says so",
    )
    state = listener.wait_for(
        lambda _: (s := listener.last("edge/box/model/level")) and "error" in s and s,
        "the model's topic",
    )
    assert "3 times in a row" in state["error"]
    # Killed and started again it neither counts nor forgets.
    running.signal(signal.SIGKILL)
    running.wait()
    running.restart()
    before = len(listener.on("edge/box/result/good"))
    listener.wait_for(lambda _: len(listener.on("edge/box/result/good")) > before + 3, "results")
    assert running.stop() == 0


def filling_model(folder: Path) -> Path:
    """Make a model that takes 8 GB for a bright picture, and nothing for a dark one."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[1, 2, 3], keepdims=0),
            node("Greater", ["mean", "bright"], ["is_bright"]),
            node("Cast", ["is_bright"], ["often"], to=7),
            node("Mul", ["often", "large"], ["more"]),
            node("Add", ["more", "one"], ["many"]),
            node("Expand", ["mean", "many"], ["wide"]),
            node("Sin", ["wide"], ["waves"]),
            node("ReduceMean", ["waves"], ["light"], keepdims=1),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("light", "float32", (1,))],
        {
            "bright": np.array(100, np.float32),
            "large": np.array([2**31], np.int64),
            "one": np.array([1], np.int64),
        },
    )
    return write_manifest(folder, "1", "regression", output={"decoder": "raw"})


def test_a_model_that_takes_too_much_memory_at_every_start_is_left_alone(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """The kernel kills the agent amid an inference three times; then the other model serves.

    Health names it and memory from the second start on.
    """
    brightness(tmp_path / "models" / "light")
    filling_model(tmp_path / "models" / "lamp")
    clip = write_clip(tmp_path / "clip.avi", [plain(200)] * 50)
    pipelines = [
        {"name": name, "source": f"file:{clip}?loop=1", "model": model}
        for name, model in (("bad", "lamp"), ("good", "light"))
    ]
    listener = listen(broker.port)
    settings = agent_settings("box", broker.url, pipelines, models_dirs=[str(tmp_path / "models")])

    def says(words: str) -> bool:
        health = listener.last("edge/box/health") or {"why": []}
        return any("lamp@1" in each and words in each for each in health["why"])

    with limited(700) as members:
        running = agent(settings)
        for _ in range(LIMIT):
            members.write_text(str(running.process.pid))
            assert running.wait() == -signal.SIGKILL
            running.restart()
        members.write_text(str(running.process.pid))
        words = "is not loaded"
        listener.wait_for(lambda _: says(words), "a health that says so")
        assert says("was killed for lack of memory while running it, 3 times in a row")
        before = len(listener.on("edge/box/result/good"))
        listener.wait_for(lambda _: len(listener.on("edge/box/result/good")) > before + 3, "light")
        assert running.stop() == 0


def test_a_box_whose_only_model_crashes_stays_reachable(
    broker: Mosquitto, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """With nothing left to run the agent does not end: it waits for a push, and says why."""
    crash(model_folder(tmp_path / "models" / "level", "1"))
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(50)])
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "level"}
    listener = listen(broker.port)
    settings = agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")])
    running = agent(settings)
    for _ in range(LIMIT):
        assert running.wait() in DEATHS
        running.restart()
    listener.wait_for(
        lambda _: (
            (h := listener.last("edge/box/health"))
            and any("level@1: is not loaded" in reason for reason in h["why"])
        ),
        "a health that says so",
    )
    assert running.process.poll() is None
    assert running.stop() == 0
