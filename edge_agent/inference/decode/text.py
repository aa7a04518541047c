"""Decoders for text: reading a picture of one line, and finding the lines in a picture."""

from __future__ import annotations

import cv2
import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Array, Detections, Tensors
from ...models.decoders import BLANK_LAST, LPRNET
from .boxes import Hits, detections, selection_of
from .decoder import Decoder, Floats, Labels, Network, Pattern, ensure_finite, softmax

WITHIN = 0.3
"""Least probability at which a pixel belongs to a line."""
GROWTH = 1.5
"""How far lines are expanded, as a multiple of area / perimeter: networks are trained on shrunken
lines. Like `WITHIN`, PaddleOCR's value."""
LEAST_SIDE = 3
"""Least side of a line, in cells of the map."""
MOST_LINES = 1000
_BLANKS = frozenset({"blank", "<blank>", "[blank]", "<blk>", "[blk]", "<ctc>", "<pad>", "[pad]"})
"""Names of the blank in dictionaries that list it first."""
_ROUNDING = 0.02
"""Rounding error of probabilities in float16 or eight bits."""


def ctc(network: Network) -> Decoder:
    """Characters of one line: a class for each step.

    Role `steps`: [1, T, C], [T, 1, C] or [T, C], probabilities or logits. Labels are the
    characters. Class 0 is the blank, as PP-OCR's recognition networks have it, and the characters
    follow; PaddleOCR adds a space after those of its dictionary. A first label such as "blank" is
    its name, and no character. With layout "blank-last" it is the last class, as Keras and
    TensorFlow have it; with "lprnet", too, and the output is [1, C, T] or [C, T].
    """
    network.check_roles("steps")
    layout = network.manifest.output.layout
    turned, ends = layout == LPRNET, layout in {LPRNET, BLANK_LAST}
    patterns: list[Pattern] = [(1, None, None)] if turned else [(1, None, None), (None, 1, None)]
    usual, named = ("output", "output0"), bool(network.manifest.output.names)
    output = None if named else network.find("steps", patterns, names=usual)
    output = output or network.need("steps", [*patterns, (None, None)], names=usual)
    count, names = output.spec.shape[-2 if turned else -1], network.labels
    if ends and len(names) == count:
        if len(names[-1]) == 1 and names[-1].isalnum():
            raise ModelError(
                f"output.labels: {names[-1]!r} in the place of the blank, which is the last class; "
                "a character for each place, without a blank, is none of ctc"
            )
        names = names[:-1]  # with a name for the blank
    elif not ends and names and names[0].strip().lower() in _BLANKS:
        names = names[1:]
    given = len(names)
    if not given or (count is not None and count - given not in ({1} if ends else {1, 2})):
        raise ModelError(
            f"output.labels: expected the characters in the order of the dictionary, "
            f"{_fitting(count, ends=ends)}, for output {output.spec}, whose "
            f"{'last class' if ends else 'class 0'} is the blank; found {given}"
        )
    # An empty line, or one with only the wide space, is a space, too.
    letters = [label or " " for label in names]
    letters = [*letters, ""] if ends else ["", *letters, " "]
    whole = np.array([[0, 0, *network.picture_size()]], np.float32)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        steps = output.read(outputs)
        if steps.ndim > 2:
            steps = steps[:, 0] if len(steps) > 1 else steps[0]
        steps = steps.T if turned else steps
        ensure_finite(output.spec.name, steps)
        if steps.size and (steps.min() < -_ROUNDING or steps.max() > 1 + _ROUNDING):
            steps = softmax(steps)
        best, last = steps.argmax(axis=1), steps.shape[1] - 1
        blank = last if ends else 0
        if last == given and not turned:
            _check_blank(best, last - blank, output.spec.name, ends=ends)
        # A class repeated without a blank in between is one character.
        kept = np.flatnonzero((best != blank) & (np.diff(best, prepend=blank) != 0))
        text = "".join(letters[number] for number in best[kept].tolist()).strip()
        scores = steps[kept, best[kept]].mean(keepdims=True) if text else np.zeros(0, np.float32)
        scores = scores[scores >= threshold]
        texts, labels = ((word,) * len(scores) for word in (text, "text"))
        return Detections(whole[: len(scores)], scores, labels, texts=texts)

    return decode


