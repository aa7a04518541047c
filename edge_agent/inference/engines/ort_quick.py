"""The quickest way to a right result of an ONNX file: lightly optimised, on ONNX Runtime's CPU.

A full optimisation takes longer than the first inference gains by it, and any other engine longer
to import. The file is read once (`ort_quick_check`): what has been checked is what is run, and what
becomes of the file while the session serves changes nothing.
"""

from __future__ import annotations

from mmap import mmap
from pathlib import Path
from typing import Any

from .checked_network import CheckedNetwork
from .engine import FixShapes, fix_inputs
from .ort import OrtEngine, session_config, specs
from .ort_options import EXACT_BYTES
from .ort_stages import open_session


class OrtQuickEngine(OrtEngine):
    """A session whose weights lie in a file that has been read."""

    def __init__(
        self, session: Any, network: Path, fix_shapes: FixShapes, data: bytes | mmap
    ) -> None:
        """Make an engine of a session.

        Raises:
            EngineError: an input stays open.
            ModelError: the inputs are larger than this device has memory for.

        """
        inputs = fix_inputs(specs(session.get_inputs(), network), fix_shapes, network)
        super().__init__(session, inputs, specs(session.get_outputs(), network))
        self._data = data
        """Lives as long as the engine: the session, and a call that is under way, use it."""


class QuickLoad:
    """A network that has been loaded, before anything else of its model is known."""

    def __init__(self, checked: CheckedNetwork) -> None:
        """Load a network that has been checked.

        Raises:
            EngineError: it has to be loaded in another way.

        """
        self._checked = checked
        words, _ = session_config(checked.choice)
        # Which takes long to open, and is seen to in other ways here.
        entries = {key: text for key, text in words["entries"].items() if key != EXACT_BYTES}
        # Takes a quarter off the opening where a processor is free, and nothing where none is.
        entries.setdefault("session.prepack.enable_parallel", "1")
        level = "extended" if checked.exact else "basic"
        name = checked.path.name
        self._session = open_session(
            checked.graph,
            {**words, "entries": entries, "level": level},
            name,
            weights={name: checked.data},
        )

    def engine(self, fix_shapes: FixShapes) -> OrtQuickEngine:
        """Return the engine; see `OrtQuickEngine`."""
        return OrtQuickEngine(self._session, self._checked.path, fix_shapes, self._checked.data)
