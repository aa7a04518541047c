"""A manifest for a bare network that does not take one picture, from its input shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...core.text import counted, printable
from ...core.types import TensorSpec
from . import infer_layout
from .facts import Draft, NetworkFacts, takes_texts
from .guess_picture import LABELS

WAKE_WORDS = "one of openWakeWord's chain of three networks"
NO_CHAIN = (
    "`edge-agent convert WAKEWORD -o FOLDER` makes one network of the three, with openWakeWord's "
    "melspectrogram and embedding_model of the same format beside it"
)

ROWS = (
    'input: where this is a window of readings and no picture: channels, window, layout = "tc" and '
    "rate_hz, in place of color and resize"
)
FLAT = (
    "input.transform: where these are features and no samples, as Edge Impulse flattens them: "
    '"mfe" or "spectral" as its impulse has it (docs/models.md, Sound), of which MFCC is none: '
    "choose MFE there; window and rate_hz are then those of the readings"
)
SOUND = (
    'input.transform: if these are features of a sound, "mfcc" or "logmel" with the parameters of '
    "the training code (docs/models.md, Sound); window and rate_hz are then those of the sound"
)
_ORDER = (
    'window = the samples of one channel, and layout = "flat-tc" (sample by sample, as Arduino\'s '
    'and Edge Impulse\'s code does) or "flat-ct" (channel by channel)'
)
_COPIES = (
    "task: raw with decoder raw, where it makes something else of a window than itself",
    'output.threshold: of the mean squared difference, not of the absolute one; "p99" learns it',
)
_CHAINED = ("samples", "mels", "embeddings")
"""The inputs that `convert` gives to openWakeWord's chain as one network."""
_FEATURES = frozenset({10, 12, 13, 20, 26, 32, 39, 40, 64, 80, 128})
"""Usual numbers of coefficients and bands."""

_TOKENS = 64
"""Least length of a row of integers that counts as a text's tokens, not a table's columns."""
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMSequence", "GRUSequence"})
_LONGER = 4
"""How many times as many samples as channels leave no doubt which are which."""
_ROW = 256
"""Greatest length of a flat input that counts as a table's row, not a window of one channel: few
tables have more columns, and few windows fewer samples."""


_PLANES, _SIDE = 16, 32
"""Most channels of a picture, and its least side."""
_COLUMN = frozenset({(None, 1), (1, 1)})
_OUTLIERS = frozenset({"ai.onnx.ml.TreeEnsembleRegressor", "ai.onnx.ml.SVMRegressor"})
"""Operators of IsolationForest and OneClassSVM."""


def unusual_draft(facts: NetworkFacts) -> Draft | None:
    """Return a draft for a network that takes several pictures, or one tensor per column."""
    shapes, ends = ([o.shape[1:] for o in facts.inputs], [o.shape[-1:] for o in facts.outputs])
    many = [one for one in facts.inputs if len(one.shape) == 4]
    if len(facts.inputs) == len(many) == 1 and (channels := _channels_of(many[0])):
        family = f"a network of pictures with {channels} channels ({printable(str(many[0]))})"
        mend = "pictures have 1 or 3 channels here; train it on these"
    elif len(facts.inputs) > 1 and any(one.dtype == "unknown" for one in facts.inputs):
        texts = ", ".join(printable(one.name) for one in facts.inputs if one.dtype == "unknown")
        family = f"a table with columns of texts ({texts})"
        mend = "a row is numbers here; export it with numbers in place of the texts"
    elif {one.name for one in facts.outputs} == {"label", "scores"} and _OUTLIERS & facts.operators:
        family = "scikit-learn's detector of outliers"
        mend = (
            "its scores fall where a row is anomalous, and decoder score takes a higher one for "
            "worse: negate them (a Neg behind scores), then task anomaly, decoder score, threshold "
            "0, output.names.score"
        )
    elif [shapes, ends] in ([[(16, 96)], [(1,)]], [[(None,)], [(32,)]]):
        family, mend = WAKE_WORDS, NO_CHAIN
    else:
        return None
    return Draft(
        family,
        {"task": "raw", "input": {}, "output": {"decoder": "raw"}},
        questions=(f"export: {mend}",),
    )


def _channels_of(picture: TensorSpec) -> int | None:
    """Return how many channels a picture has if these are 2, or 4 to 16."""
    first, *others = picture.shape[1:]
    *_, last = others
    for channels, sides in ((first, others), (last, [first, *others[:1]])):
        wide = all(side is None or side >= _SIDE for side in sides)
        if channels is not None and channels != 3 and 1 < channels <= _PLANES and wide:
            return channels
    return None


