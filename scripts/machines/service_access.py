"""Who gets in: the service to its broker by a password, and nobody to the service."""

from __future__ import annotations

import re

from nspawn import expect, say, wait
from service_box import DEVICE, KEYS, PLAIN_PORT, PORT, Box, lines


def takes_a_credential(box: Box) -> None:
    """Connect by name and password; the password is nowhere but in the credential store."""
    certified = (box.root / "etc/edge-agent/config.toml").read_text()
    plain = re.sub(r"(?m)^(cert_file|key_file).*\n", "", certified).replace(
        f'"mqtts://localhost:{PORT}"', f'"mqtts://{DEVICE}@localhost:{PLAIN_PORT}"'
    )
    (box.root / "etc/edge-agent/config.toml").write_text(plain)
    session = box.wait_status("online")["session"]
    box.run(
        "install -d -m 0700 /etc/credstore; umask 077; "
        "printf %s s3cret > /etc/credstore/broker.password"
    )
    box.restart()
    box.wait_status("online", session)
    box.results()
    expect("the password in the log", "s3cret" in box.journal(), False)
    (box.root / "etc/edge-agent/config.toml").write_text(certified)
    box.restart()
    say("ok   a password as a credential: online and results through a listener that asks for it")


def lets_in_who_may(box: Box) -> None:
    """Have everybody try what the access list does not give them."""
    topic = f"edge/{DEVICE}"
    command, model, offer = (f"{topic}/in/{it}" for it in ("command/ping", "model", "push/x/offer"))
    strangers = ("edge-02", "stranger", "viewer", "watcher")
    tries = [(who, goal) for who in strangers for goal in (command, model, offer)]
    tries += [("operator", model), ("operator", offer), ("deployer", command)]
    tries += [
        (who, goal)
        for who in (*strangers, "operator", "deployer")
        for goal in (f"{topic}/status", f"{topic}/result/line")
    ]
    words = {
        who: f'{{"id": "{who}", "state": "forged", "session": "", "reason": ""}}'
        for who in (*strangers, "operator", "deployer")
    }
    nosy = [
        *((who, f"{topic}/#") for who in ("edge-02", "stranger")),
        *((who, f"{topic}/result/#") for who in ("operator", "deployer")),
        *((who, f"{topic}/in/#") for who in ("viewer", "watcher", "operator", "edge-02")),
        ("viewer", f"{topic}/snapshot/#"),
    ]
    with box.recording(f"{topic}/in/#", "janitor") as asked, box.recording(f"{topic}/+") as said:
        reading = " & ".join(
            box.client("sub", who, goal, f"-W 4 >/root/nosy-{number}")
            for number, (who, goal) in enumerate(nosy)
        )
        writing = "; ".join(
            box.publish(who, goal, f"-m '{words[who]}' || true") for who, goal in tries
        )
        box.run(f"({reading} & wait) 2>/dev/null & sleep 1; ({writing}) 2>/dev/null; wait")
        box.run(box.publish("operator", command, f"-m '{words['operator']}'"))
        wait("what the operator may say", lambda: lines(asked), 30)
        expect("what came through", [line["id"] for line in lines(asked)], ["operator"])
        box.hear(f"{topic}/health", count=2)
        forged = [line for line in lines(said) if line.get("state") == "forged"]
        expect("forged words", forged, [])
    for number, (who, goal) in enumerate(nosy):
        heard = (box.root / f"root/nosy-{number}").read_text()
        expect(f"what {who} hears on {goal}", heard, "")
    code, _ = box.machine.fails(
        f"mosquitto_sub -h localhost -p {PORT} --cafile {KEYS}/ca.pem -t '#' -C 1 -W 5"
    )
    expect("without a certificate: refused", code not in {0, 27}, True)
    say(
        f"ok   the example access list: of {len(tries)} commands, pushes and forged words of "
        f"{len(words)} clients none came through, {len(nosy)} readers heard nothing; "
        "without a certificate no connection"
    )
