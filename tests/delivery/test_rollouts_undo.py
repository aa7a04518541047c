"""What an aborted roll-out takes back on a device: what it has installed itself, nothing else.

The device's roll-outs, ledger, store and receiving side; what serves is what the store points to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.errors import ModelError
from edge_agent.delivery.plan import Gate, Plan, Wave, seal
from edge_agent.delivery.receive.admission import DeviceIdentity
from edge_agent.delivery.receive.followed import Presence
from edge_agent.delivery.receive.rollouts import Rollouts
from edge_agent.delivery.receive.router import Router
from edge_agent.delivery.receive.transfer import Drawing
from edge_agent.delivery.rollout.ledger import Candidate, Ledger
from edge_agent.models.packages.keys import TrustedKeys
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.pointers import Trial
from edge_agent.models.store.store import Store
from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.payloads import iso
from edge_agent.mqtt.requests import Later
from tests.helpers.push import model_folder

TRANSFER, OTHER = "a" * 32, "b" * 32
HOUR = 3600


class Device:
    """A device on which version 1 serves, and one roll-out of version 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for version in ("1", "2"):
            model_folder(folder / "models" / version, version)
        (folder / "trust").mkdir()
        self.store = Store(folder / "state")
        self.store.activate("level", "1")
        self.words: list[dict[str, Any]] = []
        self.went_back: list[str] = []
        self.full = False
        """Whether the disk takes nothing more."""
        self.unsigned = True
        """Whether it follows what no key has signed."""
        now = time.time()
        self.plan = Plan(
            id="level-2",
            transfer=TRANSFER,
            name="level",
            version="2",
            created=iso(int(now * 1e9)),
            expires=iso(int((now + 10 * HOUR) * 1e9)),
            waves=(Wave(devices=("other",)), Wave()),
            gate=Gate(),
            on_failure="stop",
            spread_s=0,
            serial=1,
            time=iso(int(now * 1e9)),
            by="tests",
            state="running",
            wave=1,
        )
        self.start()

    def start(self) -> None:
        """Start, as after a kill: what is not on the disk is lost."""
        catalog = Catalog(self.store, models_dirs=(self.folder / "models",))
        self.ledger = Ledger(self.store, catalog, self._hear, lambda: None)
        identity = DeviceIdentity(
            device="edge-01",
            profile="generic",
            here=(),
            groups=tuple,
            trusted=lambda: TrustedKeys([self.folder / "trust"]),
            allow_unsigned=lambda: self.unsigned,
            quota_bytes=lambda: 2**24,
            pinned=tuple,
            credible=lambda: True,
        )
        drawing = Drawing("edge/@package", lambda _t: True, lambda _t: None, lambda _why: False)
        self.router = Router(
            self.store, catalog, identity, self.ledger, drawing, submit=self.ledger.add
        )
        self.rollouts = Rollouts(
            self.folder / "rollouts.json",
            self.router,
            say=lambda word: self.words.append(dict(word)),
            stop=self.ledger.cancel_transfer,
            rollback=self._roll_back,
            health=lambda: "ok",
            presence=Presence(lambda _t: True, (), lambda _t: None),
        )

    def _hear(self, transfer: str, says: Any) -> bool:
        self.rollouts.heard(transfer, says)
        return True

    def _roll_back(self, name: str, version: str, why: str) -> None:
        if self.full:
            raise ModelError("level: pointers.json: no space left on the device")
        if self.store.pointers(name).live == version:
            self.went_back.append(why)
            self.store.rollback(name)
        else:
            self.store.withdraw(name, version)

    def hear(self, **changes: Any) -> None:
        """Hear the plan, in a new state; what is due within the hour is done."""
        self.plan = replace(self.plan, serial=self.plan.serial + 1, **changes)
        topic = f"edge/@rollout/{self.plan.id}"
        message = ReceivedMessage(topic, seal(self.plan, None), retained=True, response_topic=None,
                                  correlation=None, ack=lambda: None)  # fmt: skip
        self.rollouts.take((self.plan.id,), message)
        self.wait()

    def wait(self) -> None:
        """Let an hour go by."""
        for minute in range(60):
            self.rollouts.tick(time.monotonic() + minute * 60)

    def push(self, transfer: str, *, until: str = "live") -> Candidate:
        """Install version 2 from a package in a transfer, up to a phase."""
        candidate = Candidate("level", "2", transfer)
        self.ledger.add(candidate)
        self.ledger.publish(candidate, "verifying")
        for phase in ("preparing", "trial", "shadow"):
            self.ledger.enter(candidate, phase)
            if phase == until:
                return candidate
        self.store.activate("level", "2", watched=Trial("2", "probation", time.time()))
        self.ledger.advance(candidate, "probation")
        self.ledger.publish(candidate, "probation")
        if until == "live":
            self.ledger.clear_mark("level", "2")
            self.ledger.finish(candidate, "live", None)
        return candidate

    @property
    def live(self) -> str | None:
        return self.store.pointers("level").live

    @property
    def state(self) -> Any:
        return self.words[-1]["state"]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """Give a device that has not heard of the roll-out."""
    return Device(tmp_path)