def row_draft(facts: NetworkFacts) -> Draft | None:
    """Draft what scikit-learn, LightGBM and XGBoost export: a row of a table in, chances out.

    Either one input takes the whole row, or there is one for each column, whose names they are.
    """
    names = [one.name for one in facts.inputs]
    columns = len(names) > 1 and all(one.shape in _COLUMN for one in facts.inputs)
    if not columns and not (facts.classes and len(names) == 1):
        return None
    window, assumed = ({}, ()) if columns else _window(facts)
    how = "input.channels: the columns in the order of training, by name or number"
    scaled = "input.mean and input.scale: as in training, if it was done outside of the network"
    questions = [how, scaled]
    if columns:
        window = {"channels": list(map(printable, names)), "window": 1, "layout": "flat-tc"}
        assumed = ("channels: the names of its inputs, each of which takes a column",)
        questions = [scaled]
    chances = [one for one in facts.outputs if one.shape[1:] == (len(facts.classes),)]
    family = f"a table of one tensor a column ({', '.join(map(printable, names))})"
    if len(chances) != 1 or not window:
        made = {"task": "raw", "input": window, "output": {"decoder": "raw"}}
        how = "task and output.decoder: " + output_words(facts)
        return Draft(family, made, assumed, (how, *questions)) if columns else None
    output: dict[str, Any] = {"decoder": "softmax", "names": {"scores": chances[0].name}}
    output["labels"] = list(map(printable, facts.classes))
    return Draft(
        "a classifier of a table's rows, as of scikit-learn, LightGBM or XGBoost",
        {"task": "classification", "input": window, "output": output},
        (*assumed, "labels: the classes that its nodes name"),
        tuple(questions),
    )


def signal_draft(facts: NetworkFacts) -> Draft:
    """Draft a network that takes no picture."""
    inputs, outputs = facts.inputs, facts.outputs
    if (speech := _silero(facts) or _wake_word(facts) or _micro(facts)) is not None:
        return speech
    window, assumed = _window(facts)
    if not window:
        names = ", ".join(map(str, inputs)) or "no input"
        how = f"input.window, input.channels and input.rate_hz: of {names}"
    elif window["window"] == 1:
        count = len(window["channels"])
        how = (
            "input.channels: the columns in the order of training, by name or number; where it "
            f"takes samples of one channel instead: channels = [0], window = {count}, "
            f"and input.rate_hz; of several channels: {_ORDER}"
        )
    else:
        how = "input.channels, in order, and input.rate_hz"
    if len(inputs) == 1 and window and (words := infer_layout.batch_words(inputs[0])):
        assumed = (*assumed, words)
    questions = [how, "input.mean and input.scale: as in training"]
    questions += _layout_question(window, facts)
    if any(sounds_like(one) for one in inputs):
        questions.append(SOUND)
    if window.get("layout") == "flat-tc" and window["window"] > 1:
        questions += [f"input.layout, if of several channels: {_ORDER}", FLAT]
    if states := ", ".join(_states(facts)):
        questions.append(f"input.state, where these are the next values of inputs: {states}")
    if window and (count := _classes(facts)):
        return Draft(
            f"a classifier of {count} classes of windows",
            {"task": "classification", "input": window, "output": {"decoder": "softmax"}},
            (*assumed, "decoder: softmax (scores as they come), as the network ends in Softmax"),
            (LABELS, *questions),
        )
    same = len(inputs) == len(outputs) == 1 and inputs[0].shape == outputs[0].shape
    if same and inputs[0].shape[1:] != (1,):
        return Draft(
            "an autoencoder: what comes out has the shape of what goes in",
            {"task": "anomaly", "input": window, "output": {"decoder": "reconstruction"}},
            assumed,
            questions=(*_COPIES, *questions),
        )
    if window and len(outputs) == 1 and outputs[0].shape[1:] == (1,):
        how = (
            "task: regression, if its number is a value; if it tells how unusual a window is, "
            "anomaly with decoder score and output.threshold"
        )
        made = {"task": "regression", "input": window, "output": {"decoder": "raw"}}
        return Draft("one number of a window", made, assumed, questions=(how, *questions))
    family = "no network of one picture"
    shape = inputs[0].shape if len(inputs) == 1 and inputs[0].dtype in {"int32", "int64"} else ()
    if takes_texts(facts) or (len(shape) == 2 and (shape[1] or _TOKENS) >= _TOKENS):
        family = "a network that takes the numbers of tokens, such as words"
        questions = ["input.tokenizer: its tokenizer.json; only task embedding takes texts so"]
    return Draft(
        family,
        {"task": "raw", "input": window, "output": {"decoder": "raw"}},
        assumed,
        questions=("task and output.decoder: " + output_words(facts), *questions),
    )


