"""Records shared by the packages: samples, tensors, findings.

Arrays in records are never written to after construction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, Self

from .columns import COLUMNS, Column, Masks, WayBack
from .errors import SampleError
from .frozen import record

Kind = Literal["picture", "signal", "text", "generate"]
"""Kind of data that a source delivers; texts and generation prompts come as questions."""
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
    """A size is None if the network does not fix it."""
    dtype: str
    """NumPy's name of the type: uint8, int8, float16, float32, int64 …"""

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
    """Wall clock when it (or its last row) was read."""
    since: float
    """Monotonic clock when it was read, seconds; to measure its age."""
    file: str | None = None
    """For a folder of pictures: the file's name relative to the folder."""
    columns: tuple[str, ...] = ()
    """For a signal with a header: the name of each channel."""
    times: NDArray[np.int64] | None = None
    """For a live signal: the wall clock of each row, nanoseconds, increasing."""
    rate_hz: float | None = None
    """Rows per second, if the source itself knows."""
    gap: bool = False
    """Whether something is missing between the previous reading and this one."""
    flaw: Callable[[int, int], SampleError] | None = None
    """For rows with missing numbers (NaN): returns why, by row and column, until the next reading.
    Raises ModelError if the column has no numbers at all."""
    capture: tuple[str, int] | None = None
    """For a shared source: a hash of its name, and the number of the reading there."""
    at: float | None = None
    """For a live signal: when its last row was measured, seconds on a clock that only goes forward,
    by the sender's times if there are any; None: when it was read."""
    unknown: Collection[str] | None = ()
    """The channels, and others, of which it says that no number is known, unlike those that it does
    not mention; None: each that is NaN."""


@record(quick=True, eq=False)
class Sample:
    """One capture of a pipeline: the input of one inference."""

    data: Array
    """Picture: uint8 (height, width, 3), BGR. Signal: float32 (window, channels), or one ready
    model input of any shape; without a model one reading (channels), float64 if the source
    delivers that. Text: uint8 (n,), UTF-8."""
    seq: int
    """Counts all captures of the pipeline, so that gaps in the results show skipped ones."""
    time_ns: int
    since: float
    """When its reading arrived, monotonic seconds."""
    file: str | None = None
    picture: bool = True
    early: object | None = None
    """Input prepared ahead, an `inference.model.PreparedSample`; ignored if it cannot be used."""
    began_ns: int | None = None
    """For a window of a live signal: the wall clock of its first sample."""
    follows: bool = True
    """For a window: whether nothing is missing since the previous one."""
    names: tuple[str, ...] = ()
    """For a signal: the names of its channels, if the source has them."""
    cut: object | None = None
    """For a window: the `models.manifest.InputSpec` by which it was cut."""
    capture: tuple[str, int] | None = None
    """The `capture` of its reading; for a window, of the last one."""
    camera: str = ""
    """The camera's problem: dark, blurred, frozen or turned; empty: none is known."""
    at: float | None = None
    """For a signal: the `at` of its last row; None: `since`."""
    unknown: Collection[str] | None = ()
    """The `unknown` of its reading, without a model."""


class State:
    """The state of a model between the windows of one pipeline, which come one at a time."""

    def __init__(self) -> None:
        self.tensors: dict[str, Array] = {}
        """State inputs for the next window; empty: zeros."""
        self.of: object = None
        """The model that returned them."""
        self.seq = -1
        """The `seq` of the latest window."""


@record(quick=True, eq=False)
class Request:
    """A sample, or a region of it, for a model."""

    sample: Sample
    threshold: float | None = None
    """Replaces the manifest's threshold."""
    region: tuple[int, int, int, int] | None = None
    """Only this part of a picture: x1, y1, x2, y2 in its pixels."""
    state: State | None = None
    """The state of a stateful model after the previous windows, or None."""
    least: float | None = None
    """Findings above this score are also wanted, even if the threshold is higher."""
    tensors: Tensors | None = None
    """Network inputs by name, instead of those made from the sample."""
    raw: bool = False
    """Whether the network's raw outputs are wanted, undecoded."""
    foreign: bool = False
    """Whether a client sent it: an error in the sample then says nothing about the model."""


