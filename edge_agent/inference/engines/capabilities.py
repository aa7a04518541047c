"""What an engine can do, stated by its own module without loading its library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal

from ...core.frozen import record

PreparedKind = Literal["graph", "blob"]
"""graph: the optimized graph in stages and weights that are mapped; loading can begin before the
rest of the program is imported, and weights may come and go. blob: the compiled network, exported
and imported as one file."""


@record(kw_only=True)
class Capabilities:
    """One engine, whatever the machine."""

    title: str
    """Its name for people."""
    module: str
    """Defines `open_network`; importing it loads the engine's library."""
    package: str
    """Import name of the library."""
    distributions: tuple[str, ...]
    """Packages that bring the library, the usual one first."""
    formats: Mapping[str, str]
    """Network files that it reads: by suffix, what such a file is called."""
    survey: Callable[[], tuple[str, Mapping[str, str]]]
    """Loads the library; returns its version and the devices there are, by the name that a profile
    uses, with their names for people."""
    drivers: Mapping[str, str] = field(default_factory=dict)
    """By device in capitals: what must have a driver loaded: intel, nvidia, amd or npu. Of a device
    not listed only `survey` can tell."""
    virtual_devices: frozenset[str] = frozenset()
    """Devices in capitals that only choose among others."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """Options of a session on the CPU that computes each operator as it stands in the file."""
    open_batch: bool = False
    """Whether a network that leaves its batch open, once loaded, takes any number of samples. Else
    it is compiled for each number."""
    prepared: PreparedKind | None = None
    """Kind of prepared form that is made of its networks on the CPU; None: none."""
    prepared_module: str = ""
    """Defines `open_prepared`; importing it loads the engine's library."""
    maker_module: str = ""
    """Defines `make_form`, likewise."""
    runs_arriving: bool = False
    """Whether a network can run on the CPU while its weights arrive."""
    quick_module: str = ""
    """Defines `QuickLoad`: loads a network on the CPU sooner than `open_network`, to run slower."""
    quick_check_module: str = ""
    """Defines `check`, for what `QuickLoad` takes: needs no engine."""
