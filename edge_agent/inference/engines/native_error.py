"""One line of what native code reports, without the names of its own source files."""

from __future__ import annotations

import re
from pathlib import Path

# Where in its sources an engine found the trouble: for its developers, not for the user.
_LOCATIONS = re.compile(
    r"^(Exception from |Check '.*' failed at |FrontEnd API failed with "
    r"|Model wasn't fully converted|While validating |Loading input model$|.*:$)"
)
_PREFIXES = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |Load model from .*? failed:\s*"
    r"|^(NotFound|RuntimeError): |^-- |\S*/onnxruntime/core/\S+ .*?\) "
)
_LIBRARIES = re.compile(r"[^\s\"']*/([^\s\"'/]+\.so\b)")


def native_reason(problem: BaseException, network: Path) -> str:
    """Return the first line of a native error that is useful to the user, at most 300 characters.

    Args:
        problem: as it was raised.
        network: file whose path is shortened to its name.
    """
    text = str(problem).replace(str(network), network.name)
    text = _LIBRARIES.sub(r"\1", text)
    lines = [_PREFIXES.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    useful = [line for line in lines if not _LOCATIONS.match(line)]
    line = (useful or lines or [type(problem).__name__])[0]
    return line if len(line) <= 300 else line[:297] + "…"
