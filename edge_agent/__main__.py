"""`edge-agent` and `python -m edge_agent`."""

from __future__ import annotations

import os
import sys
import time


def main() -> int:
    """Run the command line; return the exit status."""
    _mind_signals(sys.argv[1:])
    _mind_streams()
    try:
        time.time()
    except OverflowError:
        # Nothing that asks for the time could be imported; the service is started again.
        sys.stderr.write(
            "edge-agent: the clock of this machine is beyond the year 2262, which Python cannot "
            "express; set it, e.g. with timedatectl\n"
        )
        return 1
    # Before the limit on open files may be reached, which keeps anything from being imported.
    from .core.errors import print_error, system_limit

    try:
        return _run()
    except (OSError, ImportError) as problem:
        told = system_limit(problem)
        if told is None:
            raise
        return print_error(told)


def _run() -> int:
    from .core.timeline import Timeline

    timeline = Timeline()
    from .daemon.planned_start import run_from_plan

    status = run_from_plan(sys.argv[1:], timeline)
    if status is not None:
        return status
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is not there yet
    except FileNotFoundError:
        sys.stderr.write(
            "edge-agent: the working directory has been removed; change to another one, e.g. cd /\n"
        )
        return 2
    from .cli.main import main as command_line

    status = command_line(sys.argv[1:], timeline)
    if (attended := sys.modules.get("edge_agent.cli.attended")) is not None:
        attended.leave_behind(status)
    return status


def _mind_signals(arguments: list[str]) -> None:
    """Handle stop signals from the very first moment of the daemon, so that they are no failure.

    The settings are yet to be read, so that there is nothing else that SIGHUP could ask for.
    `daemon.planned_start` sees to signals as soon as it is there. Of other commands Ctrl-C ends
    here what is being imported; `cli.main` sees to it once there is anything to clean up.
    """
    # `signal` makes enumerations of all that this has, which takes a millisecond.
    import _signal  # type: ignore[import-not-found]

    if [word for word in arguments if word not in {"-v", "--verbose"}][:1] != ["run"]:
        # Ignored in what a script has put into the background, and then it stays so.
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _end_at_once)
        return
    for number in (_signal.SIGTERM, _signal.SIGINT):
        _signal.signal(number, lambda *_: os._exit(0))
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)


def _mind_streams() -> None:
    """Open what is closed of the standard streams on nothing.

    Otherwise the next files to be opened get their descriptors, and what is written there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _end_at_once(_number: int, _frame: object) -> None:
    os.write(2, b"edge-agent: interrupted\n")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
