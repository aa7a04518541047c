"""A sink is added to an agent that runs, gets all that is published, and is removed again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.helpers.lines_agent import WANTED
from tests.helpers.small_models import detector, plain, write_clip
from tests.helpers.support import CHECKOUT, Listener, Mosquitto, agent_settings

D = "edge/box"


def test_the_smallest_sink_is_added_and_removed_while_the_agent_runs(
    tmp_path: Path, broker: Mosquitto, listen: Callable[..., Listener]
) -> None:
    """Results, a picture that it wants, an event, counts and health; nothing once it is removed.

    MQTT goes on beside it, and has no picture: the settings want none.
    """
    heard = listen(broker.port)
    detector(tmp_path / "models" / "finder", [(0, 0.9, 0.1, 0.1, 0.4, 0.5)], ["person"])
    clip = write_clip(tmp_path / "clip.avi", [plain(220)] * 25)
    pipeline = {
        "name": "door",
        "source": f"file:{clip}?loop=1",
        "model": "finder",
        "rate": 25,
        "zones": [{"name": "yard", "polygon": [[0, 0], [0.6, 0], [0.6, 0.6], [0, 0.6]]}],
        "rules": [{"name": "person", "when": "dwell", "zone": "yard", "for_s": 0.2}],
    }
    settings = tmp_path / "settings.toml"
    settings.write_text(
        agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")])
    )
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, "-m", "tests.helpers.lines_agent", str(settings), str(lines)]
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=90, check=True
    )
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["left"] == counted["later"]
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert written[0] == "open door"
    assert set(written) >= WANTED
    assert "close door" in written
    assert heard.on(f"{D}/event/door")[-1]["state"] == "end"
    assert not [each for each in heard.heard if each.topic == f"{D}/snapshot/door"]