def _fitting(count: int | None, *, ends: bool) -> str:
    """Return how many characters go with a number of classes, as text."""
    if count is None:
        return "one a line"
    return f"{count - 1}" if ends else f"{count - 2} or {count - 1}"


def _check_blank(best: Array, other: int, name: str, *, ends: bool) -> None:
    """Check that most steps of a line are not the *other* end's class: between characters is blank.

    Raises:
        SampleError: they are.
    """
    if np.count_nonzero(best == other) * 2 <= len(best):
        return
    here, there = ("last", "class 0") if ends else ("first", "the last")
    mend = f"take out layout = {BLANK_LAST!r}" if ends else f"give layout = {BLANK_LAST!r}"
    raise SampleError(
        f"output {name}: most steps are {there}, as if that were the blank, and not the {here}: "
        f"{mend}"
    )


def db(network: Network) -> Decoder:
    """Lines of text, found as in PP-OCR's detection (DB; Liao et al. 2019, arXiv 1911.08947).

    Role `map`: [1, 1, H, W], the probability that a pixel is within a line.
    """
    network.check_roles("map")
    width, height = network.picture_size()
    output = network.need("map", [(1, 1, None, None)], names=("output", "output0"))
    labels, selection = Labels(network.labels or ("text",), 0), selection_of(network, iou=None)
    oriented = network.manifest.task == "obb"

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        chances = output.read(outputs)[0, 0]
        ensure_finite(output.spec.name, chances)
        quads, scores = _lines(chances, threshold)
        quads *= np.array([width, height], np.float32) / chances.shape[::-1]
        boxes = np.concatenate((quads.min(axis=1), quads.max(axis=1)), axis=1)
        hits = Hits(np.arange(len(quads)), np.zeros(len(quads), np.intp), scores)
        columns = {"corners": quads} if oriented else {}
        return detections(output.spec.name, boxes, hits, labels, selection, columns)

    return decode


def _lines(chances: Floats, threshold: float) -> tuple[Floats, Floats]:
    """Return the corners (n, 4, 2) of lines in a map (h, w), in cells, and scores (n,)."""
    quads: list[Array] = []
    scores: list[float] = []
    sure = (chances > WITHIN).astype(np.uint8)
    contours, _ = cv2.findContours(sure, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    for contour in contours[:MOST_LINES]:
        middle, (wide, high), angle = cv2.minAreaRect(contour)
        if min(wide, high) < LEAST_SIDE:
            continue
        score = _mean(chances, cv2.boxPoints((middle, (wide, high), angle)))
        if score >= threshold:
            grown = wide * high * GROWTH / (wide + high)  # twice area / perimeter
            quads.append(cv2.boxPoints((middle, (wide + grown, high + grown), angle)))
            scores.append(score)
    return np.array(quads, np.float32).reshape(-1, 4, 2), np.array(scores, np.float32)


def _mean(chances: Floats, corners: Array) -> float:
    """Return the mean of a map (h, w) within a rectangle, which may reach beyond the map."""
    last = np.array(chances.shape[::-1]) - 1
    left, top = np.floor(corners.min(axis=0)).clip(0, last).astype(int)
    right, bottom = np.ceil(corners.max(axis=0)).clip(0, last).astype(int)
    part = chances[top : bottom + 1, left : right + 1]
    # Cut to whole cells, as PaddleOCR does it.
    within = cv2.fillPoly(
        np.zeros(part.shape, np.uint8), [(corners - (left, top)).astype(np.int32)], 1
    )
    return float(cv2.mean(part, within)[0])
