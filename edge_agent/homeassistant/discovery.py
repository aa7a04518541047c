"""Home Assistant's MQTT device discovery: one retained payload that lists entities.

Its entities read the existing topics and write below `in/`: no further topics are published or
subscribed to for them. Independent of a running agent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..config.rule_kinds import kind_of
from ..config.rules import CombinedRule
from ..config.settings import Pipeline
from ..core.frozen import record
from ..mqtt.topics import Topics, identifier

MOST_LABELS = 20
"""Most labels of a zone or line: a model may have a thousand."""
NO_MODE = "no mode"
"""Takes the mode back; no mode's name, as it has a space."""
MOST_STATE = 255
"""Most characters of a state in Home Assistant."""
OFF_SECONDS = 5
"""Time for which a momentary event is shown."""

Component = dict[str, Any]


Entity = tuple[str, str, str, Component]
"""Platform, key, title and further keys."""


@record
class PipelineView:
    """A pipeline with the properties that can be shown."""

    settings: Pipeline
    labels: Sequence[str]
    """The labels of its models, if known."""
    picture: bool
    """Whether its source delivers pictures."""
    scores: bool
    """Whether its threshold is for scores from 0 to 1."""
    task: str = ""
    """Task of its models, if known."""
    values: Sequence[str] = ()
    """Names of the numbers in its results."""


