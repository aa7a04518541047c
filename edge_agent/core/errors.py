"""The tree of errors, each with the reaction of its handler.

AgentError
  UsageError         wrong command line, settings, profile: exit 2, one line, no traceback
  ModelError         a model, manifest or package that must not be used: reject it, keep the old
  EngineError        this engine or device cannot load or run this model: try the next one
    BarredError      it has crashed the agent several times in a row: do not load it again
  SourceError        the camera or sensor is gone: close it, wait, open it again
  SampleError        this one sample cannot be used: drop and count it
  BrokerError        the broker cannot be reached or refuses us: back off, try again
  WebError           a web server that does not answer as it should: try again, or say why
  SpoolError         the disk refuses messages that wait for the broker: memory, try again later
    SpoolDamagedError  the file is not one that we have written: set it aside
  RequestError       a command that cannot be carried out: answer why
    NotNowError      it could be, at another moment: ask again
  MalformedError     a message that makes no sense: count it, ignore it
"""

from __future__ import annotations

import errno
import sys

from .text import one_line


class AgentError(Exception):
    """An error whose text is one line: where, what is wrong, and the fix.

    The text may quote what comes from outside: it is made harmless here, for every log, topic and
    terminal that it goes to.
    """

    def __init__(self, text: object = "") -> None:
        super().__init__(one_line(str(text)))


class UsageError(AgentError):
    """Wrong usage or settings; the command ends with exit status 2."""


class ModelError(AgentError):
    """A model folder, file or manifest that must not be used."""


class EngineError(AgentError):
    """An engine or device that cannot load or run a model."""


class BarredError(EngineError):
    """A model that has crashed the agent too often to be loaded again."""


class SourceError(AgentError):
    """A source that cannot be opened or has stopped delivering readings."""

    again_at = 0.0
    """When it is opened again, monotonic seconds; of one that several read, the same for all."""


class SampleError(AgentError):
    """One sample that cannot be used."""


class BrokerError(AgentError):
    """A broker that cannot be reached or refuses us."""


class WebError(AgentError):
    """A web server that does not answer, or not as it should."""

    def __init__(self, text: object, *, again: bool = True, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.again = again
        """Whether it may be asked the same again, …"""
        self.pause_s = pause_s
        """… after the pause that it has asked for; 0: it has asked for none."""


class SpoolError(AgentError):
    """The disk failed to write or read messages that wait for the broker."""


class SpoolDamagedError(SpoolError):
    """A spool file that is not as this program writes it."""


class RequestError(AgentError):
    """A command that cannot be carried out, for the reason that the reply gives."""


class NotNowError(RequestError):
    """A command that cannot be carried out at this moment."""


class MalformedError(AgentError):
    """A message that cannot be parsed, so that no reply is possible."""

    def __init__(self, words: str, *, logged: bool = False) -> None:
        super().__init__(words)
        self.logged = logged
        """Whether the log has it already."""


def system_limit(problem: BaseException | None) -> AgentError | None:
    """Return the error that an operator can fix, where the system allows no more of something."""
    return thread_limit(problem) or _file_limit(problem)


def thread_limit(problem: BaseException | None) -> AgentError | None:
    """Return that error if the system allows no further thread."""
    # CPython has no class of its own for it; and on the way out, others may have tripped over it.
    while problem is not None and str(problem) != "can't start new thread":
        problem = problem.__context__
    if not isinstance(problem, RuntimeError):
        return None
    return AgentError(
        "the system allows no further thread; raise the limit of processes (ulimit -u, TasksMax= "
        "of the service, pids.max of the container) or of memory, or use fewer pipelines"
    )


def _file_limit(problem: BaseException | None) -> AgentError | None:
    """Return that error if the system allows no further open file.

    None also where an error of ours has said already which file could not be opened.
    """
    while problem is not None and not isinstance(problem, AgentError):
        if _too_many_files(problem):
            return AgentError(
                "the system allows no further open file; raise the limit (ulimit -n, LimitNOFILE= "
                "of the service), or use fewer pipelines"
            )
        problem = problem.__context__
    return None


def _too_many_files(problem: BaseException) -> bool:
    """Whether a limit on open files was reached, of the process or of the system."""
    if isinstance(problem, ImportError):
        # Of a shared library the loader has only a text, and none where it lacks the catalog.
        return str(problem).endswith(("Too many open files", "Error 24", "Error 23"))
    return isinstance(problem, OSError) and problem.errno in (errno.EMFILE, errno.ENFILE)


def print_error(problem: AgentError) -> int:
    """Print the error that ended a command on stderr; return the exit status."""
    print(f"edge-agent: {problem}", file=sys.stderr)  # noqa: T201 - a command's output
    return 2 if isinstance(problem, UsageError) else 1
