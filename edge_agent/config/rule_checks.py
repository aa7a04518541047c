"""Checks of zones, lines and rules: which are invalid, and which can never act."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ..core.names import NAME_RULE, is_name, name_problems
from ..core.text import closest
from ..models.decoders import BOXED, SCORED
from ..models.manifest import ModelFolder
from ..models.questions import NOT_DECIDED
from .rule_kinds import RULE_KINDS, RuleKind, kind_of
from .rules import Action, CombinedRule, Rule
from .schedule import parse_during
from .sensor_input import fields_left
from .settings import Pipeline, Settings
from .shapes import MOST_SHAPES, line_trouble, polygon_trouble
from .templates import braces_trouble, source_trouble, topic_trouble, trouble, url_trouble

MOST_RULES = 64
MOST_OF = 62
"""Most results that `frames` can look back on."""
Problem = tuple[str, str]
"""Key and error text."""
NEEDED = {"line": "a line", "value": "a value, by its name", "above": "`above` or `below`"}


def rule_problems(
    pipeline: Pipeline, root: str, device: str = "", given: str | None = None
) -> Iterator[Problem]:
    """Yield the problems of a pipeline's zones, lines and rules."""
    for key, shapes, most in (
        ("zones", pipeline.zones, MOST_SHAPES),
        ("lines", pipeline.lines, MOST_SHAPES),
        ("rules", pipeline.rules, MOST_RULES),
    ):
        if len(shapes) > most:
            yield key, f"expected at most {most}, found {len(shapes)}"
        yield from name_problems(key, [shape.name for shape in shapes], "another one has")
    for zone in pipeline.zones:
        if (why := polygon_trouble(zone.polygon)) is not None:
            yield f"zones[{zone.name}].polygon", why
    for line in pipeline.lines:
        if (why := line_trouble(line.points)) is not None:
            yield f"lines[{line.name}].points", why
    for rule in pipeline.rules:
        for key, text in _rule_problems(rule, pipeline):
            yield f"rules[{rule.name}].{key}", text
        values = {"rule": rule.name, "pipeline": pipeline.name, "device": device}
        for index, action in enumerate(rule.do):
            for key, text in _action_problems(action, root, values, given):
                yield f"rules[{rule.name}].do[{index}]{key}", text


def _time_problems(rule: Rule | CombinedRule) -> Iterator[Problem]:
    """Yield the problems of the times and modes of a rule."""
    if rule.during:
        try:
            parse_during(rule.during)
        except ValueError as problem:
            yield "during", str(problem)
    for mode in rule.modes:
        if not is_name(mode):
            yield "modes", f"{mode!r} is not a name ({NAME_RULE})"


def _rule_problems(rule: Rule, pipeline: Pipeline) -> Iterator[Problem]:
    yield from _time_problems(rule)
    found = re.fullmatch(r"([0-9]{1,2})/([0-9]{1,2})", rule.frames)
    if not found or not 1 <= int(found[1]) <= int(found[2]) <= MOST_OF:
        yield "frames", f'expected "k/n" with 1 ≤ k ≤ n ≤ {MOST_OF}, found {rule.frames!r}'
    zones = [zone.name for zone in pipeline.zones]
    lines = [line.name for line in pipeline.lines]
    if rule.zone is not None and rule.zone not in zones:
        yield "zone", f"there is no zone {rule.zone!r}; there are {', '.join(zones) or 'none'}"
    if rule.line is not None and rule.line not in lines:
        yield "line", f"there is no line {rule.line!r}; there are {', '.join(lines) or 'none'}"
    kind = RULE_KINDS.get(rule.when)
    if kind is None:
        close = closest(rule.when, RULE_KINDS)
        mend = f"; did you mean {close!r}?" if close else ""
        yield "when", f"expected {_one_of(RULE_KINDS)}, found {rule.when!r}{mend}"
        return
    for key in kind.needs:
        if getattr(rule, key) is None and not (key == "above" and rule.below is not None):
            mend = ""
            if key == "line":
                mend = (
                    f"; {f'name {_one_of(lines)}' if lines else 'give one in [[pipelines.lines]]'}"
                )
            yield key, f'a rule of when = "{rule.when}" needs {NEEDED[key]}{mend}'
    if kind.labels and (wrong := [label for label in rule.labels if label not in kind.labels]):
        yield "labels", f"of {rule.when}: expected {_one_of(kind.labels)}, found {wrong[0]!r}"
    if rule.above is not None and rule.below is not None and rule.below > rule.above:
        yield (
            "below",
            (
                f"with both, `below` ends what `above` begins: expected at most {rule.above:g}, "
                f"found {rule.below:g}"
            ),
        )


