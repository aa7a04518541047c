"""What happens to services: floods, hangs, kills, wrong settings, upgrades, power cuts, the end."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from functools import partial

from nspawn import Failed, expect, say, wait
from service_box import (
    DEVICE,
    PYTHON,
    RETRY,
    UNIT,
    Box,
    turns,
)
from service_life import everything

# Sums its one input, and counts to as many thousand millions before it answers.
WEDGE = """\
import pathlib
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
folder = pathlib.Path("/opt/models/wedge")
folder.mkdir(parents=True, exist_ok=True)
node, value = helper.make_node, helper.make_tensor_value_info
body = helper.make_graph(
    [node("Identity", ["go"], ["go_on"]), node("Sin", ["state"], ["next"])],
    "body",
    [value("count", TensorProto.INT64, []), value("go", TensorProto.BOOL, []),
     value("state", TensorProto.FLOAT, [1, 1, 1])],
    [value("go_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, [1, 1, 1])],
)
graph = helper.make_graph(
    [node("Squeeze", ["x"], ["load"]), node("Mul", ["load", "billion"], ["many"]),
     node("Cast", ["many"], ["trips"], to=TensorProto.INT64),
     node("Loop", ["trips", "true", "x"], ["y"], body=body)],
    "wedge",
    [value("x", TensorProto.FLOAT, [1, 1, 1])],
    [value("y", TensorProto.FLOAT, [1, 1, 1])],
    [numpy_helper.from_array(np.float32(1e9), "billion"),
     numpy_helper.from_array(np.array(True), "true")],
)
opset = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
(folder / "model.toml").write_text('''
name = "wedge"
version = "1"
task = "raw"
file = "model.onnx"
[input]
channels = ["load"]
window = 1
hop = 1
[output]
decoder = "raw"
''')
"""
LOADS = "/opt/models/loads.csv"
WEDGED = f"""\
[[pipelines]]
name = "wedge"
source = "csv:{LOADS}?loop=1&rate=20"
model = "wedge"
"""


def survives_a_flood(box: Box) -> None:
    """Send 10,000 messages that mean nothing; they change a counter."""
    before = box.wait_status("online")["session"]
    inbox = f"edge/{DEVICE}/in/command/restart"
    box.run(f"yes '{{\"id\": [' | head -10000 | {box.publish('operator', inbox, '-l')}")
    health = box.health()

    def counted() -> bool:
        nonlocal health
        health = box.health()
        return bool(health["malformed"] >= 10_000)

    wait("10,000 malformed messages to be counted", counted, 60)
    expect("malformed", health["malformed"], 10_000)
    expect("state", (health["state"], health["reconnects"]), ("ok", 0))
    expect("session", box.status()["session"], before)
    say(f"ok   10,000 malformed commands: counted, {health['rss_mb']} MB, state ok")


@contextlib.contextmanager
def _watchdog_bites(box: Box, what: str, cause: Callable[[], None]) -> Iterator[None]:
    """See a service that hangs killed, and its status say the truth throughout.

    Meanwhile the cause may be taken away.
    """
    session = box.wait_status("online")["session"]
    restarts = int(box.property("NRestarts"))
    with box.recording(f"edge/{DEVICE}/status") as heard:
        wait("the status now", lambda: turns(heard), 30)
        cause()
        took = wait("the watchdog", lambda: int(box.property("NRestarts")) > restarts, 120)
        yield
        status = box.wait_status("online", session)
        wait("the status to be heard", lambda: len(turns(heard)) >= 3, 30)
        said = turns(heard)
    expect("first", said[0][0::2], ("online", session))
    expect("then", said[1], ("offline", "lost", session))
    expect("at last", said[-1], ("online", "started", status["session"]))
    expect("states", len(said), 3)
    box.results()
    expect("the journal", "Watchdog timeout" in box.run(f"journalctl -u {UNIT} -b"), True)
    say(
        f"ok   {what}: killed by the watchdog after {took:.0f} s, "
        "offline/lost, online/started, results"
    )


def survives_being_stopped_dead(box: Box) -> None:
    """Freeze the whole process."""

    def freeze() -> None:
        box.run(f"kill -STOP {box.property('MainPID')}")

    with _watchdog_bites(box, "SIGSTOP", freeze):
        pass


def survives_a_wedged_engine(box: Box) -> None:
    """Give a model an input over which it hangs, deep in native code."""
    (box.root / "root/wedge.py").write_text(WEDGE)
    good = "load\n" + "0\n" * 200
    loads = box.root / LOADS.removeprefix("/")
    box.run(f"mkdir -p /opt/models; {PYTHON} /root/wedge.py")
    loads.write_text(good)
    box.configure("onnxruntime", WEDGED)
    box.restart()
    box.results("wedge")

    def cause() -> None:
        # The agent has the old file open: with the next round of the loop it has the new one.
        loads.with_suffix(".new").write_text(good + "1e9\n" + good)
        loads.with_suffix(".new").rename(loads)
        box.restart()
        box.wait_status("online")
        box.results("wedge")

    cause()
    with _watchdog_bites(box, "an engine that hangs in native code", lambda: None):
        loads.write_text(good)
    box.results("wedge")
    box.configure("onnxruntime")
    box.restart()
    box.results()


def survives_kills(box: Box) -> None:
    """Kill it as soon as it is back, ten times."""
    box.run(f"systemctl reset-failed {UNIT}")
    times = []
    for _ in range(10):
        gone = box.property("MainPID")
        box.run(f"kill -KILL {gone}")
        times.append(wait("the service to be back", partial(_is_back, box, gone), 30))
    box.wait_status("online")
    box.results()
    say(f"ok   kill -9, ten times in a row: back each time, within {max(times):.1f} s; results")


def _is_back(box: Box, gone: str) -> bool:
    return box.is_active() and box.property("MainPID") not in {gone, "0"}


def is_tried_again_when_given_up_on(box: Box) -> None:
    """Make the settings wrong: no use in trying at once, but later."""

    def state() -> str:
        return box.run(f"systemctl is-active {RETRY}", check=False)

    box.run("echo 'nonsense = 1' >> /etc/edge-agent/config.toml")
    code, _ = box.machine.fails(f"systemctl restart {UNIT}")
    expect("restart with wrong settings fails", code != 0, True)
    wait("the service to be given up on", lambda: box.property("ActiveState") == "failed", 30)
    expect("exit status", box.property("ExecMainStatus"), "2")
    expect("the timer", state(), "active")
    box.run(f"systemctl stop {UNIT}")
    expect("the timer, after systemctl stop", state(), "inactive")
    quick = f"/run/systemd/system/{RETRY}.d"
    box.run(
        f"mkdir -p {quick}; "
        f"printf '[Timer]\\nOnActiveSec=\\nOnActiveSec=3\\n' > {quick}/quick.conf; "
        "systemctl daemon-reload"
    )
    box.machine.fails(f"systemctl restart {UNIT}")
    box.configure("onnxruntime")
    took = wait("the service to be tried again", box.is_active, 30)
    box.run(f"rm -r {quick}; systemctl daemon-reload; systemctl reset-failed {UNIT}", check=False)
    box.results()
    say(
        "ok   wrong settings: given up on with status 2, tried again by itself "
        f"({took:.0f} s of 3, which are 15 min), not after systemctl stop"
    )


def is_never_restarted_in_a_loop(box: Box) -> None:
    """Put a program in place that dies at once: restarted so many times, then left to the timer."""
    main = box.run("readlink -f /opt/edge-agent/current") + (
        "/lib/python3.11/site-packages/edge_agent/__main__.py"
    )
    box.run(f"systemctl reset-failed {UNIT}; cp {main} /root/main.py")
    box.run(f"printf 'raise SystemExit(1)\\n' > {main}; systemctl kill -s KILL {UNIT}")
    took = wait(
        "the service to be given up on", lambda: box.property("ActiveState") == "failed", 240
    )
    said = box.run(f"journalctl -u {UNIT} -b -n 5 --no-pager")
    expect("given up on for its many starts", "repeated too quickly" in said, True)
    count = int(box.property("NRestarts"))
    expect("the timer", box.run(f"systemctl is-active {RETRY}"), "active")
    box.run(f"cp /root/main.py {main}; systemctl reset-failed {UNIT}; systemctl start {UNIT}")
    box.results()
    box.run(f"systemctl stop {RETRY}")
    say(
        f"ok   a program that dies at once: {count} restarts in {took:.0f} s, "
        "then left to the timer of 15 min"
    )


def upgrades(box: Box) -> None:
    """Install again over what runs."""
    before = box.run("readlink -f /opt/edge-agent/current")
    box.run(
        "echo kept > /var/lib/edge-agent/marker; cp /etc/edge-agent/config.toml /root/before.toml"
    )
    began = time.monotonic()
    box.run("/root/checkout/scripts/install")
    after = box.run("readlink -f /opt/edge-agent/current")
    expect("a new environment", before != after, True)
    expect("state", box.run("cat /var/lib/edge-agent/marker"), "kept")
    box.run("cmp /etc/edge-agent/config.toml /root/before.toml")
    box.wait_status("online")
    box.results()
    say(
        f"ok   scripts/install again: upgraded in {time.monotonic() - began:.0f} s, "
        "settings and state kept, results"
    )


def rolls_back(box: Box) -> None:
    """Try a version that does not start, one that dies at once, and settings that are wrong."""
    before = box.run("readlink -f /opt/edge-agent/current")
    units = box.run("cd /etc/systemd/system; md5sum edge-agent*")
    spoil = {
        "a version that does not start": "raise SystemExit(1)",
        "a version that dies soon after": (
            "import os, time\nfrom edge_agent import systemd\n"
            "systemd.notify('READY=1')\ntime.sleep(3)\nos._exit(1)"
        ),
    }
    for what, code in spoil.items():
        box.run(
            "rm -rf /root/bad; cp -a /root/checkout /root/bad; "
            "echo '# of the bad version' >> /root/bad/systemd/edge-agent.service"
        )
        with (box.root / "root/bad/edge_agent/__main__.py").open("r+") as file:
            text = file.read()
            file.seek(0)
            file.write(text.replace("import sys\n", f"import sys\n\n{code}\n", 1))
        status, said = box.machine.fails("/root/bad/scripts/install")
        expect(f"{what}: exit status", status, 1)
        expect(f"{what}: no traceback of the installer", "cli/install.py" in said, False)
        expect(what, box.run("readlink -f /opt/edge-agent/current"), before)
        expect("units", box.run("cd /etc/systemd/system; md5sum edge-agent*"), units)
        box.wait_status("online")
        box.results()
        say(f"ok   {what}: {said.splitlines()[-1]}")
    box.run("echo 'nonsense = 1' > /root/wrong.toml")
    status, said = box.machine.fails(
        "/opt/edge-agent/current/bin/edge-agent install --config /root/wrong.toml"
    )
    expect("wrong settings: exit status", status, 2)
    expect("wrong settings: one line", len(said.splitlines()), 1)
    box.run("cmp /etc/edge-agent/config.toml /root/before.toml")
    expect("state", box.run("cat /var/lib/edge-agent/marker"), "kept")
    expect("environments", len(box.run("ls -d /opt/edge-agent/*/").split()) <= 3, True)
    say(f"ok   wrong settings: {said}")


def comes_back_after_a_restart_of_the_machine(box: Box) -> None:
    """Halt the machine and boot it."""
    session = box.wait_status("online")["session"]
    box.machine.halt()
    began = time.monotonic()
    box.machine.boot()
    box.wait_status("online", session)
    box.results()
    took = time.monotonic() - began
    entered, begun = (
        int(box.property(f"{name}TimestampMonotonic")) for name in ("ActiveEnter", "ExecMainStart")
    )
    wait("the steps of the start", lambda: "first result" in box.journal(), 60)
    steps = re.findall(r"first result .*", box.journal())
    expect("starts", len(steps), 1)
    say(
        f"ok   restart of the machine: three results heard {took:.1f} s after its boot began; "
        f"ready {(entered - begun) / 1000:.0f} ms after exec; {steps[0]}"
    )


def is_uninstalled(box: Box) -> None:
    """Take it away, and look at everything that is there which was not there before."""
    said = box.run("edge-agent uninstall")
    expect("the service", box.property("LoadState"), "not-found")
    expect("what runs", box.run("pgrep -u edge-agent", check=False), "")
    named = re.findall(r"(/[\w/.-]+) \(", said)
    left = sorted(_strange(box))
    unsaid = [path for path in left if not path.startswith(tuple(named))]
    expect("what is left and not said", unsaid, [])
    expect("what is said to be left and is not", [path for path in named if path not in left], [])
    say(f"ok   uninstall: {said.splitlines()[1]}")
    box.run(said.splitlines()[-2].strip() + "; " + said.splitlines()[-1].strip())
    expect("what is left then", _strange(box), [])
    expect("the user", box.run("getent passwd edge-agent", check=False), "")
    again, _ = box.machine.fails("PATH=/usr/bin:/bin edge-agent --version")
    if again == 0:
        raise Failed("the command is still there")


def _strange(box: Box) -> list[str]:
    """List what was not there before, and that no package of Debian has brought or made."""
    packaged = set(box.run("cat /var/lib/dpkg/info/*.list").splitlines())
    # Of mosquitto and python3, and what this trial itself has put there.
    others = re.compile(
        r"/(etc/mosquitto|var/lib/mosquitto|opt/models|etc/(alternatives|rc.\.d|ssl|ld\.so|init\.d)"
        r"|usr/(lib|share)/python3?|var/cache/(ldconfig|debconf)"
        r"|etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$"
        r"|etc/(hostname|hosts|machine-id|mtab|resolv.conf|\.pwd\.lock|\.updated)$|var/\.updated$"
        r"|etc/systemd/system/multi-user.target.wants/mosquitto.service"
        r"|var/lib/(private|python|dbus|ucf|pam)|var/spool|root)"
    )
    return sorted(
        path
        for path in everything(box) - box.files
        if path not in packaged and not others.match(path)
    )
