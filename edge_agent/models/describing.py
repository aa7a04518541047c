"""The description of a model file: inputs, outputs, metadata, and the resulting manifest.

Guesses are the assumptions of `importing`. Missing parts are listed in the order in which a user
would add them. Uses no engine: nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.containment import contained
from ..core.errors import ModelError, UsageError
from ..core.text import count_trouble
from .decoders import SCORED
from .files.check_onnx import inspect
from .files.facts import NetworkFacts
from .files.huggingface import draft_of_speaker
from .files.infer_layout import batch_words
from .files.sentences import draft_of_texts
from .files.steps import lost_scores
from .files.tflite_metadata import draft_with_labels
from .files.tflite_ssd import check_labels
from .golden import check_file
from .idle_keys import doubtful_keys
from .importing import BARE, draft_name, draft_text, file_of, import_model
from .manifest import MANIFEST, Manifest, ModelFolder


@dataclass(frozen=True, slots=True)
class Description:
    """A model, as far as its files describe it."""

    file: str
    """Name of the network's file."""
    facts: NetworkFacts
    manifest: Manifest | None
    """None if the file is not enough for a manifest."""
    labels: int
    """Number of labels."""
    guessed: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Parts of its manifest that have no effect."""
    wrong: tuple[str, ...] = ()
    """Reasons why devices refuse it."""
    draft: str = ""
    """If there is no manifest: the known part of it as TOML, the rest as comments."""


def describe(path: Path) -> Description:
    """Describe a model folder, a packed .tar or a bare file, also as the only one of a folder.

    Raises:
        UsageError: there is nothing at *path*.
        ModelError: it is not a model that can be run, or its manifest is wrong.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    path = file_of(path, describing=True)
    # First, and with its own error: a file that cannot run has no description.
    bare = inspect_network(path) if path.is_file() and path.suffix in BARE else None
    try:
        with import_model(path) as imported:
            folder = imported.folder
            # Its weights are only there within this context.
            facts = bare or inspect_network(folder.network)
            check_labels(folder)
            missing = tuple(_missing(folder, facts))
            return Description(
                folder.manifest.file,
                facts,
                folder.manifest,
                len(folder.labels),
                imported.assumptions,
                missing,
                tuple(doubtful_keys(folder.manifest)),
                (*_labels_trouble(folder, facts), *_as_tuple(golden_trouble(folder, facts))),
            )
    except ModelError as problem:
        if bare is None:
            raise
        first = str(problem).removeprefix(f"{path}: ")
        draft = draft_of_speaker(path) or draft_of_texts(path, bare)
        draft = draft or draft_with_labels(path, bare)
        text = draft_text(draft, draft_name(path), "1", path.name)
        missing = (first, *draft.questions)
        return Description(path.name, bare, None, 0, draft.assumed, missing, draft=text)


def inspect_network(network: Path) -> NetworkFacts:
    """Read the facts in a network's file.

    Raises:
        ModelError: it is damaged, or cannot run.
    """
    with contained(str(network), ModelError):
        return inspect(network)


def _labels_trouble(folder: ModelFolder, facts: NetworkFacts) -> Iterator[str]:
    """Yield why devices refuse a classifier whose only output shows another number of classes."""
    count, first = len(folder.labels), folder.manifest.output.first_label
    if not count or folder.manifest.task != "classification" or len(facts.outputs) != 1:
        return
    spec = facts.outputs[0]
    classes = spec.shape[1] if len(spec.shape) == 2 else None
    if classes is None or (classes, count, first) == (1, 2, 0):
        return
    if (trouble := count_trouble(count, first, classes, f"output {spec}")) is not None:
        yield f"{folder.path / MANIFEST}: {trouble}; devices refuse the model"


def missing_labels(folder: ModelFolder) -> Iterator[str]:
    """Yield advice on labels for a model that lacks them though its findings have names."""
    if folder.manifest.task in SCORED - {"embedding"} and not folder.labels:
        yield (
            "labels: results carry numbers for names; in a model folder (`try --save` makes one) "
            f"write a labels.txt, one a line, and in {MANIFEST}, below [output], "
            'labels = "labels.txt"'
        )


def golden_trouble(folder: ModelFolder, facts: NetworkFacts) -> str | None:
    """Return why devices refuse a model's golden file; None: they accept it, or it has none."""
    try:
        check_file(folder, facts)
    except ModelError as problem:
        return f"{problem}; devices refuse the model: make the file again, or take it out"
    return None


def _as_tuple(line: str | None) -> tuple[str, ...]:
    return () if line is None else (line,)


def _missing(folder: ModelFolder, facts: NetworkFacts) -> list[str]:
    """List missing optional parts that would make the model better."""
    manifest = folder.manifest
    missing: list[str] = []
    missing.extend(missing_labels(folder))
    if (step := lost_scores(manifest.task, facts)) is not None:
        missing.append(
            f"scores: the numbers of {facts.outputs[0]} are steps of {step:.3g} apart, so that no "
            "score from 0 to 1 is left: they were lost when it was quantized; take the float file, "
            "and `quantize` it"
        )
    pictures = [spec for spec in facts.inputs if len(spec.shape) == 4]
    missing.extend(cost for spec in pictures if (cost := batch_words(spec)))
    if manifest.task == "classification" and manifest.output.threshold is None:
        missing.append("output.threshold: classes of any score are reported")
    if not folder.golden.is_file():
        words = manifest.task == "generate"
        mend = "write down what it answers" if words else "`convert` and `quantize` write one"
        missing.append(
            f"{folder.golden.name}: no device can tell whether its engine computes what was meant; "
            f"{mend}"
        )
    return missing
