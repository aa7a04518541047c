"""`edge-agent bench cold-start`: real processes over a real broker, and that it says what is so."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.bench.cold_start import truth
from edge_agent.bench.cold_start.disk import (
    READ_AHEAD_KB,
    disk_of,
    evict,
    find_controller,
    holders,
    slow_disk,
)
from edge_agent.bench.cold_start.starts import (
    SCRIPTS,
    VARIANTS,
    Cold,
    ColdStartReport,
    ColdStartSetup,
    Run,
    script_steps,
)
from edge_agent.bench.common import child
from edge_agent.bench.common.models import find_model
from edge_agent.bench.common.report import cores
from edge_agent.bench.push.versions import generated as small_model
from edge_agent.cli.commands.bench_cold_start import PARTS, parts
from edge_agent.core.errors import UsageError
from edge_agent.tools.random_networks import NAMES
from tests.helpers.small_disk import compressed_image
from tests.helpers.small_models import brightness, detector
from tests.helpers.stranger import stranger
from tests.helpers.support import ASSETS, CHECKOUT, PATIENCE, needs_assets, run_cli
from tests.helpers.tiny_networks import node, save_onnx

CLIP = CHECKOUT / "models" / "media" / "conveyor.mp4"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what the benchmark makes within the test."""
    place = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    return place


@pytest.mark.timeout(PATIENCE * 10)
@pytest.mark.parametrize("kind", ["classes", "boxes"])
def test_times_every_way_to_a_first_result(kind: str, tmp_path: Path, cache: Path) -> None:
    """All variants reach a correct result; figures as JSON and as a picture; nothing is left."""
    model = str(small_model(tmp_path / "small", 1)) if kind == "classes" else "parts-inspection"
    picture = tmp_path / "bars.png"
    options = ["--runs", "1", "--json", "--picture", str(picture), "--no-model-cache"]
    # The others need a form: making one takes most of the time.
    options += ["--start", "first"] if kind == "boxes" else ["--beside", sys.executable]
    done = run_cli("bench", "cold-start", model, *options, patience=PATIENCE * 10)
    assert done.returncode == 0, done.stderr
    (figures,) = (json.loads(line) for line in done.stdout.splitlines())
    assert figures["model"] == ("random-1-mb@1" if kind == "classes" else "parts-inspection@3")
    assert (figures["cold"], figures["disk_mbps"], figures["runs"]) == ("model", None, 1)
    wanted = VARIANTS if kind == "classes" else (*SCRIPTS, "agent-first")
    assert tuple(figures["variants"]) == wanted
    none = figures["variants"]["none"]["ms"]["median"]
    for name, variant in figures["variants"].items():
        assert variant["each_ms"] == [variant["ms"]["median"]]
        assert variant["load_ms"] == pytest.approx(variant["ms"]["median"] - none, abs=0.01)
        if not name.startswith("agent"):
            assert sum(variant["steps_ms"].values()) == pytest.approx(
                variant["ms"]["median"], abs=1
            )
    floor = figures["floor"]
    assert floor["ms"] == max(floor["read_ms"], floor["preparation_ms"], floor["compute_ms"])
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert list((cache / "edge-agent" / "bench").iterdir()) == []


def report(cold: Cold, **taken: list[float]) -> ColdStartReport:
    """Make the report of a model of 20 MB on a disk of 100 MB a second."""
    made = ColdStartReport(
        "m@1", 20_000_000, ColdStartSetup(3, CLIP, cold, 100.0), "ready", 100e6, 80.0, 30.0
    )
    for variant, times in taken.items():
        made.runs[variant] = [Run(ms, {"model": ms / 2}, {}) for ms in times]
    return made


def test_figures_follow_from_the_runs() -> None:
    """Load cost is what the medians differ by from no model's; its ratio is to plain ORT's."""
    every = {"openvino": [400.0] * 3, "openvino-cache": [300.0] * 3, "best": [120.0] * 3}
    made = report("model", none=[100, 90, 150], ort=[300, 310, 200], agent=[160, 150, 140], **every)
    figures = made.json()["variants"]
    assert figures["none"] == {
        "ms": {"min": 90, "median": 100, "max": 150},
        "each_ms": [100, 90, 150],
        "load_ms": 0,
        "ratio": None,
        "of_ort": 0.333,
        "steps_ms": {"model": 50},
    }
    assert (figures["ort"]["load_ms"], figures["ort"]["ratio"]) == (200, 1.0)
    assert (figures["agent"]["load_ms"], figures["agent"]["ratio"]) == (50, 0.25)
    assert made.middle("agent").ms == 150
    assert made.of_ort("agent") == 0.5
    assert tuple(figures) == (*SCRIPTS, "agent")
    assert made.json()["noise_ms"] == 60


