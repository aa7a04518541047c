"""Records shared by the packages: samples, tensors, findings.

Arrays in records are never written to after construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, Self

from .columns import COLUMNS, Column, Masks, WayBack
from .errors import SampleError
from .frozen import record

Kind = Literal["picture", "signal", "text", "generate"]
"""Kind of data that a source delivers; texts, and what an answer is generated to, are asked."""
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .masks import Mask

    Array = NDArray[Any]
else:  # settings and models are read without NumPy
    Array = Any
Tensors = Mapping[str, Array]


@record
class TensorSpec:
    """One input or output of a network."""

    name: str
    shape: tuple[int | None, ...]
    """A size is None if the network leaves it open."""
    dtype: str
    """NumPy's name: uint8, int8, float16, float32, int64 …"""

    def __str__(self) -> str:
        sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name} {self.dtype}[{sizes}]"


@record(quick=True, eq=False)
class Reading:
    """One reading of a source: a picture, or some rows of a signal."""

    data: Array
    """Picture: uint8 (height, width, 3), BGR. Signal: float32 or float64 (rows, channels), oldest
    first, or float32 (count, …) of ready model inputs."""
    time_ns: int
    """Wall clock when it was read (of the last row)."""
    since: float
    """Monotonic clock when it was read, seconds: for measuring age."""
    file: str | None = None
    """Of a folder of pictures: the name relative to the folder."""
    columns: tuple[str, ...] = ()
    """Of a signal with a header: the name of each channel."""
    times: NDArray[np.int64] | None = None
    """Of a live signal: wall clock of each row, nanoseconds, rising."""
    rate_hz: float | None = None
    """Rows a second, where the source itself knows."""
    gap: bool = False
    """Whether something is missing between the reading before and this one."""
    flaw: Callable[[int, int], SampleError] | None = None
    """Of rows in which numbers may be missing (NaN): says why, by row and column, until the next
    reading. Raises ModelError where the column holds no numbers at all."""
    capture: tuple[str, int] | None = None
    """Of a source that several read: a hash of its name, and the number of the reading there."""


@record(quick=True, eq=False)
class Sample:
    """One capture of a pipeline: the input of one inference."""

    data: Array
    """Picture: uint8 (height, width, 3), BGR. Signal: float32 (window, channels), or one ready
    model input of any shape; without a model one reading (channels), float64 where the source has
    such numbers. Text: uint8 (n,), UTF-8."""
    seq: int
    """Counts every capture of the pipeline, so that gaps in the results show skipped ones."""
    time_ns: int
    since: float
    file: str | None = None
    picture: bool = True
    early: object | None = None
    """Input prepared ahead by a model, an `inference.model.PreparedSample`; ignored where it cannot
    be used."""
    began_ns: int | None = None
    """Of a window of a live signal: wall clock of its first sample."""
    follows: bool = True
    """Of a window: whether nothing is missing since the one before."""
    names: tuple[str, ...] = ()
    """Of a signal: the names of its channels, where the source has them."""
    capture: tuple[str, int] | None = None
    """That of its reading, of a window the last one."""
    camera: str = ""
    """The camera's trouble: dark, blurred, frozen or turned; empty: nothing is known."""


class State:
    """The state of a model along the windows of one pipeline: one window at a time."""

    def __init__(self) -> None:
        self.tensors: dict[str, Array] = {}
        """Inputs of the next window; empty: zeros."""
        self.of: object = None
        """The model that they came from."""
        self.seq = -1
        """Of the latest window."""


@record(quick=True, eq=False)
class Request:
    """A sample, or a region of it, for a model."""

    sample: Sample
    threshold: float | None = None
    """Instead of the manifest's."""
    region: tuple[int, int, int, int] | None = None
    """Of a picture, only this part: x1, y1, x2, y2 in its pixels."""
    state: State | None = None
    """The state of a stateful model from the windows before, or None."""
    least: float | None = None
    """Findings above this are wanted, too, even if the threshold is higher."""
    tensors: Tensors | None = None
    """Inputs of the network by name, instead of those made from the sample."""
    raw: bool = False
    """The network's raw outputs are wanted, undecoded."""
    foreign: bool = False
    """Asked by somebody else: an error in the sample says nothing about the model."""