class Findings:
    """A model's findings in one sample. Subclasses override what differs for their kind."""

    __slots__ = ()

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        """Return the task's keys of a result payload; *digits* are the decimals of coordinates."""
        raise NotImplementedError

    def words(self) -> list[str]:
        """Return the findings as a few short lines, to draw on a picture."""
        raise NotImplementedError

    def moved(self, way: WayBack) -> Findings:
        """Convert the findings from pixels of the network's input to pixels of the frame."""
        del way
        return self

    def above(self, threshold: float) -> Findings:
        """Return the findings with at least this score, or all if they have no scores."""
        del threshold
        return self

    def numbers(self) -> Tensors:
        """Return all findings as named arrays of any shape, to compare with a tolerance."""
        return {}

    @property
    def best_score(self) -> float | None:
        """The highest score, 0 if nothing was found; None: this kind of findings has no scores."""
        return None

    @property
    def finite(self) -> bool:
        """Whether all numbers not yet checked by a decoder are finite, as JSON requires."""
        return True


@record(quick=True, eq=False)
class Detections(Findings):
    """Boxes found in a picture, best first, as parallel columns, some of them optional.

    An optional column is a field that may be None and an entry of `COLUMNS`.
    """

    boxes: NDArray[np.float32]
    """(n, 4) x1, y1, x2, y2 in pixels."""
    scores: NDArray[np.float32]
    """(n,)"""
    labels: tuple[str, ...]
    """(n,)"""
    points: NDArray[np.float32] | None = None
    """(n, k, 2) landmarks in pixels, if the network returns them; (n, k, 3) with scores."""
    tracks: NDArray[np.int64] | None = None
    """(n,) the track number of each object, 0 if it has none yet; None: no tracking."""
    zones: tuple[tuple[str, ...], ...] | None = None
    """(n,) the names of the zones that contain each one; None: there are no zones."""
    corners: NDArray[np.float32] | None = None
    """(n, 4, 2) consecutive corners of oriented boxes, pixels; `boxes` enclose them."""
    masks: Masks | tuple[Mask, ...] | None = None
    """The pixels of each object."""
    texts: tuple[str, ...] | None = None
    """(n,) the text in each box."""

    def __len__(self) -> int:
        return len(self.scores)

    def columns(self) -> Iterator[tuple[str, Column, Any]]:
        """Yield the optional columns that are present: field, column and entries."""
        for name, column in COLUMNS.items():
            entries = getattr(self, name)
            if entries is not None:
                yield name, column, entries

    def select(self, index: NDArray[np.intp]) -> Detections:
        """Return the detections at these indices (m,), with all their columns."""
        return replace(
            self,
            boxes=self.boxes[index],
            scores=self.scores[index],
            labels=_taken(self.labels, index),
            **{name: _taken(entries, index) for name, _, entries in self.columns()},
        )

    def moved(self, way: WayBack) -> Detections:
        """Convert them to pixels of the frame; those outside of it are dropped."""
        boxes = way.back(self.boxes)
        inside: Any = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        found = self
        if not inside.all():
            index = inside.nonzero()[0]
            found, boxes = self.select(index), boxes[index]
        carried = {name: column.moved(entries, way) for name, column, entries in found.columns()}
        return replace(found, boxes=boxes, **carried)

    def above(self, threshold: float) -> Detections:
        # In the precision of the scores, as decoders compare.
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
    """Return the entries of a column, an array or a tuple, at these indices."""
    if isinstance(column, tuple):
        return tuple([column[place] for place in index.tolist()])
    return column[index]


