"""The quickest way to a right result of an ONNX file: lightly optimized, on ONNX Runtime's CPU.

A full optimization takes longer than the first inference gains by it, and any other engine longer
to import. The file is read once (`ort_quick_check`): what has been checked is what is run, and what
becomes of the file while the session serves changes nothing. Light: a session is opened while much
else is being imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ort_session import EXACT_BYTES, open_session, session_config

if TYPE_CHECKING:
    from .engine import CheckedNetwork, FixShapes
    from .ort import OrtEngine


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

    def engine(self, fix_shapes: FixShapes) -> OrtEngine:
        """Make an engine of the session; its weights lie in what has been read of the file.

        Raises:
            EngineError: an input stays open.
            ModelError: the inputs are larger than this device has memory for.
        """
        from .engine import fix_inputs
        from .ort import OrtEngine, specs

        session, network = self._session, self._checked.path
        inputs = fix_inputs(specs(session.get_inputs(), network), fix_shapes, network)
        outputs = specs(session.get_outputs(), network)
        return OrtEngine(session, inputs, outputs, data=self._checked.data)
