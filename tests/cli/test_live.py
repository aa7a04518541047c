"""The live view in terminals of usual sizes: every line of it is one line, and it stands still."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.terminal import Terminal

HEADINGS = {
    130: ["pipeline", "a second", "age p50/p95/p99 ms", "infer ms", "model", "found"],
    100: ["pipeline", "a second", "age p50/p95/p99 ms", "infer ms", "found"],
    80: ["pipeline", "a second", "age p50/p95/p99 ms", "found"],
}


def is_whole(seen: list[str]) -> bool:
    """Whether a screen was not caught in the middle of being drawn."""
    return seen[0].startswith("╭") and any(line.startswith("╰") for line in seen)


@pytest.mark.parametrize(("columns", "lines"), [(130, 40), (100, 30), (80, 24)])
def test_a_pipeline_is_one_line_and_the_screen_stands_still(
    columns: int, lines: int, tmp_path: Path
) -> None:
    """No heading is cut, findings are counted by label, and nothing scrolls while it runs."""
    with Terminal("demo", columns=columns, lines=lines, cwd=tmp_path) as terminal:
        terminal.wait_for(
            lambda seen: (
                is_whole(seen)
                and re.search(r" good ×\d", seen[2])
                and re.search(r" (ANOMALY [\d.]+ >|normal [\d.]+ ≤) [\d.]+", seen[3])
            ),
            "results of both",
        )
        assert terminal.scrolled == 0
        whole = [seen for seen in terminal.screens if is_whole(seen)]
        heights = {next(n for n, line in enumerate(s) if line.startswith("╰")) for s in whole}
        assert len(heights) == 1
        for seen in whole:
            assert re.split(r"\s{2,}", seen[1].strip("│ ")) == HEADINGS[columns]
            assert [line.split()[1] for line in seen[2:4]] == ["conveyor", "vibration"]
            assert seen[4].strip("│ ") == ""
        terminal.press("\x03")
        assert terminal.wait() == 0
        assert len([line for line in terminal.text.splitlines() if line.startswith("╭")]) == 1
        assert "^C" not in terminal.text
        assert "ExecutionProvider" not in terminal.text
        summed = "\n".join(line.rstrip() for line in terminal.display)
        for name in ("conveyor", "vibration"):
            said = re.search(
                rf"^{name}: \d+ results?(, |\n {{9}}).*(\n {{9}}.*)*", summed, re.MULTILINE
            )
            assert said is not None, summed
            whole_line = re.sub(r"\n {9}", " ", said.group())
            assert re.search(r" ms, inference [\d.]+ ms, \S+@\d+ on \w+:CPU$", whole_line)
            assert ("\n" in said.group()) == (len(whole_line) > columns), "a word is broken"


def test_more_pipelines_than_lines_do_not_scroll(tmp_path: Path) -> None:
    """In a terminal of ten lines the view is cut at its end, not shifted."""
    with Terminal("demo", columns=80, lines=10, cwd=tmp_path) as terminal:
        terminal.wait_for(
            lambda seen: any(re.search(r"│ conveyor .* good ×", line) for line in seen), "a result"
        )
        assert terminal.scrolled == 0
        assert terminal.display[0].startswith("╭")
