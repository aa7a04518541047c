"""Everything this program can name as an error, and what becomes of it.

AgentError
  UsageError         wrong command line, settings, profile: exit 2, one line, no traceback
  ModelError         a model, manifest or package that must not be used: reject it, keep the old
  EngineError        this engine or device cannot load or run this model: try the next one
    BarredError      it could, but has taken the agent down doing so, again and again: leave it
  SourceError        the camera or sensor is gone: close it, wait, open it again
  SampleError        this one sample cannot be used: drop and count it
  BrokerError        the broker cannot be reached or said no: wait, try again
  SpoolError         the disk refuses messages that wait for the broker: memory, try again later
    SpoolDamagedError  the file is not one that we have written: set it aside
  RequestError       a command that cannot be carried out: answer why
  MalformedError     a message that is none of ours: count it, ignore it
"""

from __future__ import annotations

import sys


class AgentError(Exception):
    """An error with one line that says what is wrong, where, and how to mend it."""


class UsageError(AgentError):
    """Wrong usage or settings; the command ends with exit status 2."""


class ModelError(AgentError):
    """A model folder, file or manifest that is not fit to run."""


class EngineError(AgentError):
    """An engine or device that cannot load or run a model."""


class BarredError(EngineError):
    """A model that is left alone, for what it has done to the agent."""


class SourceError(AgentError):
    """A source that cannot be opened or has stopped giving readings."""


class SampleError(AgentError):
    """One reading that cannot be used."""


class BrokerError(AgentError):
    """A broker that cannot be reached or refuses us."""


class SpoolError(AgentError):
    """A disk that does not accept or return messages that wait for the broker."""


class SpoolDamagedError(SpoolError):
    """A spool file that is not as this program writes it."""


class RequestError(AgentError):
    """A command that cannot be carried out, for the reason that the reply gives."""


class MalformedError(AgentError):
    """A message that cannot be answered because it does not say enough."""


def one_line(text: str) -> str:
    """Keep what strangers wrote (a key, a file name) from breaking the line or the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def status_of(problem: AgentError) -> int:
    """Say on stderr what ended a command; gives its exit status."""
    print(f"edge-agent: {one_line(str(problem))}", file=sys.stderr)  # noqa: T201 - a command's word
    return 2 if isinstance(problem, UsageError) else 1
