"""The documentation: its links, tables and commands hold; its access list does what it says."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.cli.commands.rollout_start import read_plan
from edge_agent.cli.main import parser
from edge_agent.config.device_profile import DeviceProfile
from edge_agent.config.load import load as load_settings
from edge_agent.config.settings import Settings
from edge_agent.core.plain_record import is_key
from edge_agent.core.types import Detections, Sample
from edge_agent.delivery.plan import Gate
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.decoders import DECODERS
from edge_agent.models.manifest import Manifest, parse
from edge_agent.models.manifest import load as load_folder
from edge_agent.sources.schemes import SCHEMES
from tests.helpers.small_models import brightness, plain, write_clip
from tests.helpers.support import (
    ASSETS,
    CHECKOUT,
    PATIENCE,
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
    needs_assets,
    run_cli,
    wait_until,
)
from tests.helpers.tiny_networks import node, save_onnx
from tests.mqtt.test_access import write_passwords

DOCS = CHECKOUT / "docs"
README = CHECKOUT / "README.md"
PAGES = [*sorted(CHECKOUT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
PROFILES = [path.stem for path in (CHECKOUT / "device_profiles").glob("*.toml")]
Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]

# What the pages say


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links lead to files that are there, and those with a fragment to a heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if fragment:
            assert fragment in _anchors(target), f"{page.name}: {link}: no such heading"


def _prose(page: Path) -> str:
    """Give the text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """List the fragments that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_the_readme_is_a_first_screen() -> None:
    """The README has at most 200 lines, and leads to every page in docs/."""
    text = README.read_text()
    assert len(text.splitlines()) <= 200
    missing = [page.name for page in DOCS.glob("*.*") if f"(docs/{page.name})" not in text]
    assert missing == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_says_who_it_is_for(page: Path) -> None:
    """After its title, each page begins with one sentence: for whom, and what."""
    title, empty, first = page.read_text().splitlines()[:3]
    assert title.startswith("# ")
    assert empty == ""
    assert first.startswith("For "), first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_program_is_installed_from_the_checkout(page: Path) -> None:
    """No page has pip fetch `edge-agent` from an index, where it is another project's name."""
    for line in re.findall(r"\bpip3? install .*", page.read_text()):
        assert not re.search(r"(?<![/\w.-])edge[-_]agent\b", line), f"{page.name}: {line}"


def test_no_settings_key_is_left_out() -> None:
    """Every key of the settings has its row in settings.md, under its table; so has none else."""
    keys = set(_keys(Settings))
    assert _documented(DOCS / "settings.md") == keys


def test_no_key_of_a_device_profile_is_left_out() -> None:
    """Every key of a device profile has its row in profiles.md, under its table."""
    assert _documented(DOCS / "profiles.md") == set(_keys(DeviceProfile))


def test_no_key_of_the_manifest_is_left_out() -> None:
    """Every key of a manifest is in a row of models.md."""
    rows = "\n".join(re.findall(r"^\|.*\|$", (DOCS / "models.md").read_text(), re.MULTILINE))
    assert [key for key in _keys(Manifest) if f"`{key.rpartition('.')[2]}`" not in rows] == []


def test_every_decoder_and_source_is_described() -> None:
    """Each decoder has its row in models.md, each form of a source its example in sources.md."""
    models, sources = (DOCS / "models.md").read_text(), (DOCS / "sources.md").read_text()
    assert [name for name in DECODERS if f"\n| `{name}` |" not in models] == []
    assert [form for form in SCHEMES if f"`{form}:" not in sources] == []


def test_every_command_and_option_is_described() -> None:
    """The command line's own parser knows no command and no option that cli.md does not name."""
    page = (DOCS / "cli.md").read_text()
    for command, options in _commands(parser(), "edge-agent"):
        line = "\n".join(
            part for part in re.findall(r"`(edge-agent[^`]*)`", page) if part.startswith(command)
        )
        assert line, command
        for option in options:
            assert option in line, f"{command}: {option}"


def _commands(made: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, set[str]]]:
    """Return every command, and the options that only it has."""
    made.format_help()  # its module declares the arguments now
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from _commands(inner, f"{name} {word}")
            return
    options = {option for action in made._actions for option in action.option_strings}
    if "--broker" in options:
        # Said of all that talk to a broker in one sentence.
        options -= {"--broker", "--config"}
    yield name, options - {"-h", "--help"}


def _keys(record: Any, above: str = "") -> Iterator[str]:
    """Give every key of a TOML file as a dotted path; a table's own name is none."""
    hints = get_type_hints(record)
    for item in fields(record):
        if not is_key(item):
            continue
        inner = [kind for kind in (hints[item.name], *_inside(hints[item.name])) if _table(kind)]
        if inner and bool in get_args(hints[item.name]):
            yield f"{above}{item.name}"  # a flag, or a table
        if inner and inner[0] is not record:  # stages of stages are stages
            yield from _keys(inner[0], f"{above}{item.name}.")
        else:
            yield f"{above}{item.name}"


