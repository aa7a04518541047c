"""Pictures in the terminal: who gets them, that they are whole, and that the view stays."""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.cli.inline_picture import CHUNK, InlinePicture, fit, protocol_of
from edge_agent.sources.opencv import load
from tests.helpers.small_models import detector, plain, write_clip
from tests.helpers.support import CHECKOUT, run_cli
from tests.helpers.terminal import Terminal

KITTY = {"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1"}
ITERM2 = {"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}
NOBODY = dict.fromkeys(("TMUX", "STY", "TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID"), "")


def pictures_of_kitty(raw: bytes) -> list[tuple[dict[str, str], Any]]:
    """Take the pictures out of what a terminal was sent: keys and content of each."""
    found: list[tuple[dict[str, str], Any]] = []
    keys: dict[str, str] = {}
    data = b""
    for said, part in re.findall(rb"\x1b_G([^;\x1b]*);([^\x1b]*)\x1b\\", raw):
        now = dict(pair.split("=") for pair in said.decode().split(","))
        assert len(part) <= CHUNK
        assert now["q"] == "2"
        keys = keys or now
        data += part
        if now["m"] == "0":
            found.append((keys, decoded(data)))
            keys, data = {}, b""
    return found


def pictures_of_iterm2(raw: bytes) -> list[tuple[dict[str, str], Any]]:
    """Take them out as iTerm2 has them."""
    return [
        (dict(pair.split("=") for pair in said.decode().split(";")), decoded(part))
        for said, part in re.findall(rb"\x1b\]1337;File=([^:]*):([^\x07]*)\x07", raw)
    ]


def decoded(data: bytes) -> Any:
    """Decode a picture: BGR."""
    cv2 = load()
    content = np.frombuffer(b64decode(data, validate=True), np.uint8)
    picture = cv2.imdecode(content, cv2.IMREAD_COLOR)
    assert picture is not None
    return picture


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "3"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal"}, None),
        ({"TERM": "dumb", "KITTY_WINDOW_ID": "3"}, None),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "3"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux-0/default,1,0"}, None),  # noqa: S108
        ({}, None),
    ],
)
def test_the_environment_tells_what_a_terminal_can(
    environ: dict[str, str], protocol: str | None
) -> None:
    """Terminals that are known to show pictures get them; within tmux or screen nobody does."""
    assert protocol_of(environ) == protocol


@pytest.mark.parametrize(
    ("size", "cells"),
    [((480, 640), (32, 12)), ((100, 4000), (80, 1)), ((4000, 100), (1, 12)), ((1, 1), (24, 12))],
)
def test_a_picture_keeps_its_proportions(size: tuple[int, int], cells: tuple[int, int]) -> None:
    """It fills the lines or the columns that it may have, whichever are fewer."""
    assert fit(np.zeros((*size, 3), np.uint8), 80, 12, (10, 20)) == cells


