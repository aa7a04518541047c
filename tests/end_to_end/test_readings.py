"""Readings without a model, over a real broker and a real serial line, through the whole agent."""

from __future__ import annotations

import json
import os
import time
import tty
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.bundled import bundled
from edge_agent.mqtt.payloads import seconds_of
from tests.helpers.small_models import loudness, write_manifest
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    check_account,
)
from tests.helpers.tiny_networks import node, save_onnx

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
DISCOVERY = "homeassistant/device/edge-agent_box/config"


def on(heard: Listener, topic: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many messages on a topic."""
    heard.wait_for(lambda all_: sum(h.topic == topic for h in all_) >= count, f"{count} on {topic}")
    return heard.on(topic)


def fridge(**rule: Any) -> dict[str, Any]:
    siren = {"publish": "siren/{pipeline}", "payload": "{rule} {value} {state}", "on": "all"}
    warm = {"name": "warm", "when": "value", "value": "temperature", "above": 8, "below": 7}
    return {
        "name": "fridge",
        "source": "mqtt:plant/fridge?time=t&gap_s=60",
        "model": "readings",
        "units": {"temperature": "°C"},
        "rules": [{**warm, "frames": "2/2", "do": [siren], **rule}],
    }


def test_a_sensor_that_reports_changes_need_not_say_again_that_it_is_warm(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """With `gap_s` silence means that nothing changes: `for_s` passes without another message.

    One that sends several rows at once is only gathering the next ones. Messages about something
    else, and another value that is not known, leave it so.
    """
    rule = {"name": "r", "when": "value", "value": "value", "above": 8, "frames": "1/1"}
    pipelines = [
        {"name": name, "source": f"mqtt:plant/{name}{more}", "model": "readings", **keys}
        for name, more, keys in (
            ("irregular", "", {"rules": [{**rule, "for_s": 0.5}]}),
            ("hasty", "?gap_s=60", {"rules": [{**rule, "for_s": 0.5}], "deadline_ms": 1e4}),
            ("refused", "?gap_s=60", {"rules": [{**rule, "for_s": 0.5}]}),
            ("null", "?gap_s=60&field=value", {"rules": [{**rule, "for_s": 0.5}]}),
            ("away", "?gap_s=60", {"rules": [{**rule, "for_s": 0.5}]}),
            ("gathered", "?gap_s=60&field=value&time=t", {"rules": [{**rule, "for_s": 0.5}]}),
            ("other", "?gap_s=60&field=value", {"rules": [{**rule, "for_s": 3.0}]}),
            ("beside", "?gap_s=60&field=value,h", {"rules": [{**rule, "for_s": 3.0}]}),
            ("changes", "?gap_s=60", {"rules": [{**rule, "for_s": 3.0}]}),
        )
    ]
    heard = listen(broker.port, "#")
    agent(agent_settings("box", broker.url, pipelines))
    for pipeline in pipelines:
        heard.wait_state(f"edge/box/source/{pipeline['name']}", state="running")
        now = time.time()
        gathered = json.dumps({"value": [1, 9], "t": [now - 1, now]})
        named: dict[Any, str] = {
            "gathered": gathered,
            "other": '{"value": 9}',
            "null": '{"value": 9}',
            "away": '{"value": 9}',
            "beside": '{"value": 9, "h": "unavailable"}',
        }
        said = named.get(pipeline["name"], "9")
        heard.publish(f"plant/{pipeline['name']}", said)
    heard.publish("plant/refused", "NaN")
    heard.publish("plant/null", '{"value": null}')
    heard.publish("plant/away", '{"value": "unavailable", "h": 40}')
    for _ in range(12):
        heard.publish("plant/other", '{"power": 3}')
    for name in ("changes", "other", "beside"):
        (begun,) = on(heard, f"edge/box/event/{name}", 1)
        assert (begun["state"], begun["value"]) == ("begin", 9)
    for name in ("irregular", "hasty", "refused", "null", "away", "gathered"):
        assert heard.on(f"edge/box/event/{name}") == []
    for health in heard.on("edge/box/health"):
        assert all("plant/refused" in why for why in health["why"] if why.startswith("pipeline"))


@pytest.mark.parametrize("field", ["", "field=t&"])
def test_a_sensor_that_does_not_know_its_only_value_every_other_time_alarms(
    broker: Mosquitto, listen: Listeners, agent: Agents, field: str
) -> None:
    """What says nothing else made a gap, after which the count of results began again."""
    pipeline = {
        "name": "p",
        "source": f"mqtt:plant/t?{field}gap_s=60",
        "model": "readings",
        "rules": [{"name": "hot", "when": "value", "value": "t", "above": 30}],
    }
    heard = listen(broker.port, "edge/#")
    running = agent(agent_settings("box", broker.url, [pipeline]))
    heard.wait_state("edge/box/source/p", state="running")
    for said in (50, "unavailable", 51, None):
        heard.publish("plant/t", json.dumps({"t": said}))
    heard.wait_state("edge/box/event/p", state="begin", value=51)
    assert running.stop() == 0


def test_a_value_that_is_never_a_number_is_in_health_until_it_is(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Of fields that the source names, and of values that a rule does; no other texts."""
    hot = {"name": "hot", "when": "value", "value": "t", "above": 30, "frames": "1/1"}
    named = {"name": "named", "source": "mqtt:plant/named?field=t,h", "model": "readings"}
    ruled = {"name": "ruled", "source": "mqtt:plant/ruled", "model": "readings", "rules": [hot]}
    heard = listen(broker.port, "#")
    running = agent(agent_settings("box", broker.url, [named, ruled]))
    for name in ("named", "ruled"):
        heard.wait_state(f"edge/box/source/{name}", state="running")
        for _ in range(3):
            heard.publish(f"plant/{name}", '{"t": "52,5", "h": 40, "state": "on"}')
        heard.wait_why(f"pipeline {name}: mqtt:plant/{name}")
    why = heard.wait_why("plant/ruled")["why"]
    assert [each.partition(": ")[2].partition(": ")[2] for each in why] == [
        "t: expected numbers, found '\"52,5\"'"
    ] * 2
    for name in ("named", "ruled"):
        heard.publish(f"plant/{name}", '{"t": 52.5, "h": 40, "state": "on"}')
    heard.wait_for(lambda _: heard.on("edge/box/health")[-1]["why"] == [], "health without it")
    (begun,) = on(heard, "edge/box/event/ruled", 1)
    assert (begun["state"], begun["value"]) == ("begin", 52.5)
    assert running.stop() == 0


def test_what_a_sensor_says_is_published_judged_and_shown(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """Each message gives its own values; a rule fires once with hysteresis, over a gap never."""
    settings = agent_settings("box", broker.url, [fridge()], homeassistant={"enabled": True})
    heard = listen(broker.port, "#")
    running = agent(settings)
    heard.wait_state("edge/box/source/fridge", state="running")
    heard.wait_state("edge/box/pipeline/fridge", threshold=None)
    start, sent = time.time() - 10_000, 0

    def say(at: float, **values: Any) -> None:
        nonlocal sent
        heard.publish("plant/fridge", json.dumps({**values, "t": start + at}))
        sent += 1

    def events(count: int) -> list[tuple[str, float]]:
        found = on(heard, "edge/box/result/fridge", sent)
        assert len(found) == sent
        told = on(heard, "edge/box/event/fridge", count)
        return [(each["state"], each["value"]) for each in told]

    say(0, temperature=4.5, energy_kwh=12345678.9)
    say(10, battery=97, note="text", door=True)
    say(20, temperature=9.0)
    for lonely in (1000, 2000, 3000):  # each of them after a gap: none has a second one beside it
        say(lonely, temperature=9.5)
    assert events(0) == []
    say(3010, temperature=9.25)
    say(3012, battery=96)  # says nothing of the temperature
    assert events(1) == [("begin", 9.25)]
    for at, degrees in enumerate((7.5, 9, 7.2, 8.5, 6.9)):
        say(3020 + at, temperature=degrees)
    assert events(1) == [("begin", 9.25)], "above 7 it goes on"
    say(3030, temperature=6.5)
    assert events(2) == [("begin", 9.25), ("end", 6.5)]
    for told in heard.on("edge/box/event/fridge"):
        assert (told["name"], told["unit"]) == ("temperature", "°C")
    first, second = heard.on("edge/box/result/fridge")[:2]
    assert first["values"] == {"temperature": 4.5, "energy_kwh": 12345678.9}
    assert second["values"] == {"battery": 97.0}
    assert first["model"] == "readings"
    assert "engine" not in first
    heard.wait_for(lambda all_: sum(h.topic == "siren/fridge" for h in all_) == 2, "both actions")
    said = [h.payload for h in heard.heard if h.topic == "siren/fridge"]
    assert said == [b"warm 9.25 begin", b"warm 6.5 end"]

    def entities(_: Any) -> dict[str, Any] | None:
        found = (heard.last(DISCOVERY) or {}).get("components", {})
        return found if "fridge_value:battery" in found else None

    shown = heard.wait_for(entities, "the values as entities")
    assert shown["fridge_value:temperature"]["unit_of_measurement"] == "°C"
    assert "unit_of_measurement" not in shown["fridge_value:battery"]
    assert not [key for key in shown if key.startswith("model_")]
    for bad in (b"", b"{", b"[1e999]", b'{"temperature": "warm", "t": 5}', b"\xff\x00"):
        heard.publish("plant/fridge", bad)
    health = heard.wait_why("pipeline fridge: mqtt:plant/fridge")
    assert health["models"] == {}
    check_account(health["pipelines"]["fridge"])
    say(3040, temperature=5)
    assert len(events(2)) == 2, "bad messages stop nothing"
    assert running.stop() == 0
    assert "Traceback" not in running.words()


def test_a_sensor_that_sends_a_minute_at_once_is_judged_second_by_second(
    tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """With a model and without: `for_s` by the times of the rows, and nothing over a gap."""
    folder = tmp_path / "models" / "same"
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [node("Identity", ["given"], ["same"])],
        [("given", "float32", (1, 1))],
        [("same", "float32", (1, 1))],
    )
    write_manifest(folder, "1", "regression", output={"labels": ["a"]})
    bounds = {"when": "value", "value": "a", "above": 8, "frames": "1/1"}
    rules = [{**bounds, "name": "long", "for_s": 6}, {**bounds, "name": "two", "frames": "2/2"}]
    pipelines = [
        {"name": model, "source": "mqtt:s?time=t&field=a&gap_s=3", "model": model, "rules": rules}
        for model in ("same", "readings")
    ]
    models = [str(tmp_path / "models")]
    heard = listen(broker.port)
    running = agent(agent_settings("box", broker.url, pipelines, models_dirs=models))
    for pipeline in pipelines:
        heard.wait_state(f"edge/box/source/{pipeline['name']}", state="running")
    start = round(time.time()) - 10_000

    def say(first: int, *values: int) -> None:
        times = [start + first + second for second in range(len(values))]
        heard.publish("s", json.dumps({"a": values, "t": times}))

    say(0, *[1] * 9, 9)
    say(100, 9, *[1] * 9)  # a gap
    say(110, 1, *[9] * 7, 1, 1)
    for name in ("same", "readings"):
        results = on(heard, f"edge/box/result/{name}", 30)
        seconds = [round(seconds_of(each["time"]) - start) for each in results]
        assert seconds == [*range(10), *range(100, 120)]
        told = [
            (
                each["rule"],
                each["state"],
                round(seconds_of(each["time"]) - start),
                each.get("seconds"),
            )
            for each in on(heard, f"edge/box/event/{name}", 4)
        ]
        assert told == [
            ("two", "begin", 112, None),
            ("long", "begin", 117, None),
            ("long", "end", 118, 1.0),
            ("two", "end", 119, 7.0),
        ]
    assert running.stop() == 0


def test_values_are_entities_before_they_come_and_over_a_restart(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """It came with the first reading, and missed that: unknown for the hour until the next."""
    heard = listen(broker.port, "#")
    running = agent(agent_settings("box", broker.url, [fridge()], homeassistant={"enabled": True}))

    def shown(_: Any = None) -> dict[str, Any]:
        components: dict[str, Any] = (heard.last(DISCOVERY) or {}).get("components", {})
        return components

    heard.wait_for(shown, "discovery")
    assert shown()["fridge_value:temperature"]["unit_of_measurement"] == "°C"

    # One that has come and is not named is not removed by a restart, with all that hangs on it.
    heard.wait_state("edge/box/source/fridge", state="running")
    heard.publish("plant/fridge", json.dumps({"battery": 97, "t": time.time()}))
    heard.wait_for(lambda _: "fridge_value:battery" in shown(), "the battery")
    running.stop()
    heard.heard.clear()
    running.restart()
    heard.wait_for(shown, "discovery")
    assert "fridge_value:battery" not in shown(), "listed without content it would be removed"


def test_any_sensor_gives_its_values_by_the_names_of_its_channels(
    tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """A serial line with a header, a file with texts and holes in it, and a bare number."""
    line, theirs = os.openpty()
    tty.setraw(theirs)
    table = tmp_path / "log.csv"
    table.write_text("when,flow,flow,level\nmon,1.5,2,\ntue,,,\nwed,2.5,3,7\n")
    pipelines = [
        {"name": "line", "source": f"serial:{os.ttyname(theirs)}", "model": "readings"},
        {"name": "file", "source": f"csv:{table}", "model": "readings"},
        {"name": "bare", "source": "mqtt:plant/bare", "model": "readings"},
        {"name": "plug", "source": "mqtt:plant/plug?field=e.power,e.volt", "model": "readings"},
    ]
    heard = listen(broker.port)
    running = agent(agent_settings("box", broker.url, pipelines))
    for name in ("line", "bare", "plug"):
        heard.wait_state(f"edge/box/source/{name}", state="running")
    os.write(line, b"half\nax,ay\n1,2\n3,4.25\n")
    heard.publish("plant/bare", "21.5")
    heard.publish("plant/bare", "[1, 2]")
    heard.publish("plant/plug", '{"e": {"power": 150, "volt": 230}}')
    heard.publish("plant/plug", '{"e": {"power": 50, "volt": null}}')
    for name, values in {
        "line": [{"ax": 1.0, "ay": 2.0}, {"ax": 3.0, "ay": 4.25}],
        "file": [{"flow[1]": 1.5, "flow[2]": 2.0}, {"flow[1]": 2.5, "flow[2]": 3.0, "level": 7.0}],
        "bare": [{"value": 21.5}, {"0": 1.0, "1": 2.0}],
        "plug": [{"e.power": 150.0, "e.volt": 230.0}, {"e.power": 50.0}],
    }.items():
        found = on(heard, f"edge/box/result/{name}", 2)
        assert [each["values"] for each in found] == values
    heard.wait_why("log.csv: line 3, column 'flow'")
    assert running.stop() == 0
    os.close(line)
    os.close(theirs)


def test_a_rule_on_a_column_whose_name_has_not_come_is_in_health(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """A device that sends its header only at its own start, and an agent that starts later."""
    line, theirs = os.openpty()
    tty.setraw(theirs)
    rule = {"name": "hot", "when": "value", "value": "temp", "above": 30}
    pipeline = {"name": "line", "source": f"serial:{os.ttyname(theirs)}", "model": "readings"}
    heard = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [{**pipeline, "rules": [rule]}]))
    heard.wait_state("edge/box/source/line", state="running")
    os.write(line, b"half\n21,40\n22,41\n")
    heard.wait_why("'temp' never acts with columns that have no names")
    os.write(line, b"temp,hum\n" + b"31,41\n" * 5)
    heard.wait_for(lambda _: heard.on("edge/box/event/line"), "the event")
    heard.wait_state("edge/box/health", state="ok")
    assert running.stop() == 0
    os.close(line)
    os.close(theirs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "file:clip.mp4"}, '.model: "readings" is for sensors; file:clip.mp4 gives'),
        ({"model": "readings@2"}, '"readings" is no model; alone, as model = "readings"'),
        ({"model": "readings:50,face:50"}, '"readings" is no model'),
        ({"units": {"t": 5}}, "units"),
        ({"input": {"window": 8}}, ".input.stats: is missing"),
        ({"input": {"hop": 8}}, ".input.window: is missing"),
        ({"input": {"window": 8, "stats": {"of": ["band:1-2"]}}}, ".input.rate_hz: is missing"),
        ({"input": {"windw": 8}}, "window"),
        ({"input": {}, "model": "face"}, '.input: is for model = "readings"'),
    ],
)
def test_what_readings_cannot_be_is_said(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """Wrong settings end with 2 and one line that names the key."""
    config = tmp_path / "config.toml"
    config.write_text(agent_settings("box", "mqtt://localhost:1", [{**fridge(), **change}]))
    done = call_cli("check", "--config", str(config))
    assert done.code == 2
    assert said in done.error


def test_a_model_may_not_be_called_readings_and_check_knows_the_values(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """The name is refused wherever a model comes from; a rule on no value of a file is noted."""
    folder = tmp_path / "models" / "readings"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(
        'name = "readings"\nversion = "1"\ntask = "raw"\nfile = "model.onnx"\n'
    )
    (folder / "model.onnx").write_bytes(b"")
    added = call_cli("describe", str(folder))
    assert "'readings' stands for no model in a pipeline; call this one otherwise" in added.error
    table = tmp_path / "log.csv"
    table.write_text("flow,level\n1.5,2\n")
    config = tmp_path / "config.toml"
    pipeline = {**fridge(), "source": f"csv:{table}"}
    config.write_text(agent_settings("box", broker.url, [pipeline]))
    done = call_cli("check", "--config", str(config))
    assert done.code == 0
    assert "rules[warm].value: 'temperature' has not come yet; there are flow, level" in done.out
    with wave.open(str(tmp_path / "hum.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    config.write_text(agent_settings("box", broker.url, [{**pipeline, "source": "wav:hum.wav"}]))
    done = call_cli("check", "--config", str(config))
    assert "gives 8000 results a second; set rate, or input.window and input.stats" in done.out
    tried = call_cli("try", f"csv:{table}", "readings")
    assert (tried.code, '"readings" is no model' in tried.error) == (2, True)


STATISTICS = ["rms", "peak", "kurtosis", "crest", "band:10-100", "band:1000-3200"]
# SciPy 1.17.1, by number of the window: of 2048 samples, hop 1024, 6400 Hz.
BY_SCIPY = {
    0: [0.5642385, 3.66, 0.4422238, 6.486618, 0.409971, 0.33691],
    60: [0.7837073, 5.24, 7.363077, 6.68617, 0.4190723, 0.6026575],
}


def test_statistics_of_the_bundled_bearing_are_those_of_scipy(
    tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """As published values, on which a rule fires once, and as the input of a model."""
    folder = tmp_path / "models" / "copy"
    folder.mkdir(parents=True)
    shape = (1, 1, len(STATISTICS))
    ends = [("given", "float32", shape)], [("same", "float32", shape)]
    save_onnx(folder / "model.onnx", [node("Identity", ["given"], ["same"])], *ends)
    windows: dict[str, Any] = {"channels": ["accel"], "window": 2048, "hop": 1024, "rate_hz": 6400}
    windows["stats"] = {"of": STATISTICS}
    taken = {**windows, "layout": "tc", "transform": "stats"}
    write_manifest(folder, "1", "regression", input=taken, output={"labels": STATISTICS})
    source = f"csv:{bundled('models')}/media/bearing.csv"
    worn = {"name": "worn", "when": "value", "value": "accel.kurtosis", "above": 4, "below": 2}
    pipelines: list[dict[str, Any]] = [
        {"name": "plain", "source": source, "model": "readings", "input": windows, "rules": [worn]},
        {"name": "copy", "source": source, "model": "copy"},
    ]
    heard = listen(broker.port)
    running = agent(
        agent_settings("box", broker.url, pipelines, models_dirs=[str(tmp_path / "models")])
    )
    for name, prefix in {"plain": "accel.", "copy": ""}.items():
        found = on(heard, f"edge/box/result/{name}", 61)
        for number, wanted in BY_SCIPY.items():
            values = found[number]["values"]
            assert values == {
                f"{prefix}{key}": pytest.approx(value, rel=1e-5)
                for key, value in zip(STATISTICS, wanted, strict=True)
            }
    heard.wait_state("edge/box/source/plain", state="ended")
    heard.wait_state("edge/box/event/plain", state="end", why="lost")  # with its source
    told = [each["state"] for each in heard.on("edge/box/event/plain")]
    assert told == ["begin", "end"]
    assert running.stop() == 0
    assert "Traceback" not in running.words()


def test_what_a_score_means_is_said_in_results_events_and_actions(
    tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """`label_above` is the label of what is above the threshold, and of nothing else."""
    loudness(tmp_path / "models" / "loud", window=1, label_above="speech")
    siren = {"publish": "siren/{label}", "payload": "{label} {score}"}
    rule = {"name": "any", "when": "anomaly", "frames": "1/1", "do": [siren]}
    pipeline = {"name": "hall", "source": "mqtt:hall/sound", "model": "loud", "rules": [rule]}
    heard = listen(broker.port, "#")
    running = agent(
        agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")])
    )
    heard.wait_state("edge/box/source/hall", state="running")
    for level in (50, 200):
        heard.publish("hall/sound", str(level))
    quiet, loud = [each["anomaly"] for each in on(heard, "edge/box/result/hall", 2)]
    assert quiet == {"score": 50.0, "threshold": 100.0, "anomalous": False}
    assert loud == {"score": 200.0, "threshold": 100.0, "anomalous": True, "label": "speech"}
    assert heard.wait_state("edge/box/event/hall", state="begin")["label"] == "speech"
    heard.wait_for(
        lambda all_: [h.payload for h in all_ if h.topic == "siren/speech"] == [b"speech 200.0"],
        "the siren",
    )
    assert running.stop() == 0
    assert "Traceback" not in running.words()


def test_a_sensor_that_stays_silent_stays_lost(
    broker: Mosquitto, listen: Callable[..., Listener], agent: Callable[..., AgentProcess]
) -> None:
    """With `?stall_s=` silence is `lost` until a reading comes, however often it is opened anew."""
    heard = listen(broker.port)
    press = {"name": "press", "source": "mqtt:shop/press?stall_s=1", "model": "readings"}
    running = agent(agent_settings("box", broker.url, [press]))
    topic = "edge/box/source/press"
    heard.wait_state(topic, state="lost")
    opened = len([each for each in heard.heard if each.topic == topic])
    health = len(heard.on("edge/box/health"))
    heard.wait_for(lambda _: len(heard.on("edge/box/health")) > health + 4, "more of its health")
    assert len([each for each in heard.heard if each.topic == topic]) == opened
    assert heard.on("edge/box/health")[-1]["state"] == "degraded"
    heard.publish("shop/press", "3.5")
    heard.wait_state(topic, state="running")
    heard.wait_state("edge/box/result/press")
    assert running.stop() == 0