def _inside(hint: Any) -> Iterator[Any]:
    """Give the types that a list or a choice of types is made of."""
    for part in get_args(hint):
        yield part
        yield from _inside(part)


def _table(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _documented(page: Path) -> set[str]:
    """Give the keys in the first column of a page's reference, as dotted paths."""
    keys: set[str] = set()
    table = ""
    rows = page.read_text().partition("| key | default | is |\n")[2].partition("\n\n")[0]
    for row in rows.splitlines()[1:]:
        cell = row.split("|")[1].strip()
        if head := re.fullmatch(r"\*\*`\[+([a-z.]+)\]+`\*\*", cell):
            table = f"{head[1]}."
        else:
            keys.update(f"{table}{key}" for key in re.findall(r"`([a-z_]+)`", cell))
    return keys


def test_blocks_of_toml_and_json_can_be_read() -> None:
    """Examples are valid TOML and JSON."""
    read = 0
    for page in PAGES:
        for language, block in _blocks(page):
            if language == "toml":
                tomllib.loads(block)
            elif language == "json":
                json.loads(block)
            else:
                continue
            read += 1
    assert read > 10


NOT_SETTINGS = {"wrong.toml"}
"""Blocks that show a mistake."""
DEVICE_PROFILES = {"profiles.md", "interface.md"}
"""Pages whose blocks are of other kinds, too: interface.md has parts of files."""


def test_examples_are_settings_and_manifests_that_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every example is read as the agent reads it: no key, name or value on the pages is wrong."""
    read = dict.fromkeys(("settings", "manifest", "part of a manifest"), 0)
    monkeypatch.chdir(tmp_path)
    for page in PAGES:
        for language, block in _blocks(page):
            first = block.partition("\n")[0].removeprefix("# ")
            if language != "toml" or page.name in DEVICE_PROFILES or first in NOT_SETTINGS:
                continue
            where = f"{page.name}: {block}"
            content = tomllib.loads(block)
            if "task" in content:
                parse(content, where)
                read["manifest"] += 1
            elif {"input", "output", "variants"} & set(content):
                assert set(content) <= {item.name for item in fields(Manifest)}, where
                read["part of a manifest"] += 1
            elif "waves" in content:
                (tmp_path / "plan.toml").write_text(block)
                assert read_plan(tmp_path / "plan.toml")[0].gate == Gate()
            else:
                file = tmp_path / "settings.toml"
                file.write_text(block)
                for key, name in content.get("broker", {}).items():
                    if key.endswith("_file"):
                        # It is looked for at once.
                        (tmp_path / name).parent.mkdir(exist_ok=True)
                        (tmp_path / name).touch()
                load_settings(file, {})
                read["settings"] += 1
    assert read["settings"] > 12
    assert read["manifest"] > 14


def recipe(name: str) -> str:
    """Give the manifest below a heading of known-models.md."""
    text = (DOCS / "known-models.md").read_text()
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    found = re.search(r"^```toml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[1]


def copied(folder: Path, network: str, manifest: str) -> Path:
    """Make a model folder of a public network and a manifest, as a reader does."""
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(manifest)
    for part in ("onnx", "xml", "bin"):
        file = (ASSETS / "models" / network).with_suffix(f".{part}")
        if file.is_file():
            shutil.copy(file, folder / f"model.{part}")
    return folder


@needs_assets
@pytest.mark.parametrize(
    ("name", "network", "labels", "source", "found"),
    [
        ("yolox", "coco_yolox_nano_fp32.onnx", None, "dog.jpg", r"dog 0\.8"),
        ("ultraface", "face_rfb320_int8.onnx", None, "faces_16.jpg", r"(face [\d.]+, ){5}.*more"),
        ("ssd", "ir/face-detection-adas-0001.xml", None, "faces_16.jpg", r"(face [\d.]+, ){5}"),
        (
            "softmax",
            "imagenet_mobilenetv2_int8.onnx",
            "imagenet_labels.txt",
            "cat.bmp",
            r"Egyptian cat 0\.8",
        ),
        ("score", "vad_silero_16k_openvino.onnx", None, "silero_test.wav", "speech"),
        (
            "reconstruction",
            "anomaly_toycar_ae_fp32.onnx",
            None,
            "ad01_normal_id_01.bin?channels=128",
            r"normal [\d.]+ \(threshold 12\)",
        ),
        ("raw", "ir/head-pose-estimation-adas-0001.xml", None, "faces_1.jpg", "angle_y_fc"),
    ],
    ids=lambda value: str(value).partition(".")[0],
)
def test_a_recipe_makes_its_model_see_what_is_there(
    name: str, network: str, labels: str | None, source: str, found: str, tmp_path: Path
) -> None:
    """The manifest of a family, as it stands on the page, with a public model of that family."""
    folder = copied(tmp_path / "model", network, recipe(name))
    if labels is not None:
        shutil.copy(ASSETS / "media" / labels, folder / "labels.txt")
    form = {"bin": "f32:", "wav": "wav:"}.get(source.partition("?")[0][-3:], "")
    said = run_cli(
        "try", f"{form}{ASSETS / 'media' / source}", str(folder), "--seconds", "5", cwd=tmp_path
    )
    assert said.returncode == 0, said.stderr
    assert re.search(found, said.stdout), said.stdout


def test_the_recipe_of_rtdetr_gives_boxes_in_pixels_of_the_frame(tmp_path: Path) -> None:
    """A network as its exporter writes it, with the picture's size as second input."""
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "model.toml").write_text(recipe("detr"))
    (folder / "labels.txt").write_text("cup\nplate\n")
    save_onnx(
        folder / "model.onnx",
        [
            # The picture counts for nothing, but is used.
            node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0),
            node("Mul", ["mean", "nought"], ["zero"]),
            node("Add", ["chances", "zero"], ["scores"]),
            node("Cast", ["orig_target_sizes"], ["size"], to=1),
            node("Concat", ["size", "size"], ["sizes"], axis=1),
            node("Mul", ["shares", "sizes"], ["boxes"]),
            node("Identity", ["classes"], ["labels"]),
        ],
        [("images", "float32", (1, 3, 640, 640)), ("orig_target_sizes", "int64", (1, 2))],
        [
            ("labels", "int64", (1, 2)),
            ("boxes", "float32", (1, 2, 4)),
            ("scores", "float32", (1, 2)),
        ],
        {
            "nought": np.zeros(1, np.float32),
            "chances": np.array([[0.9, 0.2]], np.float32),
            "shares": np.array([[[0.25, 0.5, 0.75, 1], [0, 0, 1, 1]]], np.float32),
            "classes": np.array([[1, 0]]),
        },
    )
    (found,) = findings(folder, plain(90, 200, 100))
    assert found == ("plate", 0.9, (50, 50, 150, 100))


