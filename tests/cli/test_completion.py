"""What shells complete, and the man page, have every command and its options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.cli.main import COMMANDS
from tests.helpers.support import CHECKOUT

pytest.importorskip("shtab")
pytest.importorskip("argparse_manpage")
ASK = """
source {file}
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_edge_agent edge-agent "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
echo "${{COMPREPLY[@]}}"
"""


def made(form: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    script = CHECKOUT / "scripts" / "make_completion.py"
    command = [sys.executable, str(script), form]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("form", ["zsh", "fish", "man"])
def test_all_commands_and_their_options_are_there(form: str) -> None:
    """The last option of the last command, too."""
    said = made(form)
    assert (said.returncode, said.stderr) == (0, "")
    text = said.stdout.replace("\\-", "-")
    assert [command.name for command in COMMANDS if command.name not in text] == []
    for word in ("asyncapi", "password-file", "resume"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("edge-agent ro", "rollout rollback"),
        ("edge-agent rollout pau", "pause"),
        ("edge-agent tail --ki", "--kind"),
        ("edge-agent tail --kind ev", "event"),
    ],
)
def test_bash_completes(words: str, found: str, tmp_path: Path) -> None:
    """Commands, commands below them, options and what these choose from."""
    file = tmp_path / "completion"
    file.write_text(made("bash").stdout)
    asked = ASK.format(file=file, words=words, last=len(words.split()) - 1)
    said = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False)
    assert said.stdout.strip() == found, said.stderr


def test_another_shell_is_usage() -> None:
    """It says which there are."""
    said = made("powershell")
    assert (said.returncode, "bash|zsh|fish|man" in said.stderr) == (1, True)