def _classes(facts: NetworkFacts) -> int:
    """Return how many classes the only output has, if it ends in Softmax; else 0."""
    (output, *others) = facts.outputs or (None,)
    if output is None or others or facts.makers.get(output.name) not in {"Softmax", "SoftMax"}:
        return 0
    sizes = output.shape[1:]
    chances = output.dtype.startswith("float") or output.name in facts.steps
    return sizes[0] or 0 if len(sizes) == 1 and chances else 0


def _states(facts: NetworkFacts) -> Iterator[str]:
    """Yield inputs with the output that may be their next value: of the same type and shape."""
    if len(facts.inputs) < 2:
        return
    left = list(facts.outputs)
    for spec in facts.inputs:
        for output in left:
            # With an axis of a known length, which is not the batch's.
            known = any(size not in {None, 1} for size in spec.shape)
            if spec.dtype == output.dtype and known and _fit(spec.shape, output.shape):
                left.remove(output)
                yield f"{printable(spec.name)} = {printable(output.name)!r}"
                break


def _fit(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether two shapes of several axes may be the same."""
    same = len(one) == len(other) > 1
    return same and all(a == b or None in {a, b} for a, b in zip(one, other, strict=True))


def _silero(facts: NetworkFacts) -> Draft | None:
    """Draft Silero VAD from version 5 on, which takes 64 samples of the previous window."""
    names = {one.name for one in facts.inputs}
    states = [one.shape for one in facts.inputs if one.name == "state"]
    if names - {"sr"} != {"input", "state"} or states[0][::2] != (2, 128):
        return None
    if {one.name for one in facts.outputs} != {"output", "stateN"}:
        return None
    input_: dict[str, Any] = {"channels": [0], "window": 576, "hop": 512, "lead": 64}
    input_ |= {"rate_hz": 16000, "layout": "flat-tc", "state": {"state": "stateN"}}
    if "sr" in names:
        input_["fixed"] = {"sr": 16000}
    return Draft(
        "Silero VAD",
        {
            "task": "anomaly",
            "input": input_,
            "output": {"decoder": "score", "threshold": 0.5, "label_above": "speech"},
        },
        (
            "family: Silero VAD, by the inputs input and state, the outputs output and stateN",
            "window: 512 samples at 16 kHz with 64 before them, as its own code has it",
            "threshold: 0.5, above which a window is speech, as its own code has it",
        ),
    )


def _wake_word(facts: NetworkFacts) -> Draft | None:
    """Draft what `convert` makes of openWakeWord's chain."""
    names = [{one.name for one in ends} for ends in (facts.inputs, facts.outputs)]
    if names != [set(_CHAINED), {"score", *(f"{one}_next" for one in _CHAINED[1:])}]:
        return None
    input_: dict[str, Any] = {"channels": [0], "window": 1760, "hop": 1280, "lead": 480}
    input_ |= {"rate_hz": 16000, "layout": "flat-tc", "scale": 1 / 32768}
    input_ |= {"tensor": "samples", "state": {one: f"{one}_next" for one in _CHAINED[1:]}}
    output = {"decoder": "score", "threshold": 0.5, "label_above": "wake-word"}
    return Draft(
        "openWakeWord",
        {"task": "anomaly", "input": input_, "output": output},
        (
            "family: openWakeWord, by the names of its inputs and outputs",
            "window: 1280 samples at 16 kHz with 480 before them, as its own code has it",
            "threshold: 0.5, as its own code has it",
        ),
    )


def _micro(facts: NetworkFacts) -> Draft | None:
    """Draft what `convert` makes of a network of microWakeWord, and says in its metadata."""
    word, cutoff, hop = (
        facts.metadata.get(f"micro_wake_word {key}", "") for key in ("word", "cutoff", "hop")
    )
    windows = [one.shape[-1] for one in facts.inputs if one.name == "samples"]
    try:
        input_: dict[str, Any] = {"channels": [0], "window": windows[0], "hop": int(hop)}
        output = {"decoder": "score", "threshold": float(cutoff), "label_above": printable(word)}
    except (ValueError, IndexError):
        return None
    input_ |= {"rate_hz": 16000, "layout": "flat-tc", "scale": 1 / 32768, "tensor": "samples"}
    names = [one.name for one in facts.inputs if one.name != "samples"]
    input_["state"] = {name: f"{name}_next" for name in names}
    return Draft(
        "microWakeWord",
        {"task": "anomaly", "input": input_, "output": output},
        (
            "family: microWakeWord, by its metadata",
            f"window: {hop} new samples at 16 kHz after what they overlap, as its own code has it",
            f"threshold: {cutoff}, the probability_cutoff of its JSON file",
        ),
    )


def _window(facts: NetworkFacts) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of a window from the shape of the only input, and assumptions as text."""
    shape = facts.inputs[0].shape if len(facts.inputs) == 1 else ()
    shape = shape[1:] if len(shape) > 1 else shape
    sizes = [size for size in shape if size is not None]
    if shape and facts.inputs[0].dtype in {"int32", "int64", "bool"}:
        return {}, ()  # indices, such as words
    if not sizes or len(sizes) != len(shape) or len(sizes) > 2:
        return {}, ()
    if len(sizes) == 1 and sizes[0] <= _ROW:
        said = {"channels": list(range(sizes[0])), "window": 1, "layout": "flat-tc"}
        row = counted(sizes[0], "feature")
        return said, (f"window: 1 row of {row} (flat-tc), by the shape of the input",)
    # A window is longer than it has channels; recurrent networks take one sample after another.
    recurrent = bool(facts.operators & _RECURRENT)
    channels, window = (1, sizes[0]) if len(sizes) == 1 else (min(sizes), max(sizes))
    if recurrent and len(sizes) == 2:
        window, channels = sizes
    layout = "flat-tc" if len(sizes) == 1 else "tc" if window == sizes[0] else "ct"
    said = {"channels": list(range(channels)), "window": window, "layout": layout}
    size = f"{counted(window, 'sample')} of {counted(channels, 'channel')}"
    why = "by the shape of the input" + ", and as it is recurrent" * recurrent
    return said, (f"window: {size} ({layout}), {why}",)


def _layout_question(window: dict[str, Any], facts: NetworkFacts) -> list[str]:
    """Return a question where samples and channels cannot be told apart by their number."""
    few, many, layout = (
        len(window.get("channels", ())),
        window.get("window", 0),
        window.get("layout"),
    )
    if layout not in {"ct", "tc"} or facts.operators & _RECURRENT or many >= _LONGER * few:
        return []
    other = "tc" if layout == "ct" else "ct"
    how = (
        f"input.layout: {layout} with window = {many} if it takes {counted(few, 'channel')}; "
        f"{other} with window = {few} if {counted(many, 'channel')}"
    )
    return [how]


def sounds_like(spec: TensorSpec) -> bool:
    """Whether an input has the shape of a sound spectrum: frames by few features, one channel."""
    sizes = [size for size in spec.shape[1:] if size != 1]
    # A square input is a picture.
    return len({*sizes}) == 2 and None not in sizes and bool({*sizes} & _FEATURES)


def output_words(facts: NetworkFacts) -> str:
    """Return a phrase that lists a network's outputs, for a question about them."""
    return f"its outputs are {', '.join(printable(str(each)) for each in facts.outputs)}"


def in_values(draft: Draft, facts: NetworkFacts) -> Draft:
    """Draft the steps of integers that task raw gives, or ask for them if one scale will not do."""
    steps = [(one, facts.steps[one.name]) for one in facts.outputs if one.name in facts.steps]
    if draft.keys["task"] != "raw" or all(step == (1, 0) for _, step in steps):
        return draft
    (scale, zero), *others = {step for _, step in steps}
    if not others and len(steps) == len(facts.outputs):
        output = {**draft.keys["output"], "scale": scale, "zero_point": zero}
        why = "output.scale and zero_point: the file's own steps, in which its integers count"
        return replace(draft, keys={**draft.keys, "output": output}, assumed=(*draft.assumed, why))
    each = "; ".join(
        f"({printable(one.name)} - {zero}) * {scale:.6g}" for one, (scale, zero) in steps
    )
    how = f"output.scale: none counts for all, so raw gives integers as they are; values are {each}"
    return replace(draft, questions=(*draft.questions, how))
