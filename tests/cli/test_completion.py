"""What shells complete, and the man page, have every command and its options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.cli.main import COMMANDS

pytest.importorskip("shtab")
pytest.importorskip("argparse_manpage")
ASK = """
source {file}
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_edge_agent edge-agent "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that was written."""
    folder = tmp_path_factory.mktemp("completion") / "made"
    command = [sys.executable, "-m", "edge_agent.cli.completion", str(folder)]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("form", ["zsh", "fish", "man"])
def test_all_commands_and_their_options_are_there(form: str, made: Path) -> None:
    """The last option of the last command, too."""
    text = (made / form).read_text().replace("\\-", "-")
    assert [command.name for command in COMMANDS if command.name not in text] == []
    for word in ("asyncapi", "password-file", "resume"):
        assert word in text


def test_apropos_finds_the_man_page(made: Path) -> None:
    """It says in one line what the program is; without that, no index takes it in."""
    text = (made / "man").read_text().replace("\\-", "-")
    name = text.partition(".SH NAME\n")[2].splitlines()[0]
    assert re.fullmatch(r"edge-agent - .*models.*\.", name), name


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("edge-agent ro", "rollout rollback"),
        ("edge-agent rollout pau", "pause"),
        ("edge-agent tail --ki", "--kind"),
        ("edge-agent tail --kind ev", "event"),
    ],
)
def test_bash_completes(words: str, found: str, made: Path) -> None:
    """Commands, commands below them, options and what these choose from."""
    asked = ASK.format(file=made / "bash", words=words, last=len(words.split()) - 1)
    said = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False)
    assert said.stdout.strip() == found, said.stderr
