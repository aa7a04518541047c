"""What happens to services: floods, kills, wrong settings, upgrades, power cuts, the end."""

from __future__ import annotations

import re
import time
from functools import partial

from nspawn import Failed, expect, say, wait
from service_box import DEVICE, RETRY, UNIT, Box
from service_life import everything


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
    say(f"ok   wrong settings: {said}")
    box.run("echo 'nonsense = 1' >> /etc/edge-agent/config.toml")
    status, said = box.machine.fails("/root/checkout/scripts/install")
    expect("an upgrade with wrong settings: exit status", status, 2)
    expect("it ended before it built", "making /opt" in said, False)
    box.run("cat /root/before.toml > /etc/edge-agent/config.toml")
    say(f"ok   an upgrade with wrong settings: {said.splitlines()[-1]}")
    expect("state", box.run("cat /var/lib/edge-agent/marker"), "kept")
    expect("environments", len(box.run("ls -d /opt/edge-agent/*/").split()) <= 3, True)


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
    box.run("pkill -STOP mosquitto")  # Ctrl-C while it does not answer
    _, said = box.machine.fails("timeout -s INT 4 edge-agent uninstall --forget")
    box.run("pkill -CONT mosquitto")
    expect("an interrupted uninstall", said, "edge-agent: interrupted")
    expect("the service goes on", box.property("ActiveState"), "active")
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
        r"|(etc/systemd/system/multi-user.target.wants|usr/lib/systemd/system)/mosquitto.service"
        r"|etc/(credstore|hosts\.allow|hosts\.deny)$"
        r"|var/lib/(private|python|dbus|ucf|pam)|var/spool|root)"
    )
    return sorted(
        path
        for path in everything(box) - box.files
        if path not in packaged and not others.match(path)
    )
