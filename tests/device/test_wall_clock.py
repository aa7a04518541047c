"""A clock that has not been set, and one that jumps."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edge_agent import BUILD_DATE
from edge_agent.core.flight_recorder import FILE, Recorder
from edge_agent.device import wall_clock
from edge_agent.device.wall_clock import WallClock
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings, check_account

BUILT = int(BUILD_DATE.timestamp()) * 10**9
HOUR = 3600 * 10**9
Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


class Hands:
    """A clock that a test sets."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.set = False

    def over(self, state: Path) -> WallClock:
        return WallClock(str(state), now=lambda: self.now, is_set=lambda: self.set)


def test_a_time_before_this_version_was_made_is_not_credible(tmp_path: Path) -> None:
    """1970, where a box without a battery wakes up, and all until the day of the build."""
    hands = Hands(12 * 10**9)
    wall = hands.over(tmp_path)
    assert not wall.credible()
    assert not wall.credible(BUILT - 1)
    assert wall.credible(BUILT)
    hands.now = BUILT + HOUR
    assert wall.credible()
    assert not wall.credible(12 * 10**9), "what was read before stays as wrong as it was"


def test_a_time_before_the_end_of_the_last_run_is_not_credible(tmp_path: Path) -> None:
    """The state folder remembers when it was last written."""
    (tmp_path / FILE).touch()
    ended = BUILT + 1000 * HOUR
    os.utime(tmp_path / FILE, ns=(ended, ended))
    hands = Hands(BUILT + HOUR)
    wall = hands.over(tmp_path)
    assert not wall.credible()
    assert wall.credible(ended)


def test_the_system_is_believed_when_it_says_that_the_clock_is_set(tmp_path: Path) -> None:
    """Then it was the last run whose clock was ahead; asked for once a second at most."""
    (tmp_path / FILE).touch()
    ended = BUILT + 1000 * HOUR
    os.utime(tmp_path / FILE, ns=(ended, ended))
    hands = Hands(BUILT + HOUR)
    hands.set = True
    wall = hands.over(tmp_path)
    assert wall.credible()
    assert wall.credible(BUILT + 2 * HOUR)
    assert not wall.credible(BUILT), "read before the clock was set"