@pytest.mark.parametrize("phase", ["preparing", "trial", "shadow"])
@pytest.mark.parametrize("transfer", [TRANSFER, OTHER])
def test_what_is_pushed_after_an_abort_stays(device: Device, phase: str, transfer: str) -> None:
    """Within a minute it was rolled back "by command", which nobody had given."""
    device.hear()
    candidate = device.push(TRANSFER, until=phase)
    device.hear(state="aborted", why="by me")
    assert candidate.canceled == "the roll-out was aborted"
    assert device.state == phase, "a start would try it again"
    device.ledger.finish(candidate, "rejected", candidate.canceled)
    assert (device.state, device.words[-1]["why"]) == ("aborted", "by me")
    device.push(transfer)
    device.wait()
    device.hear(back=True)
    assert (device.live, device.state, device.went_back) == ("2", "aborted", [])


@pytest.mark.parametrize("phase", ["preparing", "trial", "shadow"])
def test_no_start_installs_what_it_has_called_aborted(device: Device, phase: str) -> None:
    """A box that ended within 30 ms of that word installed it, and said "aborted" all the same."""
    device.hear()
    device.push(TRANSFER, until=phase)
    device.hear(state="aborted", why="by me")
    device.start()
    assert device.state != "aborted"
    assert not device.rollouts.allows(TRANSFER), "it waits for its plan"
    candidate = Candidate("level", "2", TRANSFER)
    device.ledger.add(candidate)
    device.hear()
    assert candidate.canceled == "the roll-out was aborted"
    device.ledger.finish(candidate, "rejected", candidate.canceled)
    assert (device.live, device.state, device.words[-1]["why"]) == ("1", "aborted", "by me")


def own_push_before_its_wave(device: Device) -> None:
    """Install what the roll-out would install later."""
    device.hear(wave=0)
    device.push(TRANSFER)


def own_push_on_probation(device: Device) -> None:
    """Install what the roll-out finds on probation."""
    device.hear(wave=0)
    device.push(TRANSFER, until="probation")
    device.hear(wave=1)


def own_push_while_the_package_is_drawn(device: Device) -> None:
    """Install the version from another package; the roll-out finds it there."""
    device.hear()
    device.push(OTHER)
    device.ledger.status.publish(TRANSFER, "live")


def own_push_after_a_rollback(device: Device) -> None:
    """Take back what the roll-out has installed, and install it by oneself."""
    device.hear()
    device.push(TRANSFER)
    device.store.rollback("level")
    device.rollouts.look()
    device.rollouts.tick(time.monotonic())
    assert device.words[-1]["why"] == "level@1 serves again"
    device.push(OTHER)


