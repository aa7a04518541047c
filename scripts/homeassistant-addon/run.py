"""Make the settings of a Home Assistant add-on's options, and become the agent.

The options are in /data/options.json; where they name no broker, the supervisor is asked for
Home Assistant's own. `extra` is TOML that is added as it is, for all that has no option.
"""

from __future__ import annotations

import json
import os
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

OPTIONS = Path("/data/options.json")
SETTINGS = Path("/data/config.toml")
STATE = Path("/data/state")
USER = 10001


def settings(options: dict[str, Any], service: dict[str, Any] | None) -> str:
    """Return the settings as TOML.

    Args:
        options: of the add-on.
        service: the broker that the supervisor tells of; None: it tells of none.

    """
    broker: dict[str, Any] = {"url": options.get("broker_url") or "mqtt://core-mosquitto:1883"}
    if not options.get("broker_url") and service is not None:
        scheme = "mqtts" if service.get("ssl") else "mqtt"
        broker["url"] = f"{scheme}://{service['host']}:{service['port']}"
        broker |= {key: service[key] for key in ("username", "password") if service.get(key)}
    lines = [f"device_id = {_toml(options['device_id'])}"] if options.get("device_id") else []
    lines += ["", "[broker]", *_table(broker), "", "[homeassistant]", "enabled = true"]
    for pipeline in options.get("pipelines", []):
        lines += ["", "[[pipelines]]", *_table(pipeline)]
    return "\n".join([*lines, "", options.get("extra") or "", ""])


def _table(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in values.items()]


def _toml(value: Any) -> str:
    """Write a value; JSON's texts, numbers and booleans are TOML's, too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def mqtt_service() -> dict[str, Any] | None:
    """Ask the supervisor for Home Assistant's broker; None: there is none."""
    token = os.environ.get("SUPERVISOR_TOKEN")
    if token is None:
        return None
    supervisor = HTTPConnection("supervisor", timeout=10)
    try:
        supervisor.request("GET", "/services/mqtt", headers={"Authorization": f"Bearer {token}"})
        found: dict[str, Any] = json.load(supervisor.getresponse())["data"]
        return found
    except (OSError, HTTPException, ValueError, KeyError) as problem:
        print(f"edge-agent: no broker from the supervisor: {problem}", file=sys.stderr)
        return None


def main() -> None:
    """Write the settings, give up root, and run the agent."""
    options = json.loads(OPTIONS.read_text())
    service = None if options.get("broker_url") else mqtt_service()
    SETTINGS.touch(mode=0o600)
    SETTINGS.write_text(settings(options, service))
    STATE.mkdir(exist_ok=True)
    for path in (SETTINGS, STATE):
        os.chown(path, USER, USER)
    devices = (path.stat().st_gid for path in Path("/dev").rglob("*") if path.is_char_device())
    os.setgroups(sorted({gid for gid in devices if gid != 0}))
    os.setgid(USER)
    os.setuid(USER)
    os.environ["STATE_DIRECTORY"] = str(STATE)
    os.execvp("edge-agent", ["edge-agent", "run", "--config", str(SETTINGS)])  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
