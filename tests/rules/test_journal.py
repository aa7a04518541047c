"""The journal: what a killed agent has left is published, whenever that becomes possible."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from edge_agent.config.rules import Action, Line, Rule
from edge_agent.config.settings import Pipeline, Settings
from edge_agent.models.store.agent_lock import hold_agent_lock
from edge_agent.rules.event import Event
from edge_agent.rules.evidence import Evidence
from edge_agent.rules.journal import Journal
from tests.helpers.mqtt_client import make_client
from tests.helpers.rule_engines import (
    Stage,
    box,
    dispatcher_without_broker,
    make_dispatcher,
    pipeline_of,
)
from tests.helpers.stranger import STRANGER
from tests.helpers.support import PATIENCE, Listener, Mosquitto, free_port, wait_until


def begun(**more: Any) -> dict[str, Any]:
    """Make the first message of an event that lasts."""
    return {
        "schema": 1,
        "device": "box",
        "session": "s",
        "pipeline": "p",
        "seq": 1,
        "time": "2026-11-21T03:26:50.123Z",
        "event": "s-1",
        "rule": "r",
        "when": "dwell",
        "state": "begin",
        "began": "2026-11-21T03:26:50.123Z",
        **more,
    }


def always(_time_ns: int) -> bool:
    """Find any time credible."""
    return True


def done_at_start(
    state: Path, broker: Mosquitto, heard: Listener, *events: Event, **keys: Any
) -> list[tuple[str, bytes]]:
    """Let an agent without pipelines start and stop; give what its actions have sent to sirens.

    *events* occur before there is a connection.
    """
    settings = Settings(device_id="box", state_dir=str(state), **keys)
    client = make_client(broker.url)
    dispatcher = make_dispatcher(client, settings)
    dispatcher.submit(*events)
    running = threading.Thread(target=client.run, daemon=True)
    running.start()
    wait_until(lambda: client.connected, "a connection")
    dispatcher.close()
    dispatcher.run()
    client.close()
    running.join()
    heard.wait_state("edge/box/status", state="offline")
    return [(h.topic, h.payload) for h in heard.heard if h.topic.startswith("siren/")]


def test_what_was_left_is_kept_through_runs_that_meet_no_broker(tmp_path: Path) -> None:
    """Killed while the broker is away, then stopped before it is back: begin and end are there."""
    Journal(tmp_path / "events.json", "box").add([(begun(), 1)])
    for _ in range(3):
        dispatcher = dispatcher_without_broker(tmp_path)
        dispatcher.close()
        dispatcher.run()
    left = [each for kind in Journal(tmp_path / "events.json", "box").left(always) for each in kind]
    assert [each["state"] for each in left] == ["begin", "end"]
    assert left[1]["why"] == "stopped"


def test_how_long_an_event_has_lasted_does_not_go_by_a_clock_that_is_set_meanwhile(
    tmp_path: Path,
) -> None:
    """It began before the clock of a box without a battery was set, and the power went after."""
    Journal(tmp_path / "events.json", "box").add([(begun(began="1970-01-01T00:00:09.000Z"), 0)])
    _, [end] = Journal(tmp_path / "events.json", "box").left(always)
    assert end["state"] == "end"
    assert 0 <= end["seconds"] < 60


def test_the_end_that_a_start_makes_says_whether_its_own_time_can_be_right(tmp_path: Path) -> None:
    """It had come from 1970 without a word, or said `unset` of a time that was right."""
    Journal(tmp_path / "events.json", "box").add([(begun(), 0)])
    _, [end] = Journal(tmp_path / "events.json", "box").left(lambda _: False)
    assert end["clock"] == "unset"
    Journal(tmp_path / "later.json", "box").add([(begun(clock="unset"), 0)])
    _, [end] = Journal(tmp_path / "later.json", "box").left(always)
    assert "clock" not in end


@pytest.mark.parametrize("again", [False, True])
def test_what_a_begin_has_switched_on_is_switched_off_after_a_kill(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], again: bool
) -> None:
    """The end that the next start publishes is one to its rule's actions, unless it holds again."""
    Journal(tmp_path / "events.json", "box").add([(begun(), 1)])
    off = Action(publish="siren/{pipeline}", payload="OFF", on="end")
    rule = Rule(name="r", when="dwell", do=(off,))
    pipeline = Pipeline(name="p", source="dir:.", model="m", rules=(rule,))
    settings = Settings(device_id="box", state_dir=str(tmp_path), pipelines=(pipeline,))
    heard = listen(broker.port, "#")
    client = make_client(broker.url)
    dispatcher = make_dispatcher(client, settings)
    if again:
        dispatcher.submit(Event("session-1", "r", "dwell", "p", "begin", 1, 0, 0, {}))
        dispatcher.step()
    running = threading.Thread(target=client.run, daemon=True)
    running.start()
    wait_until(lambda: client.connected, "a connection")
    dispatcher.close()
    dispatcher.run()
    client.close()
    running.join()
    heard.wait_state("edge/box/status", state="offline")
    sent = [each.payload for each in heard.heard if each.topic == "siren/p"]
    assert sent == ([] if again else [b"OFF"])
    states = [each["state"] for each in heard.on("edge/box/event/p")]
    assert states == [*(["begin"] * again), "begin", "end"]