@record(quick=True)
class Classes(Findings):
    """Classes of a picture or a window, best first."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    every: Array | None = field(default=None, kw_only=True, repr=False, compare=False)
    """(n,) the scores of all classes of the network, also of those left out."""

    def select(self, index: NDArray[np.intp]) -> Self:
        """Return the classes at these indices (m,)."""
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
    """A window with a higher score is anomalous; None: it is still being learned."""
    learning: float | None = None
    """Share of the learning windows seen so far, 0 to 1."""
    held: bool = False
    """Whether it is not reported yet because too few of the latest windows were anomalous."""
    label: str = ""
    """The label of an anomalous sample, such as "speech"; empty if there is none."""

    @property
    def anomalous(self) -> bool:
        return self.threshold is not None and self.score > self.threshold and not self.held

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        anomaly: dict[str, Any] = {
            "score": significant(self.score),
            "threshold": None if self.threshold is None else significant(self.threshold),
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
    """Significant digits of each number."""
    unknown: frozenset[str] = frozenset()
    """Those that the source says it does not know, unlike those that it does not mention."""

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
    """The identity whose vector is most similar to a picture's, scored by similarity; or none."""

    vector: NDArray[np.float32]
    """(d,) of length 1."""
    asked: bool
    """Whether the vector is published."""

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        each = zip(self.labels, self.scores, strict=True)
        best = [{"label": name, "similarity": round(float(score), 4)} for name, score in each]
        made: dict[str, Any] = {"match": best[0] if best else None}
        if self.asked:
            made["vector"] = [round(x, 7) for x in self.vector.tolist()]
        return made

    def words(self) -> list[str]:
        unmatched = f"vector of {self.vector.size} numbers" if self.asked else "no match"
        return Classes.words(self) or [unmatched]


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
    """Round to *digits* significant digits: values may have any magnitude."""
    return float(f"{value:.{digits}g}")


@record(quick=True)
class Timing:
    """Durations of one inference, milliseconds."""

    preprocess_ms: float
    infer_ms: float
    """Duration for the whole batch."""
    postprocess_ms: float
    together: int = 1
    """Samples in the batch."""


@record(quick=True, eq=False)
class Second:
    """Findings of a second stage."""

    found: tuple[Findings | None, ...]
    """Findings for each detection of the first stage; None: not inferred, or it failed."""
    crops: int
    """Number of crops that were inferred."""
    together: int
    """Most crops in one batch."""
    took_ms: float
    """Time for all crops, milliseconds, including preprocessing and decoding."""
    then: Mapping[str, Second] = field(default_factory=dict)
    """Findings of the next stages, by name, for all detections of `found` in order."""
    by: object | None = None
    """The `inference.model.Model` that has found them; None: it is not loaded."""
    error: str | None = None
    """Why it has failed on some of the detections, or all."""
    failed: frozenset[int] = frozenset()
    """The indices of these."""


def _finds(finds: Sequence[str], label: str) -> bool:
    """Whether a model that *finds* these classes may find one; without names, they are numbers."""
    return label in finds if finds else label.isdecimal()


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
    """Findings by name of the second stage."""
    told: tuple[Sequence[str], ...] = ()
    """Where a second stage has failed: what each model finds that has not; empty: numbers."""
    lost: tuple[Sequence[str], ...] = ()
    """What each of those finds that have, and of those below them; empty: it is not known."""
    drift: Mapping[str, float] = field(default_factory=dict)
    """How far the previous results are from the usual ones: by channel, and `score`."""
    undecided: Collection[str] = ()
    """What may still be as before, by `smooth`: too few windows since a gap tell."""
    camera: str = ""

    def tells(self, labels: Collection[str]) -> bool:
        """Whether it tells of each of these labels if it is there."""
        unknown = any(not finds for finds in self.lost)
        return not any(
            any(label in finds for finds in self.lost)
            or (unknown and not any(_finds(finds, label) for finds in self.told))
            for label in labels
        )
