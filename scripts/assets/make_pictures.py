"""Make the README's pictures of what the bundled models really do here and now.

    .venv/bin/python scripts/assets/make_pictures.py

They go to docs/pictures: `demo.svg` is the demo's live view, a few seconds of it;
`conveyor.jpg` is a frame of its clip as the `snapshot` topic and `try.jpg` show it; `page.jpg` is
the operator's page, which needs Chromium.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI

from edge_agent.cli.live import LiveView

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from tests.helpers.support import AgentProcess, Mosquitto, agent_settings  # noqa: E402

PICTURES = CHECKOUT / "docs" / "pictures"
COLUMNS = 116
LINES = 19
WARM_SECONDS = 6.5  # the bearing is damaged from the fifth second on
FRAMES = 8
FRAME_SECONDS = 0.75
PAGE_SECONDS = 60.0

# What rich's own template has, less the web font, which no README would load.
PARTS = "{styles}|||{backgrounds}|||{matrix}|||{chrome}|||{height}|||{width}"


def main() -> None:
    """Make all."""
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "demo.svg").write_text(animation(list(screens())), encoding="utf-8")
    annotated(PICTURES / "conveyor.jpg")
    look_at_page(PICTURES / "page.jpg")
    for path in sorted(PICTURES.iterdir()):
        print(f"{path.relative_to(CHECKOUT)}: {path.stat().st_size // 1024} KiB")


def screens() -> Any:
    """Run the demo; give its view every now and then, as the parts of an SVG."""
    seconds = WARM_SECONDS + FRAMES * FRAME_SECONDS + 1
    command = [sys.executable, "-m", "edge_agent", "demo", "--json", "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        notes = [demo.stderr.readline().decode().rstrip() for _ in range(3)]
        view = LiveView("edge-agent demo", notes, quiet=True)
        due, given = 0.0, 0
        for line in demo.stdout:
            view.result(json.loads(line))
            now = time.monotonic()
            due = due or now + WARM_SECONDS
            if now >= due and given < FRAMES:
                yield drawn(view, f"f{given}")
                due += FRAME_SECONDS
                given += 1
    assert given == FRAMES, f"the demo gave {given} of {FRAMES} screens"


def drawn(view: LiveView, name: str) -> list[str]:
    """Draw the view as the terminal would, and take rich's SVG of it apart."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(view.draw(COLUMNS, LINES))
    svg = console.export_svg(title="edge-agent", theme=MONOKAI, code_format=PARTS, unique_id=name)
    # Each line is clipped to itself; without, the file is a third smaller and looks the same.
    return re.sub(r' clip-path="[^"]*"', "", svg).split("|||")


def animation(frames: list[list[str]]) -> str:
    """Lay the screens over each other; where nothing moves, the first is seen."""
    chrome, width = frames[0][3], frames[0][5]
    height = max(float(frame[4]) for frame in frames)
    whole, share = FRAME_SECONDS * len(frames), 100 / len(frames)
    styles = "\n".join(frame[0] for frame in frames)
    bodies = "\n".join(
        f'<g class="screen" style="animation-delay:{number * FRAME_SECONDS}s'
        f'{";opacity:1" if number == 0 else ""}">{backgrounds}{matrix}</g>'
        for number, (_, backgrounds, matrix, *_) in enumerate(frames)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<title>The live view of edge-agent demo: results of both pipelines, rates and latencies</title>
<style>
text {{ font: 20px "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }}
.f0-title {{ font-family: sans-serif; }}
.screen {{ opacity: 0; animation: turn {whole}s step-end infinite; }}
@keyframes turn {{ 0% {{ opacity: 1; }} {share:.3f}% {{ opacity: 0; }} 100% {{ opacity: 0; }} }}
@media (prefers-reduced-motion: reduce) {{ .screen {{ animation: none; }} }}
{styles}
</style>
{chrome}
<g transform="translate(9, 41)">
{bodies}
</g>
</svg>
"""


def look_at_page(place: Path) -> None:
    """Look at a device with a zone, a line and rules in a browser, after a while."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        broker = Mosquitto(Path(folder) / "broker")
        agent = AgentProcess(Path(folder) / "agent", pictured(broker.url))
        command = [sys.executable, "-m", "edge_agent", "ui", "--listen", "127.0.0.1:0"]
        server = subprocess.Popen(
            [*command, "--broker", broker.url], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        url = re.findall(r"http://[\d.:]+", server.stdout.readline())[0]
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000}, bypass_csp=True)
        page.goto(f"{url}/#/device/line-3")
        page.wait_for_timeout(PAGE_SECONDS * 1000)
        # Where the checkout lies is nobody's business.
        page.screenshot(path=place, type="jpeg", quality=55, style=".plain small { display: none }")
        browser.close()
        server.terminate()
        agent.stop()
        broker.stop()


def pictured(broker: str) -> str:
    """Return settings whose page has something of everything."""
    media = CHECKOUT / "models" / "media"
    defects = ["crack", "chip", "dent", "missing-hole"]
    belt = {
        "name": "belt",
        "source": f"file:{media}/conveyor.mp4?loop=1",
        "model": "parts-inspection",
        "rate": 10,
        "snapshot": {"width": 640, "every_s": 0.5},
        "zones": [
            {
                "name": "exit",
                "polygon": [[0.62, 0.12], [0.95, 0.12], [0.95, 0.9], [0.62, 0.9]],
                "anchor": "center",
            }
        ],
        "lines": [{"name": "gate", "points": [[0.4, 0.05], [0.4, 0.95]], "anchor": "center"}],
        "rules": [
            {"name": "defect", "when": "enter", "zone": "exit", "labels": defects}
            | {"picture": "crop", "clip": True, "cooldown_s": 3}
        ],
    }
    shaft = {
        "name": "shaft",
        "source": f"csv:{media}/bearing.csv?loop=1&rate=6400",
        "model": "bearing-vibration",
        "rules": [{"name": "worn", "when": "anomaly", "frames": "4/5"}],
    }
    evidence = {"keep_mb": 50, "before_s": 2.0, "after_s": 2.0}
    return agent_settings(
        "line-3",
        broker,
        [belt, shaft],
        groups=["hall-a"],
        evidence=evidence,
        health={"interval_s": 2},
    )


def annotated(place: Path) -> None:
    """Let `try` draw what the model sees in the bundled clip."""
    models = CHECKOUT / "models"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "edge_agent", "try"]
        command += [str(models / "media" / "conveyor.mp4"), str(models / "parts-inspection")]
        subprocess.run(
            [*command, "--seconds", "3"],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        place.write_bytes((Path(folder) / "try.jpg").read_bytes())


if __name__ == "__main__":
    main()
