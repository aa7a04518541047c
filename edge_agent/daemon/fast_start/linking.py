"""Linking ahead: the dynamic linker's work, done while Python imports other modules.

It is half of the import of OpenCV and a quarter of PyAV's, and `import` holds the GIL meanwhile;
`dlopen` itself needs no GIL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any


def link_ahead(packages: Sequence[str]) -> None:
    """Start to load the shared libraries of packages, in a thread.

    What cannot be loaded is left to the import of the package, which reports it.

    Raises:
        RuntimeError: the system allows no more threads.
    """
    import ctypes  # NumPy imports it in any case

    open_library = ctypes.CDLL(None).dlopen
    threading.Thread(target=_link, args=(packages, open_library), name="link", daemon=True).start()


def _link(packages: Sequence[str], open_library: Any) -> None:
    for package in packages:
        found = find_spec(package)
        for folder in (found and found.submodule_search_locations) or ():
            # Those of the package itself first: their dependencies are the large ones.
            for place, _, names in os.walk(folder):
                for name in sorted(names):
                    if name.endswith(".so"):
                        open_library(os.fsencode(f"{place}/{name}"), os.RTLD_NOW)
