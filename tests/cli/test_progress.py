"""What is said on stderr while long work goes on."""

from __future__ import annotations

import pytest

from edge_agent.cli.progress import Progress
from tests.helpers.support import wait_until


def test_a_step_that_tells_nothing_is_said_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Each step has its line; one that lasts has more, with what is known of it, until the end."""
    said = ""

    def goes_on(words: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return words in said

    progress = Progress(every=0.01)
    progress("reading", 3, 8)
    wait_until(lambda: goes_on("reading 3 of 8, 0 s\n"), "a line that it goes on")
    progress("trying", 0, 0)
    wait_until(lambda: goes_on("trying, 0 s\n"), "a line of the next step")
    progress.close()
    assert said.startswith("reading\n")
    assert "trying\n" in said
    assert capsys.readouterr().err.replace("trying, 0 s\n", "") == ""
