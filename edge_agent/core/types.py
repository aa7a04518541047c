"""What passes between the rooms: frozen records without behaviour of their own.

Arrays in records are never written to after construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .frozen import record

Kind = Literal["picture", "signal"]
"""What a source gives."""
Array = NDArray[Any]
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
    """What a source gives: one picture, or some rows of a signal."""

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


@record(quick=True, eq=False)
class Sample:
    """One capture of a pipeline: what one inference is made on."""

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
    """What a model has prepared of it ahead, an `inference.model.PreparedSample`; ignored where it
    cannot be
    used."""


@record(quick=True, eq=False)
class Request:
    """What a model is to look at."""

    sample: Sample
    threshold: float | None = None
    """Instead of the manifest's."""
    region: tuple[int, int, int, int] | None = None
    """Of a picture, look only here: x1, y1, x2, y2 in its pixels."""


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

    def __len__(self) -> int:
        return len(self.scores)


@record(quick=True)
class Classes:
    """What a picture or window shows, best first."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]


@record(quick=True)
class Anomaly:
    """How far a window is from normal."""

    score: float
    threshold: float

    @property
    def anomalous(self) -> bool:
        return self.score > self.threshold


@record(quick=True)
class Values:
    """Named numbers."""

    values: Mapping[str, float]


@record(quick=True, eq=False)
class RawTensors:
    """The network's outputs as they are."""

    tensors: Tensors


Findings = Detections | Classes | Anomaly | Values | RawTensors


@record(quick=True)
class Timing:
    """Where the time of one inference went, milliseconds."""

    preprocess_ms: float
    infer_ms: float
    """Of all that were inferred together."""
    postprocess_ms: float
    together: int = 1
    """How many samples they were."""


@record(quick=True, eq=False)
class Second:
    """What a second stage found."""

    found: tuple[Findings | None, ...]
    """On each detection of the first; None: it was not looked at."""
    crops: int
    """How many were looked at …"""
    together: int
    """… of which so many at a time, at most …"""
    took_ms: float
    """… in so many milliseconds, preparing and decoding included."""


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