def payload(
    topics: Topics,
    version: str,
    device: Mapping[str, str],
    pipelines: Sequence[PipelineView],
    models: Sequence[str],
    *,
    temperature: bool,
    rules: Sequence[CombinedRule] = (),
    modes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the discovery payload."""
    name = identifier(topics)
    entities = [*_of_device(topics, temperature=temperature)]
    entities += [_of_model(topics, model) for model in models]
    entities += _over_pipelines(topics, rules, modes)
    for view in pipelines:
        pipeline = view.settings.name
        parts = (_controls, _figures, _findings, _pictures, _counts, _rules, _answers)
        entities += [
            (platform, f"{_prefix(pipeline)}{key}", f"{pipeline} {title}", keys)
            for part in parts
            for platform, key, title, keys in part(topics, view)
        ]
    return {
        "device": {"identifiers": [name], "name": topics.device, "sw_version": version, **device},
        "origin": {"name": "edge-agent", "sw_version": version},
        "availability": [{"topic": topics.status, "value_template": "{{ value_json.state }}"}],
        "components": {
            key: {"platform": platform, "unique_id": f"{name}_{key}", "name": title, **keys}
            for platform, key, title, keys in entities
        },
    }


def _prefix(pipeline: str) -> str:
    """Return the prefix of the keys of a pipeline's entities.

    The rule `fps` of `parts` and the rate of `parts_rule` must differ: if a name could end with the
    beginning of a key, a colon follows it, which is not allowed in names.
    """
    doubtful = re.search(r"(?:^model|_(?:rule|zone|count|line|take))(?:_|$)", pipeline)
    return f"{pipeline}:" if doubtful else f"{pipeline}_"


def values_key(pipeline: str) -> str:
    """Return how the keys of the entities of a pipeline's values begin."""
    return f"{_prefix(pipeline)}value:"


def _of_device(topics: Topics, *, temperature: bool) -> Iterator[Entity]:
    """Yield the entities of the device itself."""
    restart = {
        "command_topic": f"{topics.inbox}/command/restart",
        "payload_press": "{}",
        "device_class": "restart",
        "entity_category": "config",
    }
    yield "button", "restart", "Restart", restart
    if temperature:
        template = "{{ value_json.temperature_c | default('') }}"
        keys = _figure(topics, template, "°C", device_class="temperature")
        yield "sensor", "temperature", "Temperature", keys


def _of_model(topics: Topics, model: str) -> Entity:
    """Return the entity of a model, which shows its versions."""
    latest = "value_json.candidate.version if value_json.candidate is defined"
    template = (
        "{{ {'installed_version': value_json.live, 'latest_version': "
        f"{latest} else value_json.live}} | tojson }}}}"
    )
    keys = {"state_topic": topics.model(model), "value_template": template}
    return "update", f"model_{model}", f"Model {model}", {**keys, "entity_category": "diagnostic"}


def _controls(topics: Topics, view: PipelineView) -> Iterator[Entity]:
    """Yield the controls of a pipeline."""
    settings = view.settings
    yield "switch", "enabled", "enabled", _setting(topics, settings.name, "enabled")
    if view.scores:
        threshold = _number(topics, settings.name, "threshold", 0, 1, 0.01)
        yield "number", "threshold", "threshold", threshold
    # Home Assistant does not show values out of bounds.
    least, most = min(0.1, settings.rate or 0.1), max(60, settings.rate or 60)
    yield "number", "rate", "rate", _number(topics, settings.name, "rate", least, most, 0.1)


def _figures(topics: Topics, view: PipelineView) -> Iterator[Entity]:
    """Yield the figures of a pipeline from health."""
    own = f"value_json.pipelines.get({_text(view.settings.name)}, {{}})"
    rate = f"{{{{ {own}.get('fps', '') }}}}"
    yield "sensor", "fps", "results", _figure(topics, rate, "1/s")
    late = f"{{{{ {own}.get('latency_ms', {{}}).get('p99', '') }}}}"
    keys = _figure(topics, late, "ms", device_class="duration")
    yield "sensor", "p99", "latency p99", keys


def _findings(topics: Topics, view: PipelineView) -> Iterator[Entity]:
    """Yield the parts of a result that are numbers or words."""
    # Otherwise every frame of a camera would write a state.
    shown: Component = {"state_topic": topics.result(view.settings.name)}
    shown |= {"enabled_by_default": False} if view.picture else {}
    number = {**shown, "state_class": "measurement"}
    if view.task == "anomaly":
        for key, said in (("score", "score"), ("learned", "threshold")):
            value = f"value_json.get('anomaly', {{}}).get('{said}', '')"
            yield (
                "sensor",
                key,
                f"anomaly {said}",
                {**number, "value_template": f"{{{{ {value} }}}}"},
            )
    elif view.task == "classification":
        best = "(value_json.get('classes', []) | first | default({}))"
        keys = {**shown, "value_template": f"{{{{ {best}.get('label', 'None') }}}}"}
        yield "sensor", "class", "class", keys
        keys = {**number, "value_template": f"{{{{ {best}.get('score', 'None') }}}}"}
        yield "sensor", "score", "class score", keys
    numbers = "value_json.get('values', {})"
    for name in view.values[:MOST_LABELS]:
        keys = {**number, "value_template": f"{{{{ {numbers}.get({_text(name)}, '') }}}}"}
        unit = view.settings.units.get(name)
        keys |= {} if unit is None else {"unit_of_measurement": unit}
        # No name of a pipeline holds a colon: none ends in the beginning of this key.
        yield "sensor", f"value:{_key(name)}", name, keys


def _pictures(topics: Topics, view: PipelineView) -> Iterator[Entity]:
    """Yield the pictures of a pipeline and its events, and buttons."""
    name = view.settings.name
    if not view.picture:
        return
    picture = {"image_topic": topics.snapshot(name), "content_type": "image/jpeg"}
    yield "image", "snapshot", "snapshot", picture
    if any(rule.picture != "none" for rule in view.settings.rules):
        picture = {**picture, "image_topic": topics.picture(name, "+")}
        yield "image", "picture", "event picture", picture
    body = json.dumps({"pipeline": name})
    command = f"{topics.inbox}/command"
    press = {"command_topic": f"{command}/snapshot", "payload_press": body}
    yield "button", "take_snapshot", "take snapshot", press
    if view.settings.lines:
        press = {"command_topic": f"{command}/reset", "payload_press": body}
        yield "button", "reset", "reset totals", {**press, "entity_category": "config"}


def _rules(topics: Topics, view: PipelineView) -> Iterator[Entity]:
    """Yield whether the rules of a pipeline are true, with their latest event as attributes."""
    topic = topics.event(view.settings.name)
    for rule in view.settings.rules:
        sensor = _rule(topic, rule.name, lasts=kind_of(rule).lasts)
        yield "binary_sensor", f"rule_{rule.name}", rule.name, sensor


def _rule(topic: str, name: str, *, lasts: bool) -> Component:
    mine = f"value_json.rule == {_text(name)}"
    more: Component = {}
    if lasts:
        # What has waited out a broken connection comes after what is newer. As the clock may have
        # been behind since, the end of the event that is shown always counts, and until then, where
        # a clock was not set, no begin of another.
        newer = "value_json.time >= this.attributes.get('time', '')"
        same = "(value_json.event == this.attributes.get('event'))"
        # Of an end alone; Home Assistant keeps no attribute `state`.
        over = "('why' in this.attributes or 'event' not in this.attributes)"
        dated = "('clock' not in value_json and 'clock' not in this.attributes)"
        end = f"({same} or {newer})"
        other = f"({newer} and (not {over} if {same} else ({over} or {dated})))"
        news = f"({end} if value_json.state == 'end' else {other})"
        mine = f"({mine} and (value_json.replayed is not defined or {news}))"
        now = "'OFF' if value_json.state == 'end' else 'ON'"
        on = f"{{{{ ({now}) if {mine} else '' }}}}"
    else:
        # An event replayed after a broken connection is no news.
        on = f"{{{{ 'ON' if {mine} and value_json.replayed is not defined else '' }}}}"
        more = {"off_delay": OFF_SECONDS}
    # Every message sets all attributes: for another rule's message, keep the present ones.
    kept = f"{{{{ (value_json if {mine} else this.attributes) | tojson }}}}"
    more |= {"json_attributes_topic": topic, "json_attributes_template": kept}
    return {"state_topic": topic, "value_template": on, **more}


def _over_pipelines(
    topics: Topics, rules: Sequence[CombinedRule], modes: Sequence[str]
) -> Iterator[Entity]:
    """Yield the rules over several pipelines, and the modes in rules."""
    for rule in rules:
        sensor = _rule(topics.event(rule.pipeline), rule.name, lasts=False)
        # No name of a pipeline holds a colon: none ends in the beginning of this key.
        yield "binary_sensor", f"rule:{rule.name}", rule.name, sensor
    if modes:
        setting = _setting(topics, "@device", "mode")
        # Home Assistant would go on showing the mode before one that no rule names.
        mode = f"value_json.mode if value_json.mode in {json.dumps(list(modes))} else 'None'"
        keys = {
            "value_template": f"{{{{ {mode} if value_json.mode else '{NO_MODE}' }}}}",
            "command_template": f"{{{{ 'null' if value == '{NO_MODE}' else value }}}}",
            "options": [*modes, NO_MODE],
        }
        yield "select", "mode", "Mode", {**setting, **keys}


def _answers(topics: Topics, view: PipelineView) -> Iterator[Entity]:
    """Yield a model's latest answer, with the rest of its payload as attributes."""
    if not view.settings.ask:
        return
    topic = topics.answer(view.settings.name)
    said = "value_json.get('text', value_json.get('error', ''))"
    keys = {"state_topic": topic, "value_template": f"{{{{ {said}[:{MOST_STATE}] }}}}"}
    yield "sensor", "answer", "answer", {**keys, "json_attributes_topic": topic}


def _counts(topics: Topics, view: PipelineView) -> Iterator[Entity]:
    """Yield the entities of zones and lines by label."""
    settings = view.settings
    labels = list(settings.labels)
    labels = labels or sorted({label for rule in settings.rules for label in rule.labels})
    labels = labels or list(view.labels)
    topic = {"state_topic": topics.count(settings.name)}
    for zone in settings.zones:
        inside = f"value_json.zones.get({_text(zone.name)}, {{}})"
        for label in labels[:MOST_LABELS]:
            count = f"{inside}.get({_text(label)}, 0)"
            key, title = f"{zone.name}_{_key(label)}", f"{zone.name} {label}"
            there = {**topic, "value_template": f"{{{{ 'ON' if {count} > 0 else 'OFF' }}}}"}
            yield "binary_sensor", f"zone_{key}", title, {**there, "device_class": "occupancy"}
            number = {**topic, "value_template": f"{{{{ {count} }}}}", "state_class": "measurement"}
            yield "sensor", f"count_{key}", f"{title} count", number
    for line in settings.lines:
        for way in ("in", "out"):
            crossed = f"value_json.lines.get({_text(line.name)}, {{}}).get('{way}', {{}})"
            total = {**topic, "state_class": "total_increasing"}
            everything = {**total, "value_template": f"{{{{ {crossed}.values() | sum }}}}"}
            yield "sensor", f"line_{line.name}_{way}", f"{line.name} {way}", everything
            for label in labels[:MOST_LABELS]:
                template = f"{{{{ {crossed}.get({_text(label)}, 0) }}}}"
                # The label "in" must differ from the direction of the line `gate_in`.
                part = f"{label}:" if label in {"in", "out"} else _key(label)
                key = f"line_{line.name}_{way}_{part}"
                title = f"{line.name} {way} {label}"
                yield "sensor", key, title, {**total, "value_template": template}


def _figure(topics: Topics, template: str, unit: str, **more: str) -> Component:
    return {
        "state_topic": topics.health,
        "value_template": template,
        "unit_of_measurement": unit,
        "state_class": "measurement",
        "entity_category": "diagnostic",
        **more,
    }


def _setting(topics: Topics, pipeline: str, key: str) -> Component:
    return {
        "state_topic": topics.pipeline(pipeline),
        "value_template": f"{{{{ value_json.{key} }}}}",
        "command_topic": f"{topics.inbox}/set/{pipeline}/{key}",
        "entity_category": "config",
    }


def _number(
    topics: Topics, pipeline: str, key: str, least: float, most: float, step: float
) -> Component:
    bounds = {"min": least, "max": most, "step": step, "mode": "box"}
    return {**_setting(topics, pipeline, key), **bounds}


def _text(name: str) -> str:
    """Return any name as a template literal.

    Jinja reads each escape as one character, so JSON's surrogate pairs would not be combined.
    """
    return json.dumps(name, ensure_ascii=False)


def _key(label: str) -> str:
    """Return a label as part of an entity's id; similar labels get different parts."""
    plain = "".join(mark if mark.isascii() and mark.isalnum() else "_" for mark in label)
    if plain == label:
        return plain
    data = label.encode()
    if data[8:] and not data[8:].isalnum():
        return f"{plain}_{hashlib.sha256(data).hexdigest()[:16]}"
    return f"{plain}_{data[:8].hex()}"