def findings(folder: Path, picture: Any) -> list[tuple[str, float, tuple[int, ...]]]:
    """Give label, score and box of what a model folder finds in a picture."""
    model = load_model(load_folder(folder), [EngineChoice("onnxruntime")], "picture")
    try:
        outcome = model.infer(Sample(picture, 0, 0, 0.0))
    finally:
        model.close()
    assert isinstance(outcome.findings, Detections)
    found = outcome.findings
    return [
        (label, round(float(score), 3), tuple(round(float(edge)) for edge in box))
        for label, score, box in zip(found.labels, found.scores, found.boxes, strict=True)
    ]


@needs_assets
def test_people_are_counted_as_the_page_says(
    agent: Agents, broker: Mosquitto, listen: Listeners, tmp_path: Path
) -> None:
    """Its settings and its model, on a clip of people: totals of the door, and entities."""
    page = (DOCS / "count-people.md").read_text()
    block = next(text for _, text in _blocks(DOCS / "count-people.md") if "# people.toml" in text)
    camera = "rtsp://user:password@camera/stream"
    clip = ASSETS / "media" / "one-by-one-person-detection.mp4"
    assert camera in block
    assert "known-models.md#yolox" in page
    home = tmp_path / "box"
    copied(home / "models" / "yolox-nano", "coco_yolox_nano_fp32.onnx", recipe("yolox"))
    # Every frame, however slow the machine: the same people each time.
    settings = block.replace(camera, f"file:{clip}?pace=max").replace("rate = 10 ", "rate = 1000 ")
    settings = settings.replace("mqtt://homeassistant.lan", broker.url)
    settings = f'device_id = "box"\nstate_dir = "state"\n{settings}'
    listener = listen(broker.port, "#")
    agent(settings, home.name)
    listener.wait_state("edge/box/source/entrance", patience=4 * PATIENCE, state="ended")
    counted = listener.wait_for(
        lambda _: (listener.last("edge/box/count/entrance") or {}).get("lines"), "counts"
    )
    total = {way: sum(counted["door"][way].values()) for way in ("in", "out")}
    assert sum(total.values()) >= 1, counted
    (config,) = [h.json for h in listener.heard if h.topic.startswith("homeassistant/device/")][-1:]
    entities = {entry.get("name") for entry in config["components"].values()}
    assert any("hall" in str(entity) for entity in entities), entities
    assert any("door" in str(entity) for entity in entities), entities