@pytest.mark.parametrize(
    "install",
    [
        own_push_before_its_wave,
        own_push_on_probation,
        own_push_while_the_package_is_drawn,
        own_push_after_a_rollback,
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_what_others_installed_is_not_taken_back(
    device: Device, install: Callable[[Device], None], restarted: bool
) -> None:
    """A roll-out that was aborted with `--back` took a version for its own because it serves."""
    install(device)
    if restarted:
        device.start()
    device.hear(state="aborted", back=True)
    assert (device.live, device.went_back) == ("2", [])


@pytest.mark.parametrize("until", ["probation", "live"])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_it_has_installed_is_taken_back_with_the_reason(
    device: Device, until: str, restarted: bool
) -> None:
    """The model's topic and the log said "by command"."""
    device.hear()
    device.push(TRANSFER, until=until)
    if restarted:
        device.start()
    device.hear(state="aborted", back=True, why="by me")
    assert (device.live, device.state) == ("1", "rolled-back")
    assert device.went_back == ["roll-out level-2 was aborted: by me"]


def test_a_full_disk_delays_the_way_back(device: Device) -> None:
    """The version stayed live for good, though there was room a minute later."""
    device.hear()
    device.push(TRANSFER)
    device.full = True
    device.hear(state="aborted", back=True)
    assert (device.live, device.state) == ("2", "live")
    assert device.words[-1]["why"].startswith("did not go back: level: pointers.json: no space")
    device.full = False
    device.rollouts.tick(time.monotonic() + 2 * HOUR)
    assert (device.live, device.state) == ("1", "rolled-back")


def test_what_a_kill_kept_it_from_saying_is_still_its_own(device: Device) -> None:
    """The version had gone live and was on probation, and the roll-out still knew of shadow."""
    device.hear()
    device.push(TRANSFER, until="shadow")
    mark = Trial("2", "probation", time.time())
    device.store.activate("level", "2", watched=mark)
    device.start()
    resumed = Candidate("level", "2", TRANSFER, phase="preparing", interrupted=mark)
    device.ledger.add(resumed)
    device.hear(state="aborted")
    assert (device.live, device.state) == ("2", "probation")
    device.hear(back=True)
    assert (device.live, device.state) == ("1", "rolled-back")


def test_what_another_push_replaces_counts_against_no_gate(device: Device) -> None:
    """It counted as rolled back, and a whole fleet went back from a version that was good."""
    device.hear()
    candidate = device.push(TRANSFER, until="probation")
    device.store.activate("level", "3", watched=Trial("3", "probation", time.time()))
    device.ledger.end_replaced(candidate, "3")
    why = "replaced by 3 before its probation was over"
    assert (device.state, device.words[-1]["why"]) == ("superseded", why)
    device.hear(state="aborted", back=True)
    assert (device.live, device.state, device.went_back) == ("3", "superseded", [])


def test_settings_whose_key_was_removed_before_their_time_are_rejected(device: Device) -> None:
    """They were carried out all the same: after a spread of any length, or another probation."""
    applied: list[Any] = []

    def configure(settings: Any, _mark: str) -> Later:
        applied.append(settings)
        return Later("")

    device.rollouts.configure = configure
    settings = {"door": {"threshold": 0.4}}
    device.hear(settings=settings, name="", version="", transfer="", spread_s=10**7)
    device.unsigned = False
    device.rollouts.tick(time.monotonic() + 10**7)
    assert (applied, device.state) == ([], "rejected")
    assert "signed by no key that is trusted here" in device.words[-1]["why"]


def test_a_kill_while_it_goes_back_does_not_leave_it_live(device: Device) -> None:
    """It said "live" for ever, and the older version served."""
    device.hear()
    device.push(TRANSFER)
    device.store.rollback("level")
    device.start()
    device.hear(state="aborted", back=True)
    assert (device.live, device.state) == ("1", "rolled-back")


def test_the_silence_of_a_dead_connection_is_no_sign_that_a_plan_is_gone() -> None:
    """After ten seconds of it, older settings took the place of newer ones."""
    granted, asked = set[str](), list[list[str]]()

    def ask(topics: list[str]) -> bool:
        asked.append(topics)
        return True

    presence, now = Presence(ask, granted, lambda _t: None), time.monotonic()
    presence.heard("newer", "edge/@rollout/newer")
    presence._heard["newer"] = "edge/@rollout/newer", now - 60
    presence.heard("older", "edge/@rollout/older")
    assert presence.lies("newer", "older", now) is None
    assert presence.lies("newer", "older", now + 11) is None
    assert len(asked) == 2, "once more"
    granted.add("edge/@rollout/newer")
    assert presence.lies("newer", "older", now + 12) is None
    assert presence.lies("newer", "older", now + 22) is False
