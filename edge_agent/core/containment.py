"""The one place where any exception that a model causes is converted to an error of ours.

A model is untrusted code. Loading, warming up, running or decoding it may raise any exception:
MemoryError, RecursionError, SystemError from a native library, an unforeseen IndexError in a
decoder. Each costs only that model or that sample: all code that uses a model handles the errors
in `errors`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from .errors import AgentError, EngineError
from .text import cut, one_line

log = logging.getLogger(__name__)

MOST = 300
"""Longest text taken from an exception, in characters."""


@contextmanager
def contained(where: str, error: type[AgentError] = EngineError) -> Iterator[None]:
    """Convert any other exception raised inside to *error*; errors of ours pass unchanged.

    Raises:
        AgentError: an instance of *error*.
    """
    try:
        yield
    except AgentError:
        raise
    except Exception as problem:
        raise converted(problem, where, error) from problem


def converted(problem: Exception, where: str, error: type[AgentError] = EngineError) -> AgentError:
    """Convert a foreign exception to *error*, where a context manager would cost too much."""
    log.debug("%s", where, exc_info=problem)
    return error(f"{where}: {reason(problem)}")


def reason(problem: Exception) -> str:
    """Return the error in one line, with the code location if it may be a bug of ours."""
    said = words(problem)
    if isinstance(problem, MemoryError):
        return f"not enough memory{': ' if said else ''}{said}"
    if isinstance(problem, OSError) and problem.strerror is not None:
        return said
    place = ""
    for frame, line in walk_tb(problem.__traceback__):
        _, package, path = frame.f_code.co_filename.rpartition("edge_agent/")
        if package and frame.f_code.co_filename != __file__:
            place = f" (at {package}{path}:{line})"
    return f"{type(problem).__name__}{': ' if said else ''}{said}{place}"


def words(problem: Exception) -> str:
    """Return the exception's own text in one line; a system error's without its number."""
    if isinstance(problem, OSError) and problem.strerror is not None:
        name = "" if problem.filename is None else f"{problem.filename}: "
        return one_line(f"{name}{problem.strerror}")
    said = next((line.strip() for line in str(problem).splitlines() if line.strip()), "")
    return one_line(cut(said, MOST))