@pytest.mark.parametrize("away", [False, True])
def test_what_a_rule_has_switched_on_is_switched_off_after_a_kill_though_the_rule_is_gone(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], away: bool
) -> None:
    """It came by `configure` for this run only, or was renamed; *away*: a run meets no broker."""
    do = tuple(
        Action(publish="siren/{rule}", payload=on.upper(), on=on, qos=1) for on in ("begin", "end")
    )
    killed = dispatcher_without_broker(tmp_path)
    for number in (1, 2):
        killed.submit(
            Event(f"s-{number}", f"r{number}", "dwell", "p", "begin", 1, 0, 0, {}, actions=do)
        )
    killed.submit(Event("s-2", "r2", "dwell", "p", "end", 1, 0, 0, {}, actions=do))
    assert [path.stat().st_mode & 0o077 for path in tmp_path.glob("events.*")] == [0]
    if away:
        waiting = dispatcher_without_broker(tmp_path)
        waiting.close()
        waiting.run()
    sent = done_at_start(tmp_path, broker, listen(broker.port, "#"))
    assert sorted(sent) == [("siren/r1", b"END"), ("siren/r2", b"END")]
    assert "END" not in (tmp_path / "events.json").read_text()


def test_what_holds_again_for_another_label_keeps_only_its_own_on(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """The light of a label stayed on for ever, where the rule was true again of another one."""
    do = (Action(publish="siren/{label}", payload="OFF", on="end", qos=1),)
    killed = dispatcher_without_broker(tmp_path)
    for number, label in enumerate(("red", "green")):
        facts = {"label": label}
        killed.submit(Event(f"s-{number}", "r", "class", "p", "begin", 1, 0, 0, facts, actions=do))
    again = Event("s-2", "r", "class", "p", "begin", 1, 0, 0, {"label": "green"}, actions=do)
    heard = listen(broker.port, "#")
    assert done_at_start(tmp_path, broker, heard, again) == [("siren/red", b"OFF")]


def test_an_end_that_names_its_event_is_told_though_the_rule_is_true_again(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """Who kept a list of those that dwell had some in it forever; the present one stays on."""
    do = (Action(publish="siren/r", payload="{event} {state}", on="all", qos=1),)
    killed = dispatcher_without_broker(tmp_path)
    steps: list[tuple[str, Literal["begin", "end"]]]
    steps = [("s-0", "begin"), ("s-1", "begin"), ("s-0", "end")]
    for name, state in steps:
        killed.submit(Event(name, "r", "dwell", "p", state, 1, 0, 0, {}, 1, actions=do))
    again = Event("s-2", "r", "dwell", "p", "begin", 1, 0, 0, {}, 1, actions=do)
    rule = Rule(name="r", when="anomaly", do=do)
    pipeline = Pipeline(name="p", source="dir:.", model="m", rules=(rule,))
    heard = listen(broker.port, "#")
    sent = done_at_start(tmp_path, broker, heard, again, pipelines=(pipeline,))
    told = [payload.decode() for _, payload in sent]
    assert told[:3] == ["s-0 end", "s-1 end", "s-2 begin"]
    assert set(told[3:]) <= {"s-2 begin", "s-2 end"}


def test_a_begin_is_told_once_where_the_end_causes_nothing(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """What a kill has cut off repeats no message of the event that is there now."""
    do = (Action(publish="siren/r", payload="{event}", qos=1),)
    killed = dispatcher_without_broker(tmp_path)
    killed.submit(Event("s-0", "r", "anomaly", "p", "begin", 1, 0, 0, {}, 1, actions=do))
    again = Event("s-2", "r", "anomaly", "p", "begin", 1, 0, 0, {}, 1, actions=do)
    pipeline = Pipeline(
        name="p", source="dir:.", model="m", rules=(Rule(name="r", when="anomaly", do=do),)
    )
    heard = listen(broker.port, "#")
    sent = done_at_start(tmp_path, broker, heard, again, pipelines=(pipeline,))
    assert sent == [("siren/r", b"s-2")]


def test_what_is_to_be_switched_off_while_the_broker_is_away_is_so_after_a_restart(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """A clean stop ends what goes on; the message that says so to a siren waits for the broker."""
    do = (Action(publish="siren/{rule}", payload="OFF", on="end", qos=1, retain=True),)
    stopped = dispatcher_without_broker(tmp_path)
    for state in ("begin", "end"):
        stopped.submit(Event("s-1", "r", "dwell", "p", state, 1, 0, 0, {}, actions=do))
    stopped.close()
    stopped.run()
    heard = listen(broker.port, "#")
    assert done_at_start(tmp_path, broker, heard) == [("siren/r", b"OFF")]
    heard.heard.clear()
    assert done_at_start(tmp_path, broker, heard) == []


@pytest.mark.parametrize("qos", [0, 1])
def test_what_waits_for_the_broker_to_be_switched_off_is_so_after_a_kill(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener], qos: Literal[0, 1]
) -> None:
    """The end was safe in the spool and so forgotten, and its message to the siren with it."""
    do = (Action(publish="siren/{rule}", payload="OFF", on="end", qos=1),)
    killed = dispatcher_without_broker(tmp_path)
    for state in ("begin", "end"):
        killed.submit(Event("s-1", "r", "dwell", "p", state, 1, 0, 0, {}, qos, actions=do))
        killed.step()
    kept = Journal(tmp_path / "events.json", "box")
    kept.left(always)
    assert [each["on"] for each in kept.due("s-1")] == ["end"]
    heard = listen(broker.port, "#")
    assert done_at_start(tmp_path, broker, heard) == [("siren/r", b"OFF")]
    heard.heard.clear()
    assert done_at_start(tmp_path, broker, heard) == []


def test_a_post_that_a_stop_cuts_short_is_made_at_the_next_start(tmp_path: Path) -> None:
    """A switch with a web server that is away for a moment stayed on."""
    do = (Action(http=f"http://127.0.0.1:{free_port()}/relay?turn=off", on="end"),)
    stopped = dispatcher_without_broker(tmp_path)
    posting = threading.Thread(target=stopped.actions.run)
    posting.start()
    for state in ("begin", "end"):
        stopped.submit(Event("s-1", "r", "dwell", "p", state, 1, 0, 0, {}, actions=do))
    stopped.step()
    stopped.close()
    stopped.run()
    posting.join()
    kept = Journal(tmp_path / "events.json", "box")
    kept.left(always)
    assert [each["http"] for each in kept.due("s-1")] == [do[0].http]


def test_a_cloned_card_ends_no_event_of_the_box_that_it_was_cloned_from(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """The siren of an alarm that went on was switched off by the second box."""
    do = (Action(publish="siren/{rule}", payload="OFF", on="end", qos=1),)
    first = dispatcher_without_broker(tmp_path, device="first")
    first.submit(Event("s-1", "r", "dwell", "p", "begin", 1, 0, 0, {}, actions=do))
    heard = listen(broker.port, "#")
    assert done_at_start(tmp_path, broker, heard) == []
    assert [each["state"] for each in heard.on("edge/first/event/p")] == ["begin"]
    assert heard.on("edge/box/event/p") == []


def test_what_a_power_cut_has_cut_off_takes_no_later_event_with_it(tmp_path: Path) -> None:
    """The half line stays by itself; what is written after it is read again."""
    path = tmp_path / "events.json"
    Journal(path, "box").add([(begun(), 1)])
    appended = tmp_path / "events.log"
    whole = appended.read_bytes()
    appended.write_bytes(whole + whole[: len(whole) // 2])
    Journal(path, "box").add([(begun(event="session-2"), 1)])
    fresh, _ = Journal(path, "box").left(always)
    assert [each["event"] for each in fresh] == [begun()["event"], "session-2"]


def test_what_a_kill_leaves_between_two_writes_counts_once(tmp_path: Path) -> None:
    """The whole state was written and the lines of before are still there: it is the newer one.

    An event that had ended had been ended once more, and totals had gone back.
    """
    path, appended = tmp_path / "events.json", tmp_path / "events.log"
    journal = Journal(path, "box")
    journal.add([(begun(), 1)], {"p": {"since": "1", "lines": {}}})
    before = appended.read_bytes()
    [end] = journal.add([(begun(state="end", seconds=1.0), 1)], {"p": {"since": "2", "lines": {}}})
    assert end is not None
    end.published_at = 5.0
    journal.close(4.0)
    assert appended.read_bytes() == b""
    appended.write_bytes(before)
    again = Journal(path, "box")
    assert again.totals["p"]["since"] == "2"
    fresh, ends = again.left(always)
    assert ([each["state"] for each in fresh], ends) == (["begin", "end"], [])


def test_totals_that_were_reset_stay_so_over_a_kill(tmp_path: Path) -> None:
    """It had been answered as done a second before it was written."""
    gate = Line(name="gate", points=((0.2, 0.5), (0.8, 0.5)))
    settings = Pipeline(name="p", source="dir:.", model="m", lines=(gate,))
    dispatcher = dispatcher_without_broker(tmp_path, pipelines=(settings,))
    dispatcher.engines.open(settings, apart=None)
    dispatcher.engines.totals.of("p").add("gate", "in", "a")
    dispatcher.engines.totals.save()
    assert dispatcher.reset("p")
    assert dispatcher.unsaved() == []
    again = dispatcher_without_broker(tmp_path, pipelines=(settings,))
    assert again.engines.totals.of("p").of(["gate"])["lines"] == {"gate": {"in": {}, "out": {}}}


@pytest.mark.parametrize("rules", [[], [{"name": "r", "when": "cross", "line": "gate"}]])
@pytest.mark.parametrize("frames", ["1/1", "2/3"])
def test_a_kill_loses_no_crossing(tmp_path: Path, rules: list[dict[str, Any]], frames: str) -> None:
    """Of a line without a rule, or of one whose rule tells earlier, those of the last second went.

    Whatever was counted when a result is handed on, the next run counts on from.
    """
    lines = {"gate": [(0.0, 0.5), (1.0, 0.5)]}
    settings = pipeline_of(None, lines, [{**each, "frames": frames} for each in rules])
    dispatcher = dispatcher_without_broker(tmp_path, pipelines=(settings,))
    stage = Stage()
    stage.engine = dispatcher.engines.open(settings, apart=None)
    totals = dispatcher.engines.totals.of(settings.name)
    for height in (*range(30, 75, 3), *range(72, 27, -3)):
        stage.show(box(50, height))
        again = dispatcher_without_broker(tmp_path, pipelines=(settings,))
        kept = again.engines.totals.of(settings.name)
        assert kept.of(["gate"])["lines"] == totals.of(["gate"])["lines"]
    assert totals.of(["gate"])["lines"]["gate"] == {"in": {"a": 1}, "out": {"a": 1}}


def test_what_is_not_durable_at_once_is_in_health(tmp_path: Path) -> None:
    """Something is in the file's place, as a file of root's was after a run as root."""
    journal = Journal(tmp_path / "events.json", "box")
    (tmp_path / "events.log").mkdir()
    journal.add([(begun(), 1)])
    (why,) = journal.problems()
    assert why.startswith(f"events: {tmp_path}/events.log: cannot be written: is a folder")
    assert [f"events: {each}" for each in journal.unsaved()] == [why]
    (tmp_path / "events.log").rmdir()
    journal.add([(begun(event="s-2"), 1)])
    assert journal.problems() == []


def test_a_disk_on_which_every_event_waits_is_in_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worn card takes seconds for each: only "use fewer rules" was said."""
    journal = Journal(tmp_path / "events.json", "box")
    for number in range(6):
        journal.add([(begun(event=f"session-{number}"), 1)])
    assert journal.problems() == []
    monkeypatch.setattr("edge_agent.rules.journal.SLOW_SECONDS", 0.0)
    [problem] = journal.problems()
    assert re.fullmatch(rf"events: the disk of {tmp_path} takes [\d.]+ s for a write, .+", problem)


def test_a_disk_that_hangs_while_the_state_is_rewritten_is_in_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events waited for it, health was well, and nothing named the disk."""
    monkeypatch.setattr("edge_agent.rules.journal.STUCK_SECONDS", 0.0)
    journal = Journal(tmp_path / "events.json", "box")
    journal.add([(begun(), 1)])
    hangs, goes_on, sync = threading.Event(), threading.Event(), os.fsync

    def hang(descriptor: int) -> None:
        hangs.set()
        assert goes_on.wait(PATIENCE)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    rewriting = threading.Thread(target=journal.close, args=(0.0,), daemon=True)
    rewriting.start()
    assert hangs.wait(PATIENCE)
    [problem] = journal.problems()
    assert problem.startswith(f"events: the disk of {tmp_path} takes ")
    goes_on.set()
    rewriting.join(PATIENCE)
    assert journal.problems() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can leave files to somebody else")
def test_a_run_as_root_leaves_files_to_the_owner_of_the_state_folder(tmp_path: Path) -> None:
    """The service could append no event later, and keep no picture, with health well."""
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, STRANGER, STRANGER)
    Journal(state / "events.json", "box").add([(begun(), 1)])
    evidence = Evidence(state / "evidence")
    evidence.keep("p", "s-1", b"jpeg", 10)
    made = [state / "events.log", state / "evidence", state / "evidence" / "p"]
    assert {path.stat().st_uid for path in made} == {STRANGER}
    with hold_agent_lock(state):
        (state / "flight").touch()
    assert {path.stat().st_uid for path in state.rglob("*")} == {STRANGER}