class Findings:
    """A model's findings in one sample. Subclasses for other kinds change what differs."""

    __slots__ = ()

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        """Return the keys of a result's payload by its task; *digits* are of coordinates."""
        raise NotImplementedError

    def words(self) -> list[str]:
        """Return it as a few short lines, to be drawn on a picture."""
        raise NotImplementedError

    def moved(self, way: WayBack) -> Findings:
        """Return it in pixels of the frame, given in pixels of the network's input."""
        del way
        return self

    def above(self, threshold: float) -> Findings:
        """Return the findings of at least this score; all of them if they have no scores."""
        del threshold
        return self

    def numbers(self) -> Tensors:
        """Return all that is found as named arrays of any shape, to be compared with a margin."""
        return {}

    @property
    def best_score(self) -> float | None:
        """The highest score, 0 where nothing was found; None: such findings have none."""
        return None

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite, as far as decoders have not seen to it: JSON's are."""
        return True


@record(quick=True, eq=False)
class Detections(Findings):
    """Boxes found in a picture, best first: parallel columns, of which some are optional.

    An optional column is a field that may be None and an entry of `COLUMNS`.
    """

    boxes: NDArray[np.float32]
    """(n, 4) x1, y1, x2, y2 in pixels."""
    scores: NDArray[np.float32]
    """(n,)"""
    labels: tuple[str, ...]
    """(n,)"""
    points: NDArray[np.float32] | None = None
    """(n, k, 2) landmarks in pixels, where the network gives them; (n, k, 3) with scores."""
    tracks: NDArray[np.int64] | None = None
    """(n,) the number of each object, 0 where it has none yet; None: they are not tracked."""
    zones: tuple[tuple[str, ...], ...] | None = None
    """(n,) the names of the zones that each is in; None: there are no zones."""
    corners: NDArray[np.float32] | None = None
    """(n, 4, 2) of oriented boxes, in pixels, one after another; `boxes` lie around them."""
    masks: Masks | tuple[Mask, ...] | None = None
    """Of each, which pixels are its."""
    texts: tuple[str, ...] | None = None
    """(n,) the text in each box."""

    def __len__(self) -> int:
        return len(self.scores)

    def columns(self) -> Iterator[tuple[str, Column, Any]]:
        """Yield the optional columns that are present: field, kind and entries."""
        for name, column in COLUMNS.items():
            entries = getattr(self, name)
            if entries is not None:
                yield name, column, entries

    def select(self, index: NDArray[np.intp]) -> Detections:
        """Return some of the detections, by their numbers (m,), with all their columns."""
        return replace(
            self,
            boxes=self.boxes[index],
            scores=self.scores[index],
            labels=_taken(self.labels, index),
            **{name: _taken(entries, index) for name, _, entries in self.columns()},
        )

    def moved(self, way: WayBack) -> Detections:
        """Return them in pixels of the frame; those outside of it are left out."""
        boxes = way.back(self.boxes)
        inside: Any = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        found = self
        if not inside.all():
            index = inside.nonzero()[0]
            found, boxes = self.select(index), boxes[index]
        carried = {name: column.moved(entries, way) for name, column, entries in found.columns()}
        return replace(found, boxes=boxes, **carried)

    def above(self, threshold: float) -> Detections:
        # In the scores' own precision, as decoders compare.
        keep: Array = self.scores >= self.scores.dtype.type(threshold)
        return self if keep.all() else self.select(keep.nonzero()[0])

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        each = zip(self.labels, self.scores.tolist(), self.boxes.tolist(), strict=True)
        detections: list[dict[str, Any]] = [
            {
                "label": label,
                "score": round(score, 4),
                "box": [round(side, digits) for side in box],
            }
            for label, score, box in each
        ]
        for _, column, entries in self.columns():
            for detection, entry in zip(detections, column.entries(entries, digits), strict=True):
                if entry:
                    detection[column.key] = entry
        return {"detections": detections}

    @property
    def best_score(self) -> float:
        return float(self.scores[0]) if len(self) else 0.0

    @property
    def finite(self) -> bool:
        import numpy as np

        numeric = (entries for _, column, entries in self.columns() if column.numeric)
        return all(bool(np.isfinite(entries).all()) for entries in numeric)


def _taken(column: Any, index: Array) -> Any:
    """Return some entries of a column, an array or a tuple, by their numbers."""
    if isinstance(column, tuple):
        return tuple([column[place] for place in index.tolist()])
    return column[index]


