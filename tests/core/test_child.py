"""One question to a child process: its answer, its errors, and every way that it can end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from edge_agent.core.child import Child, ChildError, ChildStoppedError, ask, last_line, signal_name
from edge_agent.core.errors import AgentError, SourceError, UsageError

WORK = """
import os, sys, time
from edge_agent.core import errors
from edge_agent.core.child import answer_question

def work(question):
    {body}

answer_question(work)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Write a child whose function has the body that the test asks for."""
    body = textwrap.indent(str(request.param), "    ").strip()
    (tmp_path / "asked.py").write_text(WORK.format(body=body), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "asked"


@pytest.mark.parametrize(
    "module", ["print('noise'); os.write(1, b'more'); return {'is': question}"], indirect=True
)
def test_the_answer_comes_back_whatever_is_printed(module: str) -> None:
    """JSON goes there and back; what native libraries print on stdout does not disturb it."""
    assert ask(module, ["x", 1, None], "the work") == {"is": ["x", 1, None]}


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("raise errors.UsageError('bad key')", UsageError),
        ("raise errors.SourceError('bad key')", SourceError),
        ("raise type('OwnError', (errors.AgentError,), {})('bad key')", AgentError),
    ],
    indirect=["module"],
)
def test_an_error_of_the_child_is_raised_here(module: str, kind: type[AgentError]) -> None:
    """An AgentError of the child has the same text and, where core names it, the same class."""
    with pytest.raises(AgentError, match=r"^bad key$") as raised:
        ask(module, None, "the work")
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("os.abort()", "the work ended with SIGABRT"),
        ("os._exit(3)", "the work ended with status 3 and no answer"),
        ("raise KeyError('x')", "the work ended with status 1 and no answer: KeyError: 'x'"),
        ("os.write(2, b'a'); os._exit(0)", "the work ended with status 0 and no answer: a"),
    ],
    indirect=["module"],
)
def test_death_in_words(module: str, words: str) -> None:
    """A child that dies is named with its signal, or its status and last words."""
    with pytest.raises(ChildError) as raised:
        ask(module, None, "the work")
    assert str(raised.value) == words


@pytest.mark.parametrize(
    "module", ["__import__('subprocess').run(['sleep', '600'])"], indirect=True
)
def test_one_that_hangs_is_killed_with_what_it_started(module: str) -> None:
    """After its time is over, or when it is not needed any more, nothing of it is left."""
    with pytest.raises(ChildError, match=r"the work gave no answer within 0.3 s and was killed"):
        ask(module, None, "the work", timeout_s=0.3)
    before = psutil.Process().children()
    child = Child(module, None, "the work")
    (own,) = (each for each in psutil.Process().children() if each not in before)
    deadline = time.monotonic() + 30
    while not own.children() and time.monotonic() < deadline:
        time.sleep(0.01)
    family = [own, *own.children()]
    assert len(family) == 2
    with pytest.raises(ChildStoppedError, match=r"^the end$"):
        child.answer(stopped=lambda: "the end")
    assert not psutil.wait_procs(family, timeout=10)[1]


@pytest.mark.parametrize(
    "module",
    ["return [os.nice(0), open('/proc/self/oom_score_adj').read().strip()]"],
    indirect=True,
)
def test_in_the_background(module: str, tmp_path: Path) -> None:
    """It takes low priority, and is the first to go when memory runs out, only where asked."""
    nice = os.nice(0)
    assert ask(module, None, "the work")[0] == nice
    text = (tmp_path / "asked.py").read_text(encoding="utf-8")
    (tmp_path / "asked.py").write_text(
        text.replace("(work)\n", "(work, background=True)\n", 1), encoding="utf-8"
    )
    text = (tmp_path / "asked.py").read_text(encoding="utf-8")
    assert ask(module, None, "the work") == [min(19, nice + 10), "1000"]


@pytest.mark.parametrize("module", ["time.sleep(0.6); return 'done'"], indirect=True)
def test_one_that_yields_is_stopped_meanwhile(module: str) -> None:
    """It pauses where others want its core, answers all the same, and can be killed so."""
    before = psutil.Process().children()
    child = Child(module, None, "the work")
    (own,) = (each for each in psutil.Process().children() if each not in before)
    seen = set()
    asked = threading.Event()
    ended = threading.Event()

    def yields() -> bool:
        asked.set()
        return True

    def look() -> None:
        asked.wait()
        while not ended.is_set():
            with suppress(psutil.NoSuchProcess):
                seen.add(own.status())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert child.answer(yields=yields) == "done"
    finally:
        ended.set()
        asked.set()
        looking.join()
    assert psutil.STATUS_STOPPED in seen
    assert len(seen) > 1
    with pytest.raises(ChildError, match="gave no answer within"):
        ask(module, None, "the work", timeout_s=0.3, yields=lambda: True)


@pytest.mark.parametrize(
    "module", ["return [os.getsid(0), os.getpgrp(), os.getpid()]"], indirect=True
)
def test_it_shares_the_session_and_has_a_group_of_its_own(module: str) -> None:
    """Its priority counts beside the agent's; signals of the terminal do not reach it."""
    session, group, own = ask(module, None, "the work")
    assert session == os.getsid(0)
    assert group == own


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("module", ["time.sleep(600)"], indirect=True)
def test_it_does_not_outlive_who_asks(module: str, *, asked: bool) -> None:
    """A parent that is killed takes its child with it, also one that has only just been started."""
    program = (
        f"from edge_agent.core.child import Child; c = Child({module!r}, None, 'x');"
        "print(c._process.pid, flush=True); c.answer()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if asked:
            time.sleep(1.0)  # until it has asked the kernel
        else:
            child.suspend()
        parent.kill()
    if not asked:
        child.resume()
    child.wait(10)


def test_words() -> None:
    """Statuses and last lines, also odd ones."""
    assert [signal_name(status) for status in (0, 3, -11, -99)] == [
        None,
        None,
        "SIGSEGV",
        "signal 99",
    ]
    assert [last_line(words) for words in (b"", b"a\nb \n\n", b"\xff")] == ["", "b", "\ufffd"]


def test_one_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program: an error with the reason."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChildError, match="the work could not be started: No such file"):
        ask("asked", None, "the work")