def test_a_clock_that_began_behind_the_last_run_is_behind_until_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours behind it passes the end of that run after two hours, and is no better then."""
    monkeypatch.setattr(wall_clock, "BOOT_SECONDS", 0.0)
    hands = Hands(BUILT + HOUR)
    assert not hands.over(tmp_path).is_behind()
    (tmp_path / FILE).touch()
    ended = BUILT + 3 * HOUR
    os.utime(tmp_path / FILE, ns=(ended, ended))
    wall = hands.over(tmp_path)
    assert wall.is_behind()
    hands.now = ended + HOUR
    assert wall.credible()
    assert wall.is_behind()
    hands.set = True
    assert not wall.is_behind()


def test_a_clock_that_goes_on_from_the_last_shutdown_decides_nothing_of_what_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year later, what had expired long ago was carried out in the first seconds."""
    monkeypatch.setattr(wall_clock, "BOOT_SECONDS", math.inf)
    recorder = Recorder()
    recorder.open(str(tmp_path))
    recorder.close()
    ended = BUILT + 1000 * HOUR
    os.utime(tmp_path / FILE, ns=(ended, ended))
    hands = Hands(ended + time.monotonic_ns() + 5 * 10**9)
    assert not hands.over(tmp_path).may_be_behind(), "the same boot"
    page = (tmp_path / FILE).read_bytes()
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    (tmp_path / FILE).write_bytes(page.replace(boot, b"0" * len(boot)))
    os.utime(tmp_path / FILE, ns=(ended, ended))
    assert hands.over(tmp_path).may_be_behind()
    recorder.open(str(tmp_path))
    recorder.close()
    wall = hands.over(tmp_path)
    assert wall.may_be_behind(), "for a second run of this boot, too"
    assert wall.credible(), "what is too old by it is too old"
    hands.set = True
    assert not wall.may_be_behind()
    hands.set, hands.now = False, hands.now + 100 * HOUR
    assert not hands.over(tmp_path).may_be_behind(), "a clock of its own"
    monkeypatch.setattr(wall_clock, "BOOT_SECONDS", 0.0)
    for ahead, behind in ((-HOUR, True), (-HOUR // 120, False), (HOUR, False)):
        hands.now = ended + ahead
        os.utime(tmp_path / FILE, ns=(hands.now, hands.now))  # the run before in this boot
        assert hands.over(tmp_path).is_behind() is behind


# The agent


@pytest.fixture
def set_clock(tmp_path: Path) -> tuple[dict[str, str], Callable[[str], None]]:
    """Give the environment of a process whose wall clock a test sets, by libfaketime.

    Only the wall clock: the monotonic one goes on, as it does when a clock is set.
    """
    if not FAKETIME:
        pytest.skip("libfaketime is not installed")
    place = tmp_path / "clock"

    def put(what: str) -> None:
        place.with_suffix(".new").write_text(f"{what}\n")
        place.with_suffix(".new").replace(place)

    environ = {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_TIMESTAMP_FILE": str(place),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        "TZ": "UTC",
    }
    return environ, put


def seconds_to(when: datetime) -> str:
    """Give what libfaketime adds to the clock to have it show *when*."""
    return f"{(when - datetime.now(UTC)).total_seconds():+.0f}"


def test_a_clock_beyond_2262_is_named(
    set_clock: tuple[dict[str, str], Callable[[str], None]],
) -> None:
    """Python ends there: no traceback, and a status with which the service is started again."""
    environ, put = set_clock
    put("@2300-01-01 00:00:00")
    for command in ("run", "profile"):
        said = subprocess.run(
            [sys.executable, "-m", "edge_agent", command],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 1
        assert said.stderr.count("\n") == 1
        assert "beyond the year 2262" in said.stderr


def test_a_box_without_a_clock_takes_the_times_of_its_sensors(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    tmp_path: Path,
    set_clock: tuple[dict[str, str], Callable[[str], None]],
) -> None:
    """Two hours behind, and no network to set it by: each was "in the future", and none alarmed."""
    environ, put = set_clock
    put("-7200")
    state = tmp_path / "agent" / "state"
    state.mkdir(parents=True)
    (state / FILE).touch()
    pipeline = {"name": "p", "source": "mqtt:s/door?field=v&time=ts", "model": "readings"}
    listener = listen(broker.port)
    agent(agent_settings("box", broker.url, [pipeline]), environ=environ)

    listener.wait_state("edge/box/source/p", state="running")
    listener.publish("s/door", json.dumps({"v": 1.0, "ts": datetime.now(UTC).timestamp()}))
    listener.wait_for(lambda _: listener.on("edge/box/result/p"), "a result")
    assert listener.on("edge/box/result/p")[0]["values"] == {"v": 1.0}


def test_a_clock_that_is_set_while_the_agent_runs(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    tmp_path: Path,
    set_clock: tuple[dict[str, str], Callable[[str], None]],
) -> None:
    """From 1971 to now, and ten minutes back: results go on, and say how far to trust their time.

    Until the clock is credible results and health say `unset`, and commands are taken whatever
    their time; then neither, and an old command is refused. No age is wrong by the jumps.
    """
    environ, put = set_clock
    put(seconds_to(datetime(1971, 1, 1, tzinfo=UTC)))
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(50)])
    pipeline = {"name": "p", "source": f"file:{clip}?loop=1", "model": "light"}
    listener = listen(broker.port)
    models = [str(tmp_path / "models")]
    running = agent(
        agent_settings("box", broker.url, [pipeline], models_dirs=models), environ=environ
    )

    def results() -> list[dict[str, object]]:
        return listener.on("edge/box/result/p")

    def ask(request: str, sent: datetime) -> dict[str, object]:
        body = {"id": request, "time": sent.isoformat()}
        listener.publish("edge/box/in/command/ping", json.dumps(body).encode())
        answer: dict[str, object] = listener.wait_for(
            lambda _: listener.last(f"edge/box/reply/{request}"), "a reply"
        )
        return answer

    listener.wait_for(lambda _: len(results()) > 5, "results")
    assert all(result["clock"] == "unset" for result in results())
    assert str(results()[0]["time"]).startswith("1971-01-01T")
    health = listener.wait_for(lambda _: listener.last("edge/box/health"), "health")
    assert health["clock"] == "unset"
    assert any(why.startswith("clock: shows 1971-01-01 and has") for why in health["why"])
    assert "WARNING clock: shows 1971-01-01 and has not been set" in running.words()
    assert ask("early", datetime.now(UTC))["ok"] is True

    put("+3600")
    listener.wait_for(lambda _: "clock" not in results()[-1], "a credible time")
    listener.wait_for(
        lambda _: (h := listener.last("edge/box/health")) and "clock" not in h, "health to say so"
    )
    put("+3000")
    count = len(results())
    listener.wait_for(lambda _: len(results()) > count + 5, "results after the jump back")
    assert "clock" not in results()[-1]
    now = datetime.now(UTC) + timedelta(seconds=3000)
    assert ask("fresh", now)["ok"] is True
    old = ask("old", now - timedelta(seconds=300))
    assert old["ok"] is False
    assert "expired" in str(old["error"])
    ages = [result["timing"]["age_ms"] for result in results()]  # type: ignore[index]
    assert all(0 <= age < 60_000 for age in ages), "an age is not measured by the wall clock"
    health = listener.wait_for(lambda _: listener.last("edge/box/health"), "health")
    check_account(health["pipelines"]["p"])
    assert 0 < health["uptime_s"] < 3000
    assert running.stop() == 0
    assert time.time_ns() > BUILT
