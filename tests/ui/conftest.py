"""Fixtures: the page's server as its users run it, and a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.helpers.support import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Page

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


@contextmanager
def browsing() -> Iterator[Page]:
    """Open a page in a real browser, and see that it throws nothing."""
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
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        yield page
        browser.close()
        assert wrong == []


@pytest.fixture
def page() -> Iterator[Page]:
    """Have a page in a real browser."""
    with browsing() as opened:
        yield opened