# The commands on the pages


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```console" in page.read_text()], ids=lambda page: page.name
)
def test_the_commands_of_a_page_work(page: Path, tmp_path: Path, command: Path) -> None:
    """The commands of all console blocks, in their order, do and print what the page shows.

    A block whose first line is a comment with a file's name is that file. `run` is started and
    goes on, as in another terminal. `text` blocks, for what needs root or a network, are not run.
    What the commands leave in the checkout, a private key among it, git ignores.
    """
    work = tmp_path / "work"
    work.mkdir()
    (work / "models").symlink_to(CHECKOUT / "models")
    broker = Mosquitto(tmp_path / "broker")
    running: list[subprocess.Popen[str]] = []
    try:
        shell = Shell(work, _environment(command, broker.port), running)
        for language, block in _blocks(page):
            file = re.match(r"# ([\w./-]+\.\w+)\n", block)
            if language == "console":
                for line, shown in _steps(block):
                    shell.type(line, shown)
            elif file is not None:
                (work / file[1]).write_text(block)
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(30)
        broker.stop()
    left = [path for path in sorted(work.iterdir()) if path.name != "models"]
    assert [path.name for path in left if not _is_ignored(path)] == []


def _is_ignored(path: Path) -> bool:
    """Whether git would leave a file or folder out of a commit, did it lie in the checkout."""
    name = f"{path.name}/" if path.is_dir() else path.name
    command = ["git", "-C", str(CHECKOUT), "check-ignore", "--quiet", "--no-index", name]
    done = subprocess.run(command, check=False, capture_output=True)
    # 128: this is no checkout.
    return done.returncode in {0, 128}


def _blocks(page: Path) -> list[tuple[str, str]]:
    """Give the language and text of every code block of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def _steps(block: str) -> Iterator[tuple[str, list[str]]]:
    """Give each command of a console block, and what it is shown to print."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, *shown = step.splitlines()
        yield line, [each for each in shown if each.strip() and each != "..."]


def _environment(command: Path, port: int) -> dict[str, str]:
    """Make the environment of a reader, whose broker listens on another port than 1883."""
    for name, words in (
        ("python", sys.executable),
        ("mosquitto_pub", f"{shutil.which('mosquitto_pub')} -p {port}"),
        ("mosquitto_sub", f"{shutil.which('mosquitto_sub')} -p {port}"),
    ):
        script = command / name
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        script.chmod(0o755)
    return {
        # What a source opened in this process has set for FFmpeg is not a reader's.
        **{name: text for name, text in os.environ.items() if not name.startswith("OPENCV_")},
        "PATH": f"{command}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "EDGE_AGENT_BROKER__URL": f"mqtt://127.0.0.1:{port}",
        "EDGE_AGENT_DEVICE_ID": "edge-01",
    }


class Shell:
    """A terminal, in which commands are typed; `run` goes on in another one."""

    def __init__(
        self, work: Path, environ: dict[str, str], running: list[subprocess.Popen[str]]
    ) -> None:
        self._work = work
        self._environ = environ
        self._running = running

    def type(self, line: str, shown: list[str]) -> None:
        """Run a command; what is shown of its output must come, in whatever order."""
        process = subprocess.Popen(
            ["bash", "-uc", line],
            cwd=self._work,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if line.startswith("edge-agent run"):
            self._running.append(process)
            self._await(process, line, shown)
            return
        try:
            said, _ = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"{line}: does not end; it printed:\n{process.communicate()[0]}")
        missing = [each for each in shown if not _is_there(each, said.splitlines())]
        assert missing == [], f"{line}: these lines are not in:\n{said}"
        failed = any(each.startswith("edge-agent: ") for each in shown)
        assert (process.returncode != 0) == failed, f"{line}: {process.returncode}\n{said}"

    def _await(self, process: subprocess.Popen[str], line: str, shown: list[str]) -> None:
        """Read what a daemon prints until all that is shown of it has come."""
        said: list[str] = []
        assert process.stdout is not None
        stuck = threading.Timer(180, process.kill)
        stuck.start()
        for each in process.stdout:
            said.append(each)
            if all(_is_there(wanted, said) for wanted in shown):
                break
        else:
            pytest.fail(f"{line}: ended; it printed:\n{''.join(said)}")
        stuck.cancel()
        # Read on, so that it never waits for us.
        threading.Thread(target=process.stdout.read, daemon=True).start()


def _is_there(shown: str, said: Iterable[str]) -> bool:
    """Whether a line that a page shows is among those printed.

    Errors are compared whole, other lines by their first two words: what follows is of one machine
    and one moment. Numbers, engines and names of profiles are that everywhere. Of lines that tell
    the machine itself only the first word is compared.
    """
    count = None if shown.startswith("edge-agent: ") else 2
    if _words(shown)[0] in {"machine", "flags", "profile", "why"}:
        count = 1
    return any(_words(each)[:count] == _words(shown)[:count] for each in said)


def _words(line: str) -> list[str]:
    line = re.sub(rf"\b({'|'.join(PROFILES)})\b", "PROFILE", line)
    line = re.sub(r"\b(openvino|onnxruntime)(:\w+)?", "ENGINE", line)
    return re.split(r"[\s,]+", re.sub(r"\d+(\.\d+)?", "0", line).strip())


# Security


def test_the_bounds_in_the_threat_model_are_those_of_the_code() -> None:
    """Numbers that the page on security states are the ones that the code has."""
    from edge_agent.core import schema
    from edge_agent.core.text import MOST_LABEL
    from edge_agent.delivery import plan, protocol
    from edge_agent.delivery.receive.rollouts import MOST_KNOWN
    from edge_agent.models import manifest, npz
    from edge_agent.models.files import check_ir, check_onnx, strip_weights
    from edge_agent.models.packages import package, ustar
    from edge_agent.mqtt import inbox
    from edge_agent.mqtt.requests import MAX_ANSWERED_BYTES, MAX_COMMAND_BYTES
    from edge_agent.sources import opencv, pictures

    page = (DOCS / "security.md").read_text()
    kib, mib = 1024, 2**20
    for words in (
        f"| settings, manifest, profile | {schema.MAX_TOML_BYTES // kib} KiB, ",
        f"KiB, keys of {schema.MAX_KEY_PARTS} parts |",
        f"by its `id` | {MAX_COMMAND_BYTES // kib} KiB; {MAX_ANSWERED_BYTES // mib} MiB |",
        f"| {protocol.MAX_OFFER_BYTES // kib} KiB, {package.MAX_HEADER // kib} KiB |",
        f"| {protocol.MAX_SINGLE_MESSAGE_BYTES // mib} MiB; {inbox.MAX_BYTES // mib} MiB and ",
        f" and {inbox.MAX_MESSAGES} messages |",
        f"| roll-out | {plan.MAX_BYTES // kib} KiB, {plan.MAX_WAVES} waves, {MOST_KNOWN} that are ",
        f"| {ustar.MAX_MEMBERS:,} members, {ustar.MAX_DEPTH} levels, ",
        f"{check_onnx.MAX_NODES:,} nodes, {strip_weights.MAX_PARTS:,} parts |",
        f"| {check_ir.MAX_XML_BYTES // mib} MiB of XML, {check_ir.MAX_LAYERS:,} layers, ",
        f"| {manifest.MAX_LABEL_BYTES // mib} MiB, {manifest.MAX_LABELS:,} of {MOST_LABEL} ",
        f"| {npz.MAX_ARRAYS:,} arrays, {npz.MAX_BYTES // mib} MiB unpacked |",
        f"| {opencv.MAX_PIXELS // mib} megapixels, {pictures.MAX_BYTES // mib} MiB |",
    ):
        assert words in page, words


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """Make a folder that holds `edge-agent` as a command, which runs this very code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "edge-agent"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m edge_agent "$@"\n')
    script.chmod(0o755)
    return folder


# Mutual TLS


def test_the_walk_through_of_mutual_tls_works(tmp_path: Path, command: Path) -> None:
    """All commands of mutual-tls.md, in their order: certificates, a broker, a device that may in.

    The broker then takes the device, and refuses a stranger and whoever has no certificate.
    """
    page = (DOCS / "mutual-tls.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert blocks
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        **os.environ,
        "PATH": f"{command}:{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": str(CHECKOUT),
        "CHECKOUT": str(CHECKOUT),
        "BROKER": "localhost",
        "PORT": str(free_port()),
    }
    done = subprocess.run(
        ["bash", "-euc", "\n".join(blocks)],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        # It may be left by a command that failed.
        start_new_session=True,
    )
    pid = work / "mosquitto.pid"
    if done.returncode and pid.is_file():
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"broker: mqtts://localhost:{environ['PORT']}, MQTT 5" in done.stdout
    for key in work.glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0, key
    _check_who_may_in(work, int(environ["PORT"]))


def _check_who_may_in(work: Path, port: int) -> None:
    """Start the broker of the walk-through again, and try to get in."""
    broker = Mosquitto(work, (work / "mosquitto.conf").read_text(), port=port)
    try:
        config = work / "edge-01.toml"
        assert run_cli("models", "--config", str(config)).returncode == 0
        text = config.read_text()
        _make_stranger(work)
        for wrong in (
            re.sub(r"(cert|key)_file.*\n", "", text),
            text.replace('"edge-01.', '"stranger.'),
        ):
            config.write_text(wrong)
            done = run_cli("models", "--config", str(config))
            assert done.returncode == 1, done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    finally:
        broker.stop()


def _make_stranger(work: Path) -> None:
    """Make a certificate that no authority has signed, in the name of the device."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "1",
         "-subj", "/CN=edge-01", "-keyout", "stranger.key", "-out", "stranger.pem"],
        cwd=work,
        check=True,
        capture_output=True,
    )  # fmt: skip


# The access list


USERS = (
    *("edge-01", "edge-02", "viewer", "watcher", "operator", "guard", "configurer", "deployer"),
    *("asker", "janitor"),
)


@dataclass(frozen=True)
class Guarded:
    """A broker with the example access list, and a door without for the one who looks on."""

    open_port: int
    port: int

    def url(self, user: str) -> str:
        return f"mqtt://{user}:secret@127.0.0.1:{self.port}"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Start the broker."""
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed")
    passwords = tmp_path / "passwords"
    write_passwords(passwords, **dict.fromkeys(USERS, "secret"))
    open_port, port = free_port(), free_port()
    broker = Mosquitto(
        tmp_path / "broker",
        f"user {getpass.getuser()}\nper_listener_settings true\n"
        f"listener {open_port} 127.0.0.1\nallow_anonymous true\n"
        f"listener {port} 127.0.0.1\nallow_anonymous false\n"
        f"password_file {passwords}\nacl_file {DOCS / 'acl.example'}\n",
        port=open_port,
    )
    yield Guarded(open_port, port)
    broker.stop()


@dataclass(frozen=True)
class Box:
    """A device at work under the access list."""

    guarded: Guarded
    listener: Listener
    process: AgentProcess
    model: Path


@pytest.fixture
def box(guarded: Guarded, listen: Listeners, agent: Agents, tmp_path: Path) -> Box:
    """Run `edge-01`, member of the group `lab`, which takes unsigned models."""
    brightness(tmp_path / "models" / "light")
    clip = write_clip(tmp_path / "clip.avi", [plain(i) for i in range(25)])
    listener = listen(guarded.open_port)
    settings = agent_settings(
        "edge-01",
        guarded.url("edge-01"),
        [{"name": "p", "source": f"file:{clip}?loop=1", "model": "light", "snapshot": True}],
        models_dirs=[str(tmp_path / "models")],
        groups=["lab"],
        trust={"allow_unsigned": True},
        trial={"probation_s": 0.5, "shadow_frames": 3},
    )
    process = agent(settings)
    listener.wait_for(
        lambda heard: any(h.topic == "edge/edge-01/result/p" for h in heard), "a result"
    )
    return Box(guarded, listener, process, brightness(tmp_path / "light-2", "2"))


class Client:
    """One user of the broker: what it hears, and how the broker answers what it says."""

    def __init__(self, guarded: Guarded, user: str, client_id: str = "") -> None:
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5
        )
        self.client.username_pw_set(user, "secret")
        self.heard: list[str] = []
        self._changed = threading.Condition()
        self.refusals: dict[int, str] = {}
        self.client.on_message = self._take
        self.client.on_publish = self._published
        self._listening = threading.Event()
        self.client.on_subscribe = lambda *_: self._listening.set()
        # With the session that the broker may have kept for this id.
        self.client.connect("127.0.0.1", guarded.port, clean_start=not client_id)
        self.client.loop_start()

    def listen(self, topic: str) -> None:
        """Subscribe; what is published from now on comes."""
        self.client.subscribe(topic, 1)
        assert self._listening.wait(PATIENCE), topic

    def _take(self, _client: object, _user: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.heard.append(message.topic)
            self._changed.notify_all()

    def wait_for(self, topic: str) -> None:
        """Wait until something came on a topic; all that the broker sent before has come too."""
        with self._changed:
            assert self._changed.wait_for(lambda: topic in self.heard, PATIENCE), topic

    def _published(self, _c: object, _u: object, mid: int, reason: object, _p: object) -> None:
        self.refusals[mid] = str(reason)

    def say(self, topic: str, payload: bytes | str, *, retain: bool = False) -> str:
        """Publish; give the broker's word on it."""
        receipt = self.client.publish(topic, payload, 1, retain=retain)
        receipt.wait_for_publish(20)
        return self.refusals[receipt.mid]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def client(guarded: Guarded) -> Iterator[Callable[[str], Client]]:
    """Make clients that are closed after the test."""
    made: list[Client] = []

    def make(user: str, client_id: str = "") -> Client:
        made.append(Client(guarded, user, client_id))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_device_may_say_all_it_has_to(box: Box) -> None:
    """Under the list a device is not refused once: status, info, results, pictures, answers."""
    listener = box.listener
    listener.publish("edge/edge-01/in/command/ping", '{"id": "one"}')
    listener.wait_state("edge/edge-01/reply/one", ok=True)
    listener.publish("edge/@lab/in/command/ping", '{"id": "two"}')
    listener.wait_state("edge/edge-01/reply/two", ok=True)
    health = listener.wait_state("edge/edge-01/health", schema=1)
    wanted = {"status", "info", "health", "result", "snapshot", "source", "model", "reply"}

    def said(heard: list[Heard]) -> bool:
        own = (h.topic.split("/") for h in heard if h.topic.startswith("edge/edge-01/"))
        return wanted <= {levels[2] for levels in own}

    listener.wait_for(said, f"{sorted(wanted)}")
    assert not any("broker" in why for why in health["why"]), health["why"]
    assert "refuses what we publish" not in box.process.words()


@pytest.mark.parametrize(
    "user", ["viewer", "watcher", "operator", "guard", "configurer", "asker", "deployer"]
)
def test_a_role_is_no_device_of_its_own_name(client: Callable[[str], Client], user: str) -> None:
    """A viewer reported as one that a roll-out had failed, and the whole fleet went back."""
    role = client(user)
    for kind in ("status", "info", "rollout", "model/light"):
        assert role.say(f"edge/{user}/{kind}", b"{}", retain=True) == "Not authorized", kind
    config = f"homeassistant/device/edge-agent_{user}/config"
    assert role.say(config, b"{}", retain=True) == "Not authorized"
    assert client("edge-02").say("edge/edge-02/rollout", b"{}", retain=True) != "Not authorized"


SAID = {
    "edge/edge-01/in/command/configure": b'{"id": "stolen"}',
    "edge/edge-01/in/command/restart": b'{"id": "stolen"}',
    "edge/@lab/in/command/restart": b'{"id": "stolen"}',
    "edge/edge-01/in/model": b"tar",
    "edge/edge-01/in/push/x/offer": b"{}",
    "edge/edge-01/in/push/x/block/0": b"data",
    "edge/edge-01/status": b'{"state": "offline"}',
    "edge/edge-01/result/p": b"{}",
    "edge/edge-01/model/light": b"",
}
MAY_SAY = {
    "operator": {"edge/edge-01/in/command/restart", "edge/@lab/in/command/restart"},
    "configurer": {"edge/edge-01/in/command/configure"},
    "deployer": {
        "edge/edge-01/in/model",
        "edge/edge-01/in/push/x/offer",
        "edge/edge-01/in/push/x/block/0",
    },
}


@pytest.mark.parametrize(
    "user", ["edge-02", "viewer", "watcher", "operator", "configurer", "deployer"]
)
def test_nobody_says_more_than_its_role(
    guarded: Guarded, client: Callable[[str], Client], listen: Listeners, user: str
) -> None:
    """Commands, models, blocks, and speaking as a device: each is let through for its role alone.

    The broker says "Not authorized" to all others, and nobody hears what they said.
    """
    listener, speaker = listen(guarded.open_port), client(user)
    let_through = {
        topic
        for topic, payload in SAID.items()
        if speaker.say(topic, payload, retain=topic.endswith("status")) != "Not authorized"
    }
    assert let_through == MAY_SAY.get(user, set())
    # Through the same broker, after all of it: what was let through is there by now.
    listener.publish("edge/end", '{"state": "end"}')
    listener.wait_state("edge/end", state="end")
    assert {heard.topic for heard in listener.heard} - {"edge/end"} == let_through


MAY_HEAR = {
    "edge-02": set[str](),
    "viewer": {"status", "info", "health", "result", "pipeline", "source", "model"},
    "watcher": {
        *("status", "info", "health", "result", "pipeline", "source", "model", "snapshot"),
    },
    "operator": {"status", "info", "health", "pipeline", "config", "source", "model", "reply"},
    "configurer": {"status", "info", "health", "config", "reply"},
    "deployer": {"status", "info", "health", "model", "push"},
}


def test_nobody_hears_more_than_its_role(box: Box, client: Callable[[str], Client]) -> None:
    """Whoever asks for everything gets what its role may hear of a device at work, and no more.

    Another device gets nothing: no result, no picture, no block of a model on its way.
    """
    ears, listener = {user: client(user) for user in MAY_HEAR}, box.listener
    for ear in ears.values():
        ear.listen("edge/#")
    listener.publish("edge/edge-01/in/command/ping", '{"id": "one"}')
    listener.wait_state("edge/edge-01/reply/one", ok=True)
    pushed = run_cli(
        "push", str(box.model), "--device", "edge-01",
        "--broker", box.guarded.url("deployer"),
    )  # fmt: skip
    assert pushed.returncode == 0, pushed.stderr
    before = len(listener.on("edge/edge-01/health"))
    listener.wait_for(
        lambda _: len(listener.on("edge/edge-01/health")) >= before + 2, "health, twice more"
    )
    own_inbox = "edge/edge-02/in/end"
    for end in (own_inbox, "edge/end/status"):
        listener.publish(end, "{}")
    for user, ear in ears.items():
        ear.wait_for(own_inbox if user == "edge-02" else "edge/end/status")
        of_device = [topic for topic in list(ear.heard) if topic.startswith("edge/edge-01/")]
        assert {topic.split("/")[2] for topic in of_device} == MAY_HEAR[user], user
        inboxes = {topic for topic in list(ear.heard) if "/in/" in topic}
        assert inboxes == ({own_inbox} if user == "edge-02" else set()), user


def test_taking_over_a_client_id_gives_no_rights(box: Box, client: Callable[..., Client]) -> None:
    """Who connects with a device's client id throws it out, and hears nothing of its inbox.

    The device says so, and comes back.
    """
    # Held still, so that it does not take its place back before the thief has listened.
    box.process.signal(signal.SIGSTOP)
    thief = client("viewer", "edge-agent-edge-01")
    thief.listen("edge/end/status")
    box.listener.publish("edge/edge-01/in/command/ping", '{"id": "secret"}')
    box.listener.publish("edge/end/status", "{}")
    thief.wait_for("edge/end/status")
    assert [topic for topic in thief.heard if "/in/" in topic] == []
    thief.close()
    box.process.signal(signal.SIGCONT)
    box.listener.wait_for(
        lambda heard: any(
            h.json.get("reason") == "reconnected" for h in heard if h.topic == "edge/edge-01/status"
        ),
        "the device to be back",
    )
    assert "connection to" in box.process.words()


@pytest.mark.parametrize(
    ("command", "topic"),
    [
        (["push", "MODEL", "--device", "edge-01"], r"edge/edge-01/in/push/[0-9a-f]{32}/offer"),
        (["rollback", "light", "--device", "edge-01"], "edge/edge-01/in/command/rollback"),
        (["models", "--forget", "scrapped"], "edge/scrapped/(model/light|status)"),
    ],
)
def test_a_command_without_the_right_ends_at_once(
    guarded: Guarded, listen: Listeners, tmp_path: Path, command: list[str], topic: str
) -> None:
    """What the broker refuses ends a command with 1 and one line: who may not publish what."""
    listener = listen(guarded.open_port)
    listener.publish("edge/edge-01/status", '{"state": "online"}', retain=True)
    listener.publish("edge/scrapped/status", '{"state": "offline"}', retain=True)
    listener.publish("edge/scrapped/model/light", '{"live": "1"}', retain=True)
    model = str(brightness(tmp_path / "light-2", "2"))
    arguments = [model if word == "MODEL" else word for word in command]
    done = call_cli(*arguments, "--broker", guarded.url("viewer"))
    assert done.code == 1
    said = f"the broker does not let viewer publish to {topic}: Not authorized; see its access list"
    assert re.fullmatch(f"edge-agent: {said}", done.error)
    assert "cleared" not in done.out
    late = listen(guarded.open_port)
    late.catch_up()
    assert {"edge/scrapped/status", "edge/scrapped/model/light"} <= {h.topic for h in late.heard}


def test_each_role_can_do_its_work(box: Box) -> None:
    """The commands of edge-agent work with the rights of the roles that they are for."""
    guarded = box.guarded
    shown = run_cli("tail", "-n", "1", "--json", "--broker", guarded.url("viewer"))
    assert json.loads(shown.stdout)["device"] == "edge-01"
    pushed = run_cli(
        "push", str(box.model), "--device", "edge-01", "--broker", guarded.url("deployer")
    )
    assert pushed.returncode == 0, pushed.stderr
    box.listener.wait_state("edge/edge-01/model/light", live="2")
    back = run_cli("rollback", "light", "--device", "edge-01", "--broker", guarded.url("operator"))
    assert back.returncode == 0, back.stderr
    patch = box.model.with_name("patch.json")
    patch.write_text('{"p": {"rate": 5}}')
    changed = run_cli(
        "configure", str(patch), "--device", "edge-01", "--broker", guarded.url("configurer")
    )
    assert changed.returncode == 0, changed.stderr
    assert box.process.stop() == 0
    forgotten = run_cli("models", "--forget", "edge-01", "--broker", guarded.url("janitor"))
    assert forgotten.returncode == 0, forgotten.stderr


def test_a_kept_clip_is_fetched_under_the_access_list(
    guarded: Guarded, listen: Listeners, agent: Agents, tmp_path: Path
) -> None:
    """No line let a device publish clips, and it was said not to have answered."""
    seen = {"name": "seen", "when": "enter", "clip": True, "picture": "frame"}
    belt = {
        "name": "belt",
        "source": f"file:{CHECKOUT}/models/media/conveyor.mp4?loop=1",
        "model": "parts-inspection",
        "rate": 5,
        "rules": [seen],
    }
    evidence = {"keep_mb": 50, "before_s": 1.0, "after_s": 0.5}
    agent(agent_settings("edge-01", guarded.url("edge-01"), [belt], evidence=evidence))
    by = ("--device", "edge-01", "--broker", guarded.url("guard"))
    event = ""

    def kept() -> bool:
        nonlocal event
        listed = run_cli("evidence", "list", "--json", *by).stdout.splitlines()
        clips = [each for each in map(json.loads, listed) if each["kind"] == "clip"]
        event = clips[0]["event"] if clips else ""
        return bool(event)

    listen(guarded.open_port).wait_state("edge/edge-01/event/belt", state="once")
    wait_until(kept, "a clip")
    done = run_cli("evidence", "get", event, "-o", str(tmp_path / "out"), *by)
    assert done.returncode == 0, done.stderr
    assert {each.suffix for each in (tmp_path / "out").iterdir()} == {".jpg", ".mp4"}
    blind = (*by[:-1], guarded.url("operator"), "--timeout", "3")
    refused = run_cli("evidence", "get", event, "-o", str(tmp_path / "none"), *blind)
    assert refused.returncode == 1
    assert "has answered, but nothing came on edge/edge-01/" in refused.stderr


def test_a_push_without_the_right_comes_to_nothing(box: Box) -> None:
    """`edge-agent push` as somebody without the role ends with 1, and the device hears nothing."""
    for user in ("viewer", "edge-02"):
        done = run_cli(
            "push", str(box.model), "--device", "edge-01", "--timeout", "3",
            "--broker", box.guarded.url(user),
        )  # fmt: skip
        assert done.returncode == 1, (user, done.stdout)
        assert "Traceback" not in done.stderr
    box.listener.wait_state("edge/edge-01/health", malformed=0)
    model = box.listener.wait_state("edge/edge-01/model/light", live="1")
    assert model["versions"] == ["1"]
