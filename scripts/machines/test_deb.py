"""Try Debian packages on a Debian without a network: what dpkg and installer know of each other.

    sudo scripts/machines/test-deb [ROOT] [--work DIR] [--keep] [--brief]

ROOT and needs as of `test-bundle`. Installation, demo, push, restart, upgrade, rollback, a version
that does not start, upgrade while disabled, `install --previous`, `uninstall` beside dpkg,
downgrade and images (not with --brief), removal, purge. One line for each thing seen; ends with 1
at the first that is not as it should be.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from nspawn import CHECKOUT, call, expect, say
from service_box import UNIT
from test_bundle import FIRST, HOME, SECOND, SETTINGS, VERSIONS, Box, try_bundles

MODEL, PUSHED = "parts-inspection", "99"
TRUSTING = f"""{SETTINGS}
[trust]
keys = ["/etc/edge-agent/trust.d"]

[trial]
probation_s = 2
"""


def packages(merged: Path, bundles: dict[str, Path]) -> None:
    """Make a package of each bundle, where the machine finds it."""
    for name, bundle in bundles.items():
        deb = bundle.with_suffix(".deb")
        make = str(CHECKOUT / "scripts/make_deb.py")
        said = call(sys.executable, make, "-o", str(deb), "--bundle", str(bundle))
        say(f"ok   {said.splitlines()[0]}")
        shutil.move(deb, merged / f"root/{name}.deb")


def dpkg(box: Box, name: str) -> None:
    """See that dpkg has a version installed, whole."""
    said = box.run("dpkg-query -W -f '${db:Status-Abbrev}${Version}' edge-agent")
    expect("dpkg", said, f"ii {VERSIONS[name]}")


def is_pushed_to(box: Box) -> None:
    """Push a version of the bundled model, which serves after a restart of the service, too."""
    box.run("edge-agent demo --seconds 5")
    box.run("edge-agent keygen /root/push.key")
    box.run("install -D -m 644 /root/push.key.pub /etc/edge-agent/trust.d/push.pub")
    bundled = f"{HOME}/current/lib/python3*/site-packages/edge_agent/_bundled/models/{MODEL}"
    box.run(f"cp -r {bundled} /root/{MODEL}")
    box.run(f"sed -i 's/^version = .*/version = \"{PUSHED}\"/' /root/{MODEL}/model.toml")
    box.run(f"edge-agent push /root/{MODEL} --device edge-01 --key /root/push.key --until live")
    box.run(f"systemctl restart {UNIT}")
    has_model(box, "pushed, and restarted", PUSHED)


def has_model(box: Box, what: str, version: str) -> None:
    """See which version of the model gives results."""
    expect(what, box.results()["model"], f"{MODEL}@{version}")
    say(f"ok   {what}: results by {MODEL}@{version}")


def is_installed(box: Box) -> None:
    """Install a package, push to it, upgrade it, roll back what was pushed."""
    (box.root / "etc/edge-agent").mkdir()
    (box.root / "etc/edge-agent/config.toml").write_text(TRUSTING)
    box.run("dpkg -i /root/first.deb")
    dpkg(box, FIRST)
    box.serves("installed from a package", FIRST)
    box.has_completion()
    first = box.results()["model"].split("@")[1]
    is_pushed_to(box)
    box.run("dpkg -i /root/second.deb")
    dpkg(box, SECOND)
    box.serves("upgraded", SECOND)
    has_model(box, "upgraded", PUSHED)
    box.run(f"edge-agent rollback {MODEL} --device edge-01")
    has_model(box, "rolled back", first)


def is_beside_others(box: Box) -> None:
    """Downgrade it, and install a bundle beside dpkg."""
    box.run("dpkg -i /root/first.deb")
    dpkg(box, FIRST)
    box.serves("downgraded", FIRST)
    box.run("edge-agent install --offline /root/second.bundle --image")
    box.serves("a bundle beside dpkg, as image", SECOND, image=True)
    box.run("dpkg -i /root/second.deb")
    box.serves("an image stays one", SECOND, image=True)


def is_left_off(box: Box) -> None:
    """Upgrade it where somebody has disabled and stopped the service."""
    box.run(f"systemctl disable --now {UNIT}")
    said = box.run("dpkg -i /root/second.deb")
    expect("a word on the service", "the service stays disabled" in said, True)
    dpkg(box, SECOND)
    state = box.run(f"systemctl is-enabled {UNIT}; systemctl is-active {UNIT}", check=False)
    expect("the service", state.split(), ["disabled", "inactive"])
    box.run(f"systemctl enable --now {UNIT}")
    box.serves("upgraded where it was disabled, and enabled", SECOND)


def is_removed(box: Box, before: set[str]) -> None:
    """Remove and purge it: what is left then is said."""
    said = box.run("dpkg -r edge-agent")
    expect("settings", box.run("cat /etc/edge-agent/config.toml"), TRUSTING.strip())
    # What dpkg itself keeps until a purge, and the user.
    known = {"/var/lib/dpkg", "/var/cache/debconf", *re.findall(r"/[\w/.-]+(?= \()", said)}
    known |= {"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow"}
    expect("left and not said", left(box, before, known), set())
    say(f"ok   removed: {said.splitlines()[-1]}")
    box.run("dpkg -P edge-agent")
    known = {"/var/lib/dpkg", "/var/cache/debconf"}
    expect("left after a purge", left(box, before, known), set())
    expect("its user", box.run("getent passwd edge-agent", check=False), "")
    say("ok   purged; nothing is left")


def left(box: Box, before: set[str], known: set[str]) -> set[str]:
    """List what was not there before, but for what lies in known places."""
    new = box.tree() - before
    return {
        path
        for path in new
        if not any(path == each or path.startswith(f"{each}/") for each in known)
    }


def go_through(box: Box, *, brief: bool) -> None:
    """Do everything, in order; *brief*: without downgrade and images."""
    box.machine.boot()
    try:
        before = box.tree()
        is_installed(box)
        said = box.run("edge-agent install --previous")
        expect("a word on dpkg", f"dpkg has {VERSIONS[SECOND]}" in said, True)
        box.serves("gone back beside dpkg", FIRST)
        box.run("edge-agent install --previous")
        status, said = box.machine.fails("edge-agent uninstall")
        expect("status and lines of uninstall", (status, len(said.splitlines())), (2, 1))
        say(f"ok   {said}")

        status, said = box.machine.fails("dpkg -i /root/bad.deb")
        expect("exit status of dpkg", status != 0, True)
        box.serves("a version that does not start", SECOND)
        is_left_off(box)
        if not brief:
            is_beside_others(box)
        is_removed(box, before)
    except BaseException:
        print(box.run(f"journalctl -u {UNIT} -n 40 --no-pager", check=False))
        raise
    finally:
        box.machine.halt()


if __name__ == "__main__":
    sys.exit(try_bundles(go_through, packages, __doc__))