def combined_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the problems of the rules over several pipelines: key and error text."""
    there = {pipeline.name: pipeline for pipeline in settings.pipelines}
    yield from name_problems("rules", [rule.name for rule in settings.rules], "another one has")
    for rule in settings.rules:
        where = f"rules[{rule.name}]"
        if len(set(rule.all)) < max(2, len(rule.all)) or len(rule.all) > MOST_RULES:
            yield f"{where}.all", 'expected several unlike ones, as ["door/enter", "yard/count"]'
        if rule.pipeline in there and rule.name in [own.name for own in there[rule.pipeline].rules]:
            text = f"{rule.pipeline}, on whose topic its events are, has a rule of this name"
            yield f"{where}.name", text
        for name, wanted in rule.members:
            rules = there[name].rules if name in there else ()
            known = {rule.name for rule in rules} | {rule.when for rule in rules}
            if name not in there:
                pipelines = ", ".join(there) or "none"
                text = f"{name!r} is no pipeline; there are {pipelines}"
                yield f"{where}.all", f'{text}; write "pipeline/rule"'
            elif wanted not in known:
                found = ", ".join(sorted(known)) or "none"
                yield f"{where}.all", f"{name} has no rule {wanted!r}; there are {found}"
        for key, text in _time_problems(rule):
            yield f"{where}.{key}", text
        values = {"rule": rule.name, "pipeline": rule.pipeline, "device": settings.device_id}
        for place, action in enumerate(rule.do):
            if action.on in {"update", "end"}:
                yield f"{where}.do[{place}].on", f'"{action.on}" never occurs: it is momentary'
            for key, text in _action_problems(action, settings.broker.topic_root, values, None):
                yield f"{where}.do[{place}]{key}", text


def _one_of(names: Iterable[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}" if most else last


def _action_problems(
    action: Action, root: str, values: Mapping[str, str], given: str | None
) -> Iterator[Problem]:
    if (action.publish is None) == (action.http is None):
        yield "", "expected either `publish` or `http`"
    if action.http is not None and (why := url_trouble(action.http)) is not None:
        yield ".http", why
    if action.publish is not None:
        # With a name in place of each word, the topic has its final form.
        why = (
            trouble(action.publish)
            or braces_trouble(action.publish)
            or topic_trouble(re.sub(r"\{[a-z_]+\}", "x", action.publish), root)
            or source_trouble(action.publish, values, given)
        )
        if why is not None:
            yield ".publish", why
    if (why := trouble(action.payload)) is not None:
        yield ".payload", why


LEAVES_NOTHING = "leaves nothing to publish"
"""Error of a filter that not only has no effect, but drops all results."""
NEVER_ACTS, ALWAYS_ACTS = "never acts with", "always acts with"
"""Errors of a rule or second stage that the models it has cannot serve."""


def is_grave(line: str) -> bool:
    """Whether a line about settings without effect says that the models do not do what is asked.

    Others are of settings that have none with any model, or of a part only.
    """
    return any(words in line for words in (LEAVES_NOTHING, NEVER_ACTS, ALWAYS_ACTS, NOT_DECIDED))


WITH_PACKETS = ("rtsp:", "rtsps:", "http:", "https:", "file:")
"""Prefixes of sources whose packets can be kept as clips."""
CAMERAS = (*WITH_PACKETS, "v4l2:")


def lint_filters(pipeline: Pipeline, firsts: Sequence[ModelFolder | None]) -> Iterator[str]:
    """Yield a line for each filter of a pipeline that has no effect or leaves no results."""
    known = [folder for folder in firsts if folder is not None]
    if not known or len(known) < len(firsts):
        return
    names = ", ".join(folder.manifest.id for folder in known)
    tasks: set[str] = {folder.manifest.task for folder in known}
    given = [key for key in ("labels", "thresholds") if getattr(pipeline, key)]
    if not tasks & SCORED:
        for key in given:
            yield f"{key} has no effect: {names} finds nothing with a label"
        given = []
    if any(pipeline.min_box) and not tasks & BOXED:
        yield f"min_box has no effect: {names} finds no boxes"
    left_out = [label for label in pipeline.thresholds if label not in pipeline.labels]
    if len(given) == 2 and left_out:
        yield f"thresholds: no effect on {few(left_out)}: `labels` leaves it out"
    found = {label for folder in known for label in folder.finds}
    for key in given:
        labels = list(getattr(pipeline, key))
        if not all(folder.finds for folder in known):
            # Classes without names are labeled by number, however many there are.
            absent = [label for label in labels if label not in found and not label.isdecimal()]
            why = (
                f"{names} has no names for its classes and calls them by their numbers; write a "
                "labels.txt, one a line, and name it in model.toml: output.labels"
            )
        else:
            absent = [label for label in labels if label not in found]
            why = ""
        if not absent:
            continue
        words = ", ".join(map(repr, absent))
        if key == "labels" and len(absent) == len(labels):
            yield f"{key}: {words} {LEAVES_NOTHING}: " + (why or f"it is not what {names} finds")
        else:
            yield f"{key}: {words} is not among what {names} finds{why and f': {why}'}"


def few(labels: Collection[str]) -> str:
    """Return some of the labels, for use in sentences."""
    return ", ".join(sorted(labels)[:10]) + (", …" if len(labels) > 10 else "")


def lint_rules(
    pipeline: Pipeline,
    firsts: Sequence[ModelFolder | None],
    seconds: Sequence[ModelFolder | None] = (),
) -> Iterator[str]:
    """Yield a line for each zone, line and rule of a pipeline that can never act.

    Args:
        pipeline: the pipeline's settings.
        firsts: the models of its first stage; None: not known.
        seconds: the models of its second stages; None: not known.
    """
    known = [folder for folder in firsts if folder is not None]
    if len(known) < len(firsts):
        known = []  # another one may do what these do not
    tasks: set[str] = {folder.manifest.task for folder in known}
    labels = _labels(known, seconds)
    names = ", ".join(folder.manifest.id for folder in known)
    for key, given in (
        ("track", pipeline.track),
        ("zones", pipeline.zones),
        ("lines", pipeline.lines),
    ):
        if given and known and not tasks & BOXED:
            yield f"{key} has no effect: {names} finds no boxes"
    for rule in pipeline.rules:
        for line in _lint_rule(rule, pipeline, known, labels):
            yield f"rules[{rule.name}]{line}"


def _lint_rule(
    rule: Rule, pipeline: Pipeline, known: Sequence[ModelFolder], labels: frozenset[str] | None
) -> Iterator[str]:
    kind = kind_of(rule)
    if rule.clip and pipeline.masks:
        yield ".clip: shows what masks blacken: it is made of the camera's own packets"
    names = ", ".join(folder.manifest.id for folder in known)
    when = f'when = "{rule.when}"'
    if known and (looks := _looks_elsewhere(kind, pipeline, known)):
        yield f": {NEVER_ACTS} {names}: {when} {looks}"
        return
    if not kind.labels:
        yield from _lint_labels(rule, pipeline, labels, names)
    elif (
        not (pipeline.camera and pipeline.source.lower().startswith(CAMERAS))
        or "pace=max" in pipeline.source
    ):
        yield f": never acts: {when} is for cameras and clips at their own rate with camera = true"
    if kind.by_channel and rule.value is not None and known:
        inputs = known[0].manifest.input
        channels = inputs.channels if inputs.is_signal else ("blue", "green", "red")
        measured = [*map(str, channels), "score"]
        if channels and rule.value not in measured:
            yield f".value: {NEVER_ACTS} {names}: {rule.when} is of {', '.join(measured)}"
    if "value" in kind.needs:
        yield from _lint_value(rule, pipeline, known, names)
    yield from _lint_bounds(rule, kind)
    if rule.for_s and not kind.lasts:
        yield f".for_s has no effect: {when} is momentary"
    if rule.clip and not pipeline.source.lower().startswith(WITH_PACKETS):
        yield ".clip keeps nothing: only network cameras and video files can have clips"
    if rule.line is not None and kind.trigger != "crosses":
        yield f".line has no effect on {when}"
    if rule.zone is not None and not kind.in_zone:
        yield f".zone has no effect on {when}"
    never = {"once"} if kind.lasts else {"update", "end"}
    for action in rule.do:
        if action.on in never:
            yield f'.do: on = "{action.on}" never occurs with {when}'


def _lint_value(
    rule: Rule, pipeline: Pipeline, known: Sequence[ModelFolder], names: str
) -> Iterator[str]:
    left = fields_left(pipeline.source, pipeline.input) if pipeline.has_no_model else ()
    if left and rule.value not in left:
        words = f"{rule.value!r} never comes: ?field= of the source leaves {few(left)}"
        yield f".value: {words}; name one of them, or add it there"
    elif known and all(folder.finds for folder in known):
        there = {label for folder in known for label in folder.finds}
        if rule.value not in there:
            # A sensor may send other values later.
            how = "has not come yet" if pipeline.has_no_model else f"{NEVER_ACTS} {names}"
            if pipeline.has_no_model and all(label.isdigit() for label in there):
                # A device may send its header line only when it starts.
                how = f"{NEVER_ACTS} columns that have no names (is the header line still to come?)"
            yield f".value: {rule.value!r} {how}; there are {', '.join(sorted(there)[:20])}"


def _looks_elsewhere(kind: RuleKind, pipeline: Pipeline, known: Sequence[ModelFolder]) -> str:
    """Return what rules of a kind look at, if none of the models has that."""
    if kind.by_channel and pipeline.has_no_model:
        return "is of what a model gets"
    if kind.tasks and not {folder.manifest.task for folder in known} & {*kind.tasks}:
        return f"looks at results of task {' or '.join(sorted(kind.tasks))}"
    return ""


def _labels(
    firsts: Sequence[ModelFolder], seconds: Sequence[ModelFolder | None]
) -> frozenset[str] | None:
    """Return all labels that an object may have, from any stage; None: not known."""
    labelled = [each for each in seconds if each is None or each.manifest.task in SCORED]
    found = [None if folder is None else folder.finds for folder in (*firsts, *labelled)]
    if not firsts or not all(found):
        return None
    return frozenset(label for labels in found for label in labels or ())


def _lint_labels(
    rule: Rule, pipeline: Pipeline, labels: frozenset[str] | None, names: str
) -> Iterator[str]:
    left = set(rule.labels) & set(pipeline.labels)
    if rule.labels and pipeline.labels and not left and not pipeline.then:
        yield f".labels: never acts: the pipeline's labels are {', '.join(pipeline.labels)}"
    elif rule.labels and labels is not None:
        absent = [label for label in rule.labels if label not in labels]
        words = ", ".join(map(repr, absent))
        close = closest(absent[0], labels) if absent else None
        meant = f"; did you mean {close!r}?" if close else ""
        if len(absent) == len(rule.labels):
            without = rule.when == "absent" or (rule.above is None and rule.below is not None)
            acts = ALWAYS_ACTS if without else NEVER_ACTS
            found = f"is not among what it finds ({few(labels)})"
            yield f".labels: {acts} {names}: {words} {found}{meant}"
        elif absent:
            yield f".labels: {words} is not among what {names} finds{meant}"


def _lint_bounds(rule: Rule, kind: RuleKind) -> Iterator[str]:
    above, below = rule.above, rule.below
    if not kind.bounded:
        if above is not None or below is not None:
            yield f'.above and .below have no effect on when = "{rule.when}"'
        return
    least, most = kind.range
    if above is not None and above >= most:
        yield f".above: never acts: no {kind.unit} is above {most:g}"
    if below is not None and above is None and below <= least:
        yield f".below: never acts: no {kind.unit} is below {least:g}"