@pytest.mark.parametrize(
    ("program", "why"),
    [("nothing-here", "No such file or directory; expected a Python"), ("bare", "No module named")],
)
def test_another_python_that_cannot_run_the_script_is_wrong_usage(
    program: str, why: str, tmp_path: Path
) -> None:
    """Before anything is measured, with what to install there."""
    if program == "bare":
        venv.create(tmp_path / "bare", symlinks=True)
        program = "bare/bin/python"
    done = run_cli("bench", "cold-start", "resnet50-int8", "--beside", str(tmp_path / program))
    assert done.returncode == 2
    assert f"--beside: {tmp_path / program}: {why}" in done.stderr


def test_the_floor_counts_the_disk_where_it_is_read() -> None:
    """It is the most of reading, preparing on all cores, and computing; memory costs nothing."""
    assert report("model").floor == 200.0
    assert report("nothing").floor == max(80.0 / cores(), 30.0)


@pytest.mark.usefixtures("cache")
def test_a_wrong_answer_fails(tmp_path: Path) -> None:
    """A model that answers otherwise every time ends the command with 1 and a line that says so."""
    folder = tmp_path / "dice"
    folder.mkdir()
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["light"], axes=[1, 2, 3], keepdims=0),
            node("RandomUniform", [], ["dice"], shape=[1, 1000], dtype=1),
            node("Add", ["dice", "light"], ["logits"]),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("logits", "float32", (1, 1000))],
    )
    (folder / "model.toml").write_text(
        'name = "dice"\nversion = "1"\ntask = "classification"\nfile = "model.onnx"\n'
        '[output]\ndecoder = "logits"\n'
    )
    done = run_cli("bench", "cold-start", str(folder), "--runs", "1")
    assert done.returncode == 1
    assert "edge-agent: wrong answer: dice@1: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def wrong_usage(*arguments: str) -> str:
    """Run the command; give the one line that it ends with."""
    done = subprocess.run(
        [sys.executable, "-m", "edge_agent", "bench", "cold-start", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=CHECKOUT,
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.usefixtures("cache")
def test_what_cannot_be_measured_is_wrong_usage(tmp_path: Path) -> None:
    """Unknown models, models that a plain script cannot run, and bad options end with 2."""
    assert "none of the generated ones: resnet50-fp32" in wrong_usage("no-such-model")
    assert "takes picture models" in wrong_usage("bearing-vibration")
    light = brightness(tmp_path / "light")
    assert "this one has 'raw'" in wrong_usage(str(light))
    assert "none.mp4: no such clip" in wrong_usage("parts-inspection", "--source", "none.mp4")
    assert "ends in .png" in wrong_usage("parts-inspection", "--picture", "bars.jpg")
    assert "not allowed with" in wrong_usage("m", "--no-model-cache", "--no-page-cache")
    assert "number above 0" in wrong_usage("m", "--disk-mbps", "0")


@pytest.mark.usefixtures("cache")
def test_a_broken_model_is_named(tmp_path: Path) -> None:
    """A network that is none ends with one line that names its file."""
    folder = small_model(tmp_path / "small", 1)
    (folder / "model.onnx").write_bytes(b"\x08 no network")
    assert str(folder / "model.onnx") in wrong_usage(str(folder))


@pytest.mark.parametrize("option", [("--no-page-cache",), ("--disk-mbps", "40")])
def test_rights_that_are_missing_are_named(option: tuple[str, ...]) -> None:
    """Without root, a cold system or a slow disk ends with 2, and says that it needs root."""
    with TemporaryDirectory() as place:  # pytest's own are for who runs it
        Path(place).chmod(0o777)
        done = subprocess.run(
            [
                *stranger(),
                *(sys.executable, "-m", "edge_agent", "bench", "cold-start", "parts-inspection"),
                *option,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=CHECKOUT,
            env={**os.environ, "XDG_CACHE_HOME": place, "TMPDIR": place},
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"edge-agent: {option[0]}: ")
    assert "run it as root" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def resident(path: Path) -> int:
    """Count the pages of a file that are in memory (mincore)."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE)
    pages = (ctypes.c_ubyte * ((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
    place = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages)


def on_a_disk(place: Path) -> Path:
    """Skip where a folder is in memory only: nothing can be evicted from there."""
    try:
        disk_of(place)
    except UsageError:
        pytest.skip(f"{place} is not on a disk")
    return place


def test_what_is_evicted_is_not_in_memory(tmp_path: Path) -> None:
    """A file just written, and one in a folder, are in memory before and not after."""
    place = on_a_disk(tmp_path)
    (place / "deep").mkdir()
    files = [place / "one.bin", place / "deep" / "two.bin"]
    for file in files:
        file.write_bytes(os.urandom(1_000_000))
    assert [resident(file) for file in files] == [245, 245]
    evict([files[0], place / "deep"])
    assert [resident(file) for file in files] == [0, 0]


def test_who_holds_libraries_is_found() -> None:
    """A process that has mapped a package's native part is listed by number; others are not."""
    script = "import numpy, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        numbers = [line.split()[0] for line in holders(["numpy"])]
        assert str(process.pid) in numbers
        assert str(process.pid) not in [line.split()[0] for line in holders(["no-such-package"])]
        process.communicate(b"")


def test_the_disk_of_an_image_is_that_of_its_file(tmp_path: Path) -> None:
    """What lies in a mounted image is read from the disk that holds the image."""
    disk = disk_of(on_a_disk(tmp_path))
    content = tmp_path / "content"
    content.mkdir()
    (content / "file").write_bytes(b"1")
    with compressed_image(content, tmp_path / "mounted") as place:
        assert disk_of(place / "file") == disk


def membership() -> str:
    """Say which groups of the kernel this process is in."""
    return Path("/proc/self/cgroup").read_text()


def test_a_disk_is_slow_only_as_long_as_asked(tmp_path: Path) -> None:
    """Within, this process is in a limited group and little is read ahead; then as before."""
    disk = disk_of(on_a_disk(tmp_path))
    ahead = disk / "queue" / "read_ahead_kb"
    before = ahead.read_text(), membership()
    try:
        with slow_disk([tmp_path], 50e6):
            assert int(ahead.read_text()) == READ_AHEAD_KB
            assert f"/edge-agent-bench-{os.getpid()}" in membership()
            raise KeyboardInterrupt
    except UsageError as problem:
        pytest.skip(f"no rights or controller here: {problem}")
    except KeyboardInterrupt:
        pass
    assert (ahead.read_text(), membership()) == before


def test_finds_the_controller_for_disks(tmp_path: Path) -> None:
    """Version 2 where it has `io`, else version 1; with neither it says so."""
    second = tmp_path / "unified"
    second.mkdir()
    mounts = (
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio\n"
        f"41 31 0:38 / {second} rw,relatime - cgroup2 cgroup2 rw\n"
    )
    assert find_controller(mounts) == (Path("/sys/fs/cgroup/blkio"), False)
    (second / "cgroup.controllers").write_text("cpu io memory\n")
    assert find_controller(mounts) == (second, True)
    with pytest.raises(UsageError, match="no cgroup controller"):
        find_controller(mounts.splitlines()[0])


def test_errors_keep_their_kind_across_processes() -> None:
    """What a function in another process raises is raised here, as wrong usage where it was."""
    with pytest.raises(UsageError, match="'nothing': no model folder"):
        child.call("edge_agent.bench.cold_start.truth", "look", models=["nothing"], place="/")


def test_the_timing_process_holds_no_large_library() -> None:
    """What is timed is not in memory because of who times: it imports no native library."""
    script = (
        "import edge_agent.cli.main, edge_agent.cli.commands.bench\n"
        "import edge_agent.cli.commands.bench_cold_start\n"
        "import edge_agent.bench.cold_start.measure_starts, sys\n"
        "print(*({'numpy', 'cv2', 'onnxruntime', 'openvino', 'pydantic_core', 'rich'}"
        " & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    assert done.stdout.split() == []


@pytest.mark.usefixtures("cache")
def test_checks_classes(tmp_path: Path) -> None:
    """The class that is true passes from agent and script; another one is named as wrong."""
    (model,) = truth.look([str(small_model(tmp_path / "small", 1))], str(tmp_path / "place"))
    best = next(
        number
        for number in range(64)
        if not truth.check(model, str(CLIP), [claim(3, {"class": [number, 1.0]})])
    )
    said = [{"label": f"class-{best}", "score": 0.9}]
    assert truth.check(model, str(CLIP), [claim(3, {"classes": said})]) == []
    other = [{"label": f"class-{(best + 1) % 64}", "score": 0.9}]
    (line,) = truth.check(model, str(CLIP), [claim(3, {"classes": other})])
    expected = f"expected class class-{best}, found class-{(best + 1) % 64}"
    assert line == f"random-1-mb@1: agent, frame 3: {expected}"
    (line,) = truth.check(model, str(CLIP), [claim(3, {"classes": []})])
    assert line.endswith("found none")


def claim(seq: int, result: dict[str, Any]) -> dict[str, Any]:
    """Make what a variant has published."""
    return {"variant": "agent", "seq": seq, **result}


def test_checks_boxes() -> None:
    """Boxes must be there, be where they are and bear their label; near the threshold they may."""
    true: list[truth.Box] = [("nut", 0.9, [10, 10, 50, 50]), ("nut", 0.52, [80, 80, 90, 90])]
    assert truth.compare(true, [("nut", 0.8, [12, 11, 52, 50])], 0.5) is None
    assert truth.compare(true, true, 0.5) is None
    others: list[list[truth.Box]] = [
        [],
        [("bolt", 0.9, [10, 10, 50, 50])],
        [("nut", 0.9, [40, 40, 80, 80])],
    ]
    for said in others:
        assert truth.compare(true, said, 0.5) == "nut 0.90 at 10, 10, 50, 50 is missing"
    more: list[truth.Box] = [*true, ("nut", 0.7, [100, 100, 120, 120])]
    assert truth.compare(true, more, 0.5) == "nut 0.70 at 100, 100, 120, 120 is not there"


@pytest.mark.usefixtures("cache")
def test_a_box_is_found_where_a_constant_detector_has_it(tmp_path: Path) -> None:
    """Boxes of the script's SSD steps are in pixels of the frame and named as the agent does."""
    folder = detector(tmp_path / "fixed", [(1, 0.9, 0.25, 0.5, 0.5, 0.75)], ["none", "part"])
    (model,) = truth.look([str(folder)], str(tmp_path / "place"))
    box = {"label": "part", "score": 0.9, "box": [160.0, 192.0, 320.0, 288.0]}
    assert truth.check(model, str(CLIP), [claim(0, {"detections": [box]})]) == []
    (line,) = truth.check(model, str(CLIP), [claim(0, {"detections": []})])
    assert line.endswith("part 0.90 at 160, 192, 320, 288 is missing")


FACES = (
    '[input]\nmean = 127\nscale = 128\n[output]\ndecoder = "ultraface"\nthreshold = 0.7\n'
    'iou = 0.3\nlabels = ["face"]\n'
)
OBJECTS = (
    '[input]\ncolor = "bgr"\nresize = "letterbox"\nanchor = "top-left"\n'
    '[output]\ndecoder = "yolox"\nthreshold = 0.3\nlabels = "labels.txt"\n'
)


@needs_assets
@pytest.mark.assets
@pytest.mark.parametrize(
    ("file", "tables", "media"),
    [
        ("face_rfb320_int8.onnx", FACES, "faces_1.jpg"),
        ("coco_yolox_nano_fp32.onnx", OBJECTS, "dog.jpg"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_the_script_finds_what_the_agent_finds(
    file: str, tables: str, media: str, tmp_path: Path
) -> None:
    """On a real picture, the script's own few lines for a family agree with the agent's decoder."""
    import cv2

    from edge_agent.core.types import Detections, Sample
    from edge_agent.inference.engines.engine import EngineChoice
    from edge_agent.inference.model import load_model
    from edge_agent.models.manifest import load

    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copyfile(ASSETS / "models" / file, folder / "model.onnx")
    (folder / "labels.txt").write_text((ASSETS / "media" / "coco_classes.txt").read_text())
    header = 'name = "m"\nversion = "1"\ntask = "detection"\nfile = "model.onnx"\n'
    (folder / "model.toml").write_text(header + tables)
    picture = cv2.imread(str(ASSETS / "media" / media))
    assert picture is not None
    clip = tmp_path / "clip.avi"
    size = picture.shape[1], picture.shape[0]
    writer = cv2.VideoWriter(str(clip), cv2.VideoWriter.fourcc(*"MJPG"), 25, size)
    writer.write(picture)
    writer.release()
    _, frame = cv2.VideoCapture(str(clip)).read()
    (model,) = truth.look([str(folder)], str(tmp_path / "place"))
    agents = load_model(load(folder), [EngineChoice("onnxruntime", threads=1)], "picture")
    found = agents.infer(Sample(frame, 0, 0, 0.0)).findings
    assert isinstance(found, Detections)
    assert len(found) > 0
    boxes = zip(found.labels, found.scores.tolist(), found.boxes.tolist(), strict=True)
    said = [{"label": label, "score": score, "box": box} for label, score, box in boxes]
    assert truth.check(model, str(clip), [claim(0, {"detections": said})]) == []


def test_frames_repeat_with_the_clip() -> None:
    """Frame 500 of a clip of 500 frames that repeats is its first, and 503 its fourth."""
    shown = dict(truth.frames(str(CLIP), {0, 3, 500, 503}))
    assert sorted(shown) == [0, 3, 500, 503]
    assert (shown[0] == shown[500]).all()
    assert (shown[3] == shown[503]).all()
    assert not (shown[0] == shown[3]).all()


def test_steps_add_up() -> None:
    """A script's steps follow one another, from its start to its result."""
    marks = {"python": 10.01, "imports": 10.11, "clip": 10.12}
    steps = script_steps(marks, 10.0, 10.15)
    assert list(steps) == ["python", "imports", "clip", "publish"]
    assert list(steps.values()) == pytest.approx([10.0, 100.0, 10.0, 30.0])


names = st.sampled_from(["exec", "imports", "read", "build", "infer", "anything"])


@given(st.dictionaries(names, st.floats(0, 1e4)), st.floats(1, 1e4))
def test_the_parts_of_a_bar_are_the_bar(steps: dict[str, float], whole: float) -> None:
    """Whatever steps there are, also overlapping ones, a bar is as long as its total."""
    taken = parts(steps, whole)
    assert len(taken) == len(PARTS)
    assert sum(taken) == pytest.approx(whole)
    assert min(taken) >= 0


@pytest.mark.parametrize("name", ["resnet50-int8", "vit-b16-int8"])
def test_generated_models_are_what_they_are_called(name: str, cache: Path) -> None:
    """INT8 models have their weights in eight bits, see pictures, and are made once a version."""
    import onnx
    import onnxruntime as ort

    old = cache / "edge-agent" / "bench" / "generator-0" / name
    old.mkdir(parents=True)
    said: list[str] = []
    folder = find_model(name, said.append)
    assert not old.exists()
    assert find_model(name, said.append) == folder
    assert len(said) == 1
    network = onnx.load(folder / "model.onnx")
    kinds = {array.data_type for array in network.graph.initializer if np.prod(array.dims) > 70_000}
    assert onnx.TensorProto.INT8 in kinds
    inputs = {name for node in network.graph.node for name in node.input}
    large = [i for i in network.graph.initializer if i.data_type == 1 and len(i.raw_data) > 4e6]
    assert not [array.name for array in large if array.name in inputs]
    assert 20e6 < (folder / "model.onnx").stat().st_size < 100e6
    session = ort.InferenceSession(folder / "model.onnx")
    chance = np.random.default_rng(1)
    coarse = chance.uniform(-2, 2, (2, 1, 3, 7, 7)).repeat(32, 3).repeat(32, 4).astype(np.float32)
    one, other = (session.run(None, {"input": picture})[0] for picture in coarse)
    assert np.isfinite(one).all()
    assert np.corrcoef(one[0], other[0])[0, 1] < 0.995
    assert one.std() > 0.5


def test_every_generated_name_is_offered() -> None:
    """The command's help names all models that can be made."""
    done = run_cli("bench", "cold-start", "--help")
    assert all(name in done.stdout.replace("\n", " ") for name in NAMES)