def test_kitty_gets_the_picture_without_loss_and_the_one_before_is_deleted() -> None:
    """What is sent in pieces is the picture; the number alternates, so that there is always one."""
    noise = np.random.default_rng(1).integers(0, 255, (40, 60, 3), np.uint8)
    inline = InlinePicture("kitty")
    first, second = (inline.encode(noise, 80, 12).encode() for _ in range(2))
    ((keys, picture),) = pictures_of_kitty(first)
    assert (picture == noise).all()
    assert (keys["a"], keys["f"], keys["c"], keys["r"]) == ("T", "100", "36", "12")
    ((later, _),) = pictures_of_kitty(second)
    assert later["i"] != keys["i"]
    assert b"a=d" not in first
    assert f"\x1b_Ga=d,d=I,i={keys['i']},q=2\x1b\\".encode() in second


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Make a model that finds one thing in the middle of every picture."""
    return detector(tmp_path / "thing", [(0, 0.9, 0.25, 0.25, 0.75, 0.75)], ["thing"])


@pytest.fixture
def clip(tmp_path: Path) -> str:
    """Make a grey clip."""
    path = write_clip(tmp_path / "clip.avi", [plain(120, 320, 240) for _ in range(25)])
    return f"file:{path}?loop=1"


@pytest.mark.parametrize(
    ("environ", "pictures_of"),
    [(KITTY, pictures_of_kitty), (ITERM2, pictures_of_iterm2)],
    ids=["kitty", "iterm2"],
)
def test_try_shows_the_annotated_picture_above_its_table(
    environ: dict[str, str], pictures_of: Any, model: Path, clip: str, tmp_path: Path
) -> None:
    """The terminal gets the frame with its box drawn, in lines that the table leaves free."""
    command = ("try", clip, str(model), "--seconds", "3")
    with Terminal(
        *command, columns=80, lines=30, cwd=tmp_path, environ={**NOBODY, **environ}
    ) as terminal:
        assert terminal.wait() == 0
    found = pictures_of(terminal.raw)
    assert found
    for keys, picture in found:
        lines = int(keys["r" if "r" in keys else "height"])
        assert 6 <= lines <= 24
        assert picture.shape[1] / picture.shape[0] == pytest.approx(4 / 3, rel=0.02)
        # Grey but for what was drawn: a box in a strong color.
        assert (np.ptp(picture.astype(int), axis=2) > 80).any()
    # It is drawn so far above the last line of the view as that and the picture are high.
    table = [line for line in terminal.screens[-1] if line.startswith(("╭", "│", "╰"))]
    for up in re.findall(rb"\x1b7\x1b\[(\d+)A\r\x1b[_\]]", terminal.raw):
        assert int(up) == len(table) - 1 + 30 - 1 - len(table)
    assert "picture" in terminal.text
    assert str(tmp_path / "try.jpg") in terminal.text.replace("\n", "")
    assert "next     the same with --save DIR" in terminal.text


def test_the_demo_shows_the_conveyor(tmp_path: Path) -> None:
    """The frames of its camera come with their boxes drawn, as the agent publishes them."""
    with Terminal(
        "demo", columns=100, lines=40, cwd=tmp_path, environ={**NOBODY, **ITERM2}
    ) as terminal:
        terminal.wait_for(lambda _: pictures_of_iterm2(terminal.raw), "a picture")
        terminal.press("\x03")
        assert terminal.wait() == 0
    _, picture = pictures_of_iterm2(terminal.raw)[0]
    assert picture.shape[1] / picture.shape[0] == pytest.approx(640 / 384, rel=0.02)
    assert "next     edge-agent try SOURCE MODEL" in terminal.text


@pytest.mark.parametrize(
    ("environ", "lines"),
    [
        ({"TERM": "dumb", "KITTY_WINDOW_ID": "1"}, 40),
        ({"TERM": "xterm-256color"}, 40),
        ({**KITTY, "TMUX": "/tmp/tmux-0/default,1,0"}, 40),  # noqa: S108
        (KITTY, 14),
    ],
    ids=["dumb", "unknown", "tmux", "low"],
)
def test_other_terminals_get_no_byte_of_a_picture(
    environ: dict[str, str], lines: int, model: Path, clip: str, tmp_path: Path
) -> None:
    """Nor does one too low to show the table beside it: it is told where the file is."""
    command = ("try", clip, str(model), "--seconds", "2")
    with Terminal(
        *command, columns=80, lines=lines, cwd=tmp_path, environ={**NOBODY, **environ}
    ) as terminal:
        assert terminal.wait() == 0
    assert b"\x1b_G" not in terminal.raw
    assert b"\x1b]1337" not in terminal.raw
    assert str(tmp_path / "try.jpg") in terminal.text.replace("\n", "")


def test_a_pipe_gets_no_picture_whatever_the_terminal(
    model: Path, clip: str, tmp_path: Path
) -> None:
    """Where stdout is no terminal there is not one escape sequence in it."""
    said = run_cli(
        "try", clip, str(model), "--seconds", "2",
        environ={**KITTY, "PYTHONPATH": str(CHECKOUT)}, cwd=tmp_path,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "\x1b" not in said.stdout + said.stderr
    assert f"picture  {tmp_path / 'try.jpg'}" in said.stdout


def test_json_of_the_demo_stays_json_in_any_terminal(tmp_path: Path) -> None:
    """`--json` on a terminal that can shows no picture."""
    with Terminal(
        "demo", "--json", "--seconds", "2",
        columns=100, lines=40, cwd=tmp_path, environ={**NOBODY, **KITTY},
    ) as terminal:  # fmt: skip
        assert terminal.wait() == 0
    assert b"\x1b" not in terminal.raw
