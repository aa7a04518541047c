"""Calls a function of the benchmark in a process of its own.

While cold starts are timed, the benchmark's process must not hold the libraries that the timed
ones load: what is mapped anywhere is not read from the disk again. `python -m
edge_agent.bench.common.child MODULE FUNCTION` takes arguments as JSON on stdin, prints the result
as JSON on stdout, and lines for people on stderr.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from typing import Any

from ...core.errors import AgentError, UsageError


def call(module: str, function: str, **arguments: Any) -> Any:
    """Call a function of a module, named in full; arguments and result are JSON.

    Raises:
        AgentError: what the function raised, of the same kind, or it crashed.

    """
    command = [sys.executable, "-m", __name__, module, function]
    done = subprocess.run(
        command, input=json.dumps(arguments), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise AgentError(f"{module}.{function} ended with {done.returncode}")
    answer = json.loads(done.stdout)
    if "problem" in answer:
        raise (UsageError if answer["usage"] else AgentError)(answer["problem"])
    return answer["result"]


def main(module: str, function: str) -> None:
    """Answer one call."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # who called says what there is to be said
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # native libraries print, too
    arguments = json.load(sys.stdin)
    try:
        work = getattr(import_module(module), function)
        answer: dict[str, Any] = {"result": work(**arguments)}
    except AgentError as problem:
        answer = {"problem": str(problem), "usage": isinstance(problem, UsageError)}
    with answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main(*sys.argv[1:3])
