"""Fixtures: the page's server as its users run it, and a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.helpers.support import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve pages until the test ends; give the address of each."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, password: str | None = None) -> str:
        environ = {**os.environ, **({"EDGE_AGENT_UI_PASSWORD": password} if password else {})}
        command = [sys.executable, "-m", "edge_agent", "ui", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, text=True, env=environ
        )
        running.append(process)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        return found[0]

    yield start
    for process in running:
        process.terminate()
        assert process.wait(PATIENCE) == 0
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def dialogs() -> list[str]:
    """Have what the page asks for in dialogs, to each of which the answer is yes."""
    return []


@pytest.fixture
def page(dialogs: list[str]) -> Iterator[Page]:
    """Have a page in a real browser, and see that it throws nothing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium is installed (apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))

        def answer(dialog: Dialog) -> None:
            dialogs.append(dialog.message)
            dialog.accept()

        page.on("dialog", answer)
        yield page
        browser.close()
        assert wrong == []


def serious(page: Page) -> list[str]:
    """List what axe finds on a page that keeps somebody from using it."""
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe is not installed")
    page.evaluate(axe.AXE_SCRIPT)
    found = []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        found += page.evaluate("axe.run()")["violations"]
    return [
        f"{each['id']}: {node['html']}"
        for each in found
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"]
    ]
