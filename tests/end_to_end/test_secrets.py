"""A camera's and a broker's password: in no log, no topic, no error, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.cameras import MjpegServer
from tests.helpers.small_models import brightness, encode_jpeg, plain
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    free_port,
    run_cli,
)

USER, PASSWORD, TOKEN = "wachmann", "s3kr1t-Wort", "t0k3n-Wert"
D = "edge/box"


@pytest.fixture
def cameras() -> Iterator[dict[str, str]]:
    """Give cameras by name: one that works, and one for each way in which one does not."""
    picture = encode_jpeg(plain(9))
    login = f"{USER}:{PASSWORD}"
    works = MjpegServer([picture], login=login)
    other = MjpegServer([picture], login="somebody:else")
    page = MjpegServer([], page=b"<html>no stream</html>")
    port = free_port()
    yield {
        "works": works.url(login),
        "refused": other.url(login),
        "page": page.url(login) + f"?channel=1&pwd={PASSWORD}&auth_token={TOKEN}",
        "nobody": f"rtsp://{login}@127.0.0.1:{port}/stream?password={PASSWORD}",
        "unknown": f"rtsp://{login}@no-such-camera.invalid/stream",
        "secure": f"https://{login}@127.0.0.1:{port}/stream.mjpg?sig={TOKEN}&session={PASSWORD}",
        "path": f"rtsp://127.0.0.1:{port}/{TOKEN}0123456789/user={USER}_password={PASSWORD}",
    }
    for server in (works, other, page):
        server.cut()


def secrets_in(text: str) -> list[str]:
    """List the secrets that a text gives away, also percent-encoded or in base64."""
    import base64

    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return [secret for secret in (USER, PASSWORD, TOKEN, login) if secret in text]


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Make the one model."""
    brightness(tmp_path / "models" / "light")
    return [str(tmp_path / "models")]


def pipelines(cameras: dict[str, str]) -> list[dict[str, object]]:
    """Give a pipeline for each camera."""
    return [{"name": name, "source": url, "model": "light"} for name, url in cameras.items()]


@pytest.mark.parametrize("verbose", [False, True])
def test_an_agent_gives_no_password_away(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    cameras: dict[str, str],
    models: list[str],
    verbose: bool,
) -> None:
    """Every camera that cannot be opened is reported, and nothing that is said holds a secret.

    Of the log, every topic and every retained payload: results, `info`, health, `source`, replies.
    """
    listener = listen(broker.port, "#")
    # What the libraries below would print if they were let.
    environ = {"OPENCV_LOG_LEVEL": "DEBUG", "OPENCV_FFMPEG_LOGLEVEL": "24"} if verbose else {}
    url = f"mqtt://{USER}:{PASSWORD}@127.0.0.1:{broker.port}"
    running = agent(
        agent_settings("box", url, pipelines(cameras), models_dirs=models), environ=environ
    )
    for name in cameras:
        state = "running" if name == "works" else "lost"
        listener.wait_state(f"{D}/source/{name}", state=state)
    listener.publish(f"{D}/in/command/snapshot", '{"id": "1", "pipeline": "nobody"}')
    listener.publish(f"{D}/in/command/set", '{"id": "2", "pipeline": "refused", "rate": 1}')
    listener.wait_state(f"{D}/reply/2", ok=True)
    listener.wait_for(
        lambda heard: any(
            h.topic == f"{D}/health" and sum("source of" in why for why in h.json["why"]) == 6
            for h in heard
        ),
        "health to name the six",
    )
    listener.wait_for(lambda heard: any(h.topic == f"{D}/info" for h in heard), "info")
    assert running.stop() == 0
    for heard in listener.heard:
        shown = heard.payload.decode("latin-1")
        assert secrets_in(heard.topic + shown) == [], (heard.topic, shown)
    if not verbose:
        assert secrets_in(running.words()) == []
        assert "127.0.0.1" in running.words()  # the address is there, for whoever has to mend it
    ours = [
        line for line in running.words().splitlines() if " WARNING " in line or " INFO " in line
    ]
    assert ours
    assert secrets_in("\n".join(ours)) == []


def test_the_first_aid_kit_gives_no_password_away(
    cameras: dict[str, str], models: list[str], tmp_path: Path
) -> None:
    """`check` names the cameras that fail without their passwords, and so does a wrong URL."""
    config = tmp_path / "config.toml"
    url = f"mqtt://{USER}:{PASSWORD}@127.0.0.1:{free_port()}"
    config.write_text(agent_settings("box", url, pipelines(cameras), models_dirs=models))
    done = run_cli("check", "--config", str(config))
    assert done.returncode == 1
    assert "127.0.0.1" in done.stdout
    assert secrets_in(done.stdout + done.stderr) == []


@pytest.mark.parametrize(
    "source",
    [
        f"rtsp://{USER}:{PASSWORD}@camera:port/stream",
        f"rtsp://{USER}:{PASSWORD}/{PASSWORD}@camera/stream",
        f"rtsp://{USER}:{PASSWORD}@/stream",
        f"rtsp://{USER}:{PASSWORD}@camera/a b",
        f"http://camera/stream.mjpg?user=x&pwd={PASSWORD} ",
        f"rstp://{USER}:{PASSWORD}@camera/stream",
        f"rtsp://{USER}:{PASSWORD}@[::1/stream",
        f"rtsp://{USER}:{PASSWORD} {PASSWORD}@camera/stream",
        f"rtsp:/{USER}:{PASSWORD}@camera/stream",
        f"//{USER}:{PASSWORD}@camera/stream",
        f"{USER}:{PASSWORD}@camera/stream",
        f"http:/camera/{TOKEN}{TOKEN}/live?sig={TOKEN}",
    ],
)
def test_a_source_that_is_written_wrong_is_not_repeated_whole(
    source: str, models: list[str], tmp_path: Path
) -> None:
    """The one line for a source that cannot be names its key and mend, and no secret."""
    config = tmp_path / "config.toml"
    pipeline = {"name": "p", "source": source, "model": "light"}
    config.write_text(agent_settings("box", "mqtt://localhost", [pipeline], models_dirs=models))
    done = run_cli("run", "--config", str(config))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pipelines[p].source" in done.stderr
    assert secrets_in(done.stderr) == []


def test_the_plan_of_a_start_is_nobodys_to_read(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    cameras: dict[str, str],
    models: list[str],
    tmp_path: Path,
) -> None:
    """What is kept in the state folder between starts and holds a secret is its owner's alone."""
    listener = listen(broker.port)
    url = f"mqtt://{USER}:{PASSWORD}@127.0.0.1:{broker.port}"
    running = agent(agent_settings("box", url, pipelines(cameras)[:1], models_dirs=models))
    listener.wait_for(lambda heard: any(h.topic == f"{D}/health" for h in heard), "health")
    assert running.stop() == 0
    for path in (tmp_path / "agent" / "state").rglob("*"):
        if path.is_file() and secrets_in(path.read_bytes().decode("latin-1")):
            assert path.stat().st_mode & 0o077 == 0, path
