"""The tree of errors, each with what its handler does.

AgentError
  UsageError         wrong command line, settings, profile: exit 2, one line, no traceback
  ModelError         a model, manifest or package that must not be used: reject it, keep the old
  EngineError        this engine or device cannot load or run this model: try the next one
    BarredError      the model has crashed the agent several times in a row: do not load it again
  SourceError        the camera or sensor is gone: close it, wait, open it again
  SampleError        this one sample cannot be used: drop and count it
  BrokerError        the broker cannot be reached or refuses us: back off, try again
    PublishRefusedError  it takes no such message: report it, do not try again
  WebError           a web server does not answer as it should: try again, or report why
  SpoolError         messages waiting for the broker cannot be stored: keep in memory, try later
    SpoolDamagedError  the file is not as we write it: set it aside
  RequestError       a command cannot be carried out: reply with the reason
    NotNowError      a command cannot be carried out at this moment: the sender may try again
  MalformedError     a message cannot be parsed: count it, ignore it
"""

from __future__ import annotations

import errno
import sys

from .text import one_line


class AgentError(Exception):
    """An error whose text is one line: where, what is wrong, and the fix.

    The text may quote outside input; it is sanitized here for every log, topic and terminal.
    """

    def __init__(self, text: object = "") -> None:
        super().__init__(one_line(str(text)))


class UsageError(AgentError):
    """Wrong usage or settings; the command ends with exit status 2."""


class ModelError(AgentError):
    """A model folder, file or manifest that must not be used."""


class EngineError(AgentError):
    """An engine or device that cannot load or run a model."""


class Unfit(str):
    """Why an engine cannot load a network on a processor at all, which nobody can mend."""

    __slots__ = ()


class BarredError(EngineError):
    """A model that has crashed the agent too often to be loaded again."""


class OnTrialError(ModelError):
    """A version that must not serve before its trial is over."""


class SourceError(AgentError):
    """A source that cannot be opened or has stopped delivering readings."""

    again_at = 0.0
    """When it is opened again, monotonic seconds; the same for all readers of a shared source."""


class SilentError(SourceError):
    """A sensor that says nothing; it stays open."""


class SourceInUseError(SourceError):
    """A source that another program has open, which may be the agent itself."""


class SampleError(AgentError):
    """One sample that cannot be used."""

    quiet_at: float | None = None
    """When it came, monotonic seconds, where it only says that nothing is known at the moment: it
    ends a window, and is no trouble yet."""


class BrokerError(AgentError):
    """A broker that cannot be reached or refuses us."""


class PublishRefusedError(BrokerError):
    """A message that the broker takes over no connection: forbidden to us, or too large."""


class WebError(AgentError):
    """A web server that does not answer, or not as it should."""

    def __init__(self, text: object, *, again: bool = True, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.again = again
        """Whether the same request may be sent again."""
        self.pause_s = pause_s
        """The pause that the server asked for, seconds; 0: none."""


class SpoolError(AgentError):
    """Messages waiting for the broker could not be written to disk or read from it."""


class SpoolDamagedError(SpoolError):
    """A spool file with content that this program did not write."""


class RequestError(AgentError):
    """A command that cannot be carried out; the reply gives the reason."""


class NotNowError(RequestError):
    """A command that cannot be carried out at this moment."""


class MalformedError(AgentError):
    """A message that cannot be parsed, so that no reply is possible."""

    def __init__(self, words: str, *, logged: bool = False) -> None:
        super().__init__(words)
        self.logged = logged
        """Whether it has been logged already."""


NO_THREAD = (
    "the system allows no further thread; raise the limit of processes (ulimit -u, TasksMax= "
    "of the service, pids.max of the container) or of memory, or use fewer pipelines"
)


def system_limit(problem: BaseException | None) -> AgentError | None:
    """Return the error of an exhausted system limit, which an operator can raise, or None."""
    return thread_limit(problem) or _file_limit(problem)


def thread_limit(problem: BaseException | None) -> AgentError | None:
    """Return the error if the system allows no further thread."""
    # CPython has no exception class for it, and other exceptions may have followed from it.
    while problem is not None and str(problem) != "can't start new thread":
        problem = problem.__context__
    if not isinstance(problem, RuntimeError):
        return None
    return AgentError(NO_THREAD)


def _file_limit(problem: BaseException | None) -> AgentError | None:
    """Return the error if the system allows no further open file.

    None also if an error of ours already names the file that could not be opened.
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
    """Whether the process or the system has reached its limit on open files."""
    if isinstance(problem, ImportError):
        # For a shared library the loader gives only a text: the error number if it has no catalog.
        return str(problem).endswith(("Too many open files", "Error 24", "Error 23"))
    return isinstance(problem, OSError) and problem.errno in (errno.EMFILE, errno.ENFILE)


def print_error(problem: AgentError) -> int:
    """Print the error that ended a command to stderr; return the exit status."""
    print(f"edge-agent: {problem}", file=sys.stderr)  # noqa: T201 - a command's output
    return 2 if isinstance(problem, UsageError) else 1
