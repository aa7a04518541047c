"""Records shared by the packages: samples, tensors, findings.

Arrays in records are never written to after construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from .errors import SampleError
from .frozen import record

Kind = Literal["picture", "signal"]
"""Kind of data that a source delivers."""
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:  # settings and models are read without NumPy
    Array = Any
Tensors = Mapping[str, Array]


@record
class TensorSpec:
    """One input or output of a network."""

    name: str
    shape: tuple[int | None, ...]
    """None where the network leaves the size open."""
    dtype: str
    """NumPy's name: uint8, int8, float16, float32, int64 …"""

    def __str__(self) -> str:
        sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name} {self.dtype}[{sizes}]"


@record(quick=True, eq=False)
class Reading:
    """One reading of a source: a picture, or some rows of a signal."""

    data: Array
    """Picture: uint8 (height, width, 3), BGR. Signal: float32 (rows, channels), oldest first,
    or float32 (count, …) of ready model inputs."""
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


@record(quick=True, eq=False)
class Sample:
    """One capture of a pipeline: the input of one inference."""

    data: Array
    """Picture: uint8 (height, width, 3), BGR. Signal: float32 (window, channels), or one ready
    model input of any shape."""
    seq: int
    """Counts every capture of the pipeline, so that gaps in the results show what was skipped."""
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
    """What a model with a state knows of the windows before; None: nothing."""
    least: float | None = None
    """What is found above this is wanted too, be the threshold higher."""


@record(quick=True, eq=False)
class Detections:
    """Boxes found in a picture, best first: parallel arrays."""

    boxes: NDArray[np.float32]
    """(n, 4) x1, y1, x2, y2 in pixels."""
    scores: NDArray[np.float32]
    """(n,)"""
    labels: tuple[str, ...]
    """(n,)"""
    points: NDArray[np.float32] | None = None
    """(n, k, 2) landmarks in pixels, where the network gives them."""
    tracks: NDArray[np.int64] | None = None
    """(n,) the number of each object, 0 where it has none yet; None: they are not tracked."""
    zones: tuple[tuple[str, ...], ...] | None = None
    """(n,) the names of the zones that each is in; None: there are no zones."""

    def __len__(self) -> int:
        return len(self.scores)


@record(quick=True)
class Classes:
    """Classes of a picture or window, best first."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]


@record(quick=True)
class Anomaly:
    """Distance of a window from normal."""

    score: float
    threshold: float | None
    """Above it a window is anomalous; None: it is being learned."""
    learning: float | None = None
    """How much of what it is learned from has been seen, 0 to 1."""
    held: bool = False
    """It is not reported yet: too few of the latest windows were anomalous."""

    @property
    def anomalous(self) -> bool:
        return self.threshold is not None and self.score > self.threshold and not self.held


@record(quick=True)
class Values:
    """Named numbers."""

    values: Mapping[str, float]


@record(quick=True, eq=False)
class RawTensors:
    """The network's outputs, undecoded."""

    tensors: Tensors


Findings = Detections | Classes | Anomaly | Values | RawTensors


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
    """… of which so many at a time, at most …"""
    took_ms: float
    """… in so many milliseconds, preparing and decoding included."""


@record(quick=True, eq=False)
class Outcome:
    """Findings of one model in one sample."""

    model: str
    """name@version"""
    engine: str
    """openvino:<DEVICE> or onnxruntime:<Provider>"""
    findings: Findings
    timing: Timing
    then: Mapping[str, Second] = field(default_factory=dict)
    """By name of the second stage."""
    drift: Mapping[str, float] = field(default_factory=dict)
    """How far the results before are from what is usual: by channel, and `score`."""
