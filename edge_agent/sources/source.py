"""The sources there are, behind one small protocol, chosen by the form of the text."""

from __future__ import annotations

import stat
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from ..core.errors import SourceError
from ..core.types import Kind, Reading
from .spec import SIGNALS, Form, SourceSpec

# Each module opens its forms with `open_source(spec, closing)`. Imported when first asked for: a
# box that reads a sensor has no use for a video library.
MODULES: Mapping[Form, str] = {
    "rtsp": "edge_agent.sources.camera",
    "rtsps": "edge_agent.sources.camera",
    "http": "edge_agent.sources.camera",
    "https": "edge_agent.sources.camera",
    "v4l2": "edge_agent.sources.camera",
    "file": "edge_agent.sources.clip",
    "dir": "edge_agent.sources.pictures",
    "csv": "edge_agent.sources.recording",
    "npy": "edge_agent.sources.recording",
    "f32": "edge_agent.sources.recording",
}

FILES = SIGNALS | {"file"}
_OTHERS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Source(Protocol):
    """One opened camera, clip, folder or recording. Used by one thread, closed by the same."""

    kind: Kind
    lossless: bool
    """Whether every reading counts: the source waits for its consumer instead of dropping."""

    @property
    def trouble(self) -> str | None:
        """What was wrong with it so far, though it could go on; None: nothing."""

    def grab(self) -> bool:
        """Wait for the next reading; False when the source has ended or is to be closed.

        Cheap: the picture is not yet decoded or converted.

        Raises:
            SourceError: the source is lost; close it and open it again later.

        """

    def retrieve(self) -> Reading:
        """Decode what `grab` waited for; called at most once for each `grab` that was True.

        Raises:
            SourceError: the source is lost.
            SampleError: this one reading cannot be used (a damaged picture); go on with the next.

        """

    def close(self) -> None:
        """Let go of the device or file; may be called twice."""


def open_source(spec: SourceSpec, closing: threading.Event | None = None) -> Source:
    """Open the source that *spec* names.

    Args:
        spec: what `parse_source` made of the settings.
        closing: once set, a `grab` that waits for a reading to be due gives up and returns False.
            A read inside a camera's driver does not see it.

    Raises:
        SourceError: it is not there, cannot be read, or gives nothing.

    """
    if spec.form in FILES:
        _need_file(spec)
    module = import_module(MODULES[spec.form])
    source: Source = module.open_source(spec, closing or threading.Event())
    return source


def _need_file(spec: SourceSpec) -> None:
    """See that a file is one: a pipe would be waited for without end, and has no beginning again.

    Raises:
        SourceError: it is something else. One that is missing is left to whoever opens it.

    """
    try:
        mode = spec.local.stat().st_mode
    except OSError:
        return
    for is_other, what in _OTHERS:
        if is_other(mode):
            raise SourceError(f"{spec.redacted}: is {what}, expected a file")