@record(quick=True)
class Classes(Findings):
    """Classes of a picture or window, best first."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]

    def select(self, index: NDArray[np.intp]) -> Self:
        """Return some of the classes, by their numbers (m,)."""
        return replace(self, labels=_taken(self.labels, index), scores=_taken(self.scores, index))

    def above(self, threshold: float) -> Self:
        count = sum(score >= threshold for score in self.scores)
        return replace(self, labels=self.labels[:count], scores=self.scores[:count])

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        each = zip(self.labels, self.scores, strict=True)
        return {"classes": [{"label": label, "score": round(float(s), 4)} for label, s in each]}

    def words(self) -> list[str]:
        each = zip(self.labels[:5], self.scores[:5], strict=True)
        return [f"{label} {score:.2f}" for label, score in each]

    @property
    def best_score(self) -> float:
        return float(self.scores[0]) if self.scores else 0.0


@record(quick=True)
class Anomaly(Findings):
    """Distance of a window from normal."""

    score: float
    threshold: float | None
    """Above it a window is anomalous; None: it is being learned."""
    learning: float | None = None
    """Share of the windows for learning that have been seen, 0 to 1."""
    held: bool = False
    """It is not reported yet: too few of the latest windows were anomalous."""
    label: str = ""
    """The label of an anomalous sample, such as "speech"; empty if there is none."""

    @property
    def anomalous(self) -> bool:
        return self.threshold is not None and self.score > self.threshold and not self.held

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        anomaly: dict[str, Any] = {
            "score": significant(self.score),
            "threshold": self.threshold,
            "anomalous": self.anomalous,
        }
        if self.learning is not None:
            anomaly["learning"] = round(self.learning, 3)
        if self.label and self.anomalous:
            anomaly["label"] = self.label
        return {"anomaly": anomaly}

    def words(self) -> list[str]:
        named = self.label or "ANOMALY"
        quiet = f"no {self.label}" if self.label else "normal"
        return [f"{named if self.anomalous else quiet} {self.score:.3g}"]

    @property
    def best_score(self) -> float:
        return self.score

    @property
    def finite(self) -> bool:
        return isfinite(self.score)


@record(quick=True)
class Values(Findings):
    """Named numbers."""

    values: Mapping[str, float]
    digits: int = 6
    """Of each that are significant."""

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        each = self.values.items()
        return {"values": {name: significant(value, self.digits) for name, value in each}}

    def words(self) -> list[str]:
        return [f"{name} {value:.4g}" for name, value in list(self.values.items())[:12]]

    def numbers(self) -> Tensors:
        import numpy as np

        return {name: np.array([value]) for name, value in self.values.items()}

    @property
    def finite(self) -> bool:
        return all(map(isfinite, self.values.values()))


@record(quick=True, eq=False)
class Match(Classes):
    """The identity whose vector is most like a picture's, with the similarity as score; or none."""

    vector: NDArray[np.float32]
    """(d,) of length 1."""
    asked: bool
    """Whether it is published."""

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        each = zip(self.labels, self.scores, strict=True)
        best = [{"label": name, "similarity": round(float(score), 4)} for name, score in each]
        made: dict[str, Any] = {"match": best[0] if best else None}
        if self.asked:
            made["vector"] = [round(x, 7) for x in self.vector.tolist()]
        return made

    def words(self) -> list[str]:
        return Classes.words(self) or ["no match"]


@record(quick=True, eq=False)
class RawTensors(Findings):
    """The network's outputs, undecoded."""

    tensors: Tensors

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        return {"tensors": {name: array.tolist() for name, array in self.tensors.items()}}

    def words(self) -> list[str]:
        return [f"{name} {list(a.shape)}" for name, a in list(self.tensors.items())[:12]]

    def numbers(self) -> Tensors:
        return self.tensors


def significant(value: float, digits: int = 6) -> float:
    """Round to *digits* significant digits: values may be of any size."""
    return float(f"{value:.{digits}g}")


@record(quick=True)
class Timing:
    """Durations of one inference, milliseconds."""

    preprocess_ms: float
    infer_ms: float
    """Of the whole batch."""
    postprocess_ms: float
    together: int = 1
    """Samples in the batch."""


@record(quick=True, eq=False)
class Second:
    """Findings of a second stage."""

    found: tuple[Findings | None, ...]
    """By detection of the first stage; None: not inferred."""
    crops: int
    """Crops that were inferred …"""
    together: int
    """… of which this many at a time, at most …"""
    took_ms: float
    """… in this many milliseconds, preparing and decoding included."""
    then: Mapping[str, Second] = field(default_factory=dict)
    """Findings of the stages below, by name, for all detections of `found` in order."""


@record(quick=True, eq=False)
class Outcome:
    """What one model found in one sample."""

    model: str
    """name@version"""
    engine: str
    """openvino:<DEVICE> or onnxruntime:<Provider>"""
    findings: Findings
    timing: Timing
    then: Mapping[str, Second] = field(default_factory=dict)
    """By name of the second stage."""
    drift: Mapping[str, float] = field(default_factory=dict)
    camera: str = ""
    """How far the results before are from what is usual: by channel, and `score`."""
