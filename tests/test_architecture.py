"""The architecture, as a test: imports point down, and each native library has one home.

Read from the source, so that imports inside functions count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support import CHECKOUT

PACKAGE = CHECKOUT / "edge_agent"

# From top to bottom. A name stands for the module and all within it; the longest name counts.
LAYERS: Mapping[str, str] = {
    "commands: what a user types": "__main__ cli bench sender start.begin",
    "daemon: the only place that knows everybody": "agent",
    "control: all that is not the way of a frame": (
        "control reloading says planning preparing scrub steady batcher demoting thrift"
    ),
    "work: what goes on in a running agent": (
        "frames pipeline capture cascade doubts health lateness throughput serving opening deploy "
        "orders overrides quick oversize tuning tuner contest"
    ),
    "models: opened, kept, packed, looked into": (
        "model batching golden store packages networks added forms understudy"
    ),
    "edges: broker, cameras, sensors, engines, numbers": (
        "link connecting outgoing fences standby backlog keeper spool parcel client mqtt announced "
        "tls refusals "
        "sources engines profile "
        "config start "
        "preprocess resizing folding decode window annotate motion board slots metrics inbox "
        "forms.form forms.begin forms.ladder forms.mapped forms.options forms.skeleton"
    ),
    "words: what is said and set, without doing anything": (
        "settings manifest sources.spec wire validation"
    ),
    "ground: knows nothing of the rest": (
        "errors names bounds record records protobuf "
        "crew systemd durable machine facts networks.networkfacts "
        "bundled start.clock shares turns limits thermal journal breaker flight crashes hangs "
        "wallclock"
    ),
}

# Who may import a library. Names as above; a library that is not here may be used anywhere.
HOMES: Mapping[str, str] = {
    "paho": "mqtt bench.plain bench.handmade bench.raw bench.start_script",
    "openvino": (
        "engines.ov engines.ovcut engines.ovform engines.ovjoin engines.probe bench.start_script "
        "bench.handmade"
    ),
    "onnxruntime": (
        "deploy.arriving.stages engines.ort engines.ortcut engines.formed engines.streaming "
        "engines.probe forms bench.plain bench.handmade bench.start_script bench.readying "
        "bench.truth bench.generated"
    ),
    "onnx": (
        "networks.modelfile networks.protowire forms "
        "bench.network bench.layers bench.qdq bench.generated"
    ),
    "google": "networks.modelfile",
    "cv2": (
        "sources.opencv preprocess resizing decode.boxes annotate motion bench.plain "
        "bench.handmade bench.start_script bench.bars bench.pipebars"
    ),
    "cryptography": "packages.keys packages.packing",
    "pydantic": "validation config",
    "pydantic_core": "validation",
    "pydantic_settings": "config",
    "psutil": "health deploy",
    "rich": "cli",
    "tomli_w": "networks.bringing cli",
    "amqtt": "cli.amqtt_broker",
    "prometheus_client": "metrics",
}

# What is imported by another name than it is installed by, or comes with something installed.
DISTRIBUTIONS: Mapping[str, str] = {
    "cv2": "opencv-python-headless",
    "paho": "paho-mqtt",
    "google": "onnx",
    "pydantic": "pydantic-settings",
    "pydantic_core": "pydantic-settings",
    "annotated_types": "pydantic-settings",
}

HEAVY = (
    *("openvino", "onnxruntime", "onnx", "cv2", "pydantic", "pydantic_settings"),
    *("paho", "cryptography", "rich", "psutil", "amqtt", "prometheus_client"),
)
"""What a command that does not use it must not wait for."""


@cache
def modules() -> dict[str, Path]:
    """Find every module of the package, by its name without the package's."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts) or "__init__"] = path
    return found


@cache
def imports(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """Give what a module imports: of the package, and of others by their top name."""
    path = modules()[module]
    here = [] if module == "__init__" else module.split(".")
    if path.name != "__init__.py":
        here.pop()
    ours: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                others.update(alias.name.split(".")[0] for alias in node.names)
            case ast.ImportFrom(level=0):
                assert node.module is not None
                others.add(node.module.split(".")[0])
            case ast.ImportFrom():
                base = here[: len(here) - node.level + 1]
                base += node.module.split(".") if node.module else []
                ours.update(_named(base, alias.name) for alias in node.names)
    assert "edge_agent" not in others, f"{module}: imports of the package are relative"
    return frozenset(ours - {module}), frozenset(others - set(sys.stdlib_module_names))


def _named(base: list[str], name: str) -> str:
    """Tell a module that is imported from a name within one."""
    full = ".".join([*base, name])
    return full if full in modules() else ".".join(base) or "__init__"


def covers(name: str, module: str) -> bool:
    """Whether *name* stands for *module*."""
    return module == name or module.startswith(f"{name}.")


def layer(module: str) -> int:
    """Give a module's layer, counted from the top."""
    best, place = "", -1
    for index, names in enumerate(LAYERS.values()):
        for name in names.split():
            if covers(name, module) and len(name) > len(best):
                best, place = name, index
    assert place >= 0, f"{module} has no place in LAYERS: give it one"
    return place


@pytest.mark.parametrize("module", sorted(modules().keys() - {"__init__"}))
def test_imports_point_down(module: str) -> None:
    """A module imports from its own layer and those below it."""
    titles = [title.split(":")[0] for title in LAYERS]
    ours, _ = imports(module)
    for other in sorted(ours - {"__init__"}):
        assert layer(module) <= layer(other), (
            f"{module} ({titles[layer(module)]}) imports {other} ({titles[layer(other)]})"
        )


def test_no_import_goes_in_a_circle() -> None:
    """Modules can be put in an order in which each imports earlier ones only."""
    try:
        order = list(
            TopologicalSorter({name: imports(name)[0] for name in modules()}).static_order()
        )
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))
    assert set(order) == set(modules())


@pytest.mark.parametrize("module", sorted(modules().keys() - {"__init__"}))
def test_each_library_has_one_home(module: str) -> None:
    """A native or large library is imported in the few modules that are there for it."""
    _, others = imports(module)
    for library in sorted(others & HOMES.keys()):
        homes = HOMES[library].split()
        assert any(covers(home, module) for home in homes), f"{library} belongs in {homes}"


def test_the_homes_are_inhabited() -> None:
    """Every layer and home names modules that are there: the tables above are true."""
    for names in (*LAYERS.values(), *HOMES.values()):
        for name in names.split():
            assert any(covers(name, module) for module in modules()), f"there is no {name}"
    for library, homes in HOMES.items():
        for home in homes.split():
            users = [m for m in modules() if covers(home, m) and library in imports(m)[1]]
            assert users, f"{home} does not import {library} any more"


def test_what_is_imported_is_installed() -> None:
    """Every library that is imported is a dependency in pyproject.toml, or comes with one."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["demo"], *extras["metrics"]]
    declared = {text.split(">")[0].split("<")[0].split("=")[0].strip() for text in wanted}
    used = {library for module in modules() for library in imports(module)[1]}
    for library in sorted(used):
        name = DISTRIBUTIONS.get(library, library.replace("_", "-"))
        assert name in declared, f"{library} is imported but not declared"


def loaded_by(statement: str) -> set[str]:
    """Give the heavy libraries that are loaded after a statement in a fresh interpreter."""
    script = f"{statement}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["__main__", "cli", "agent", "pipeline", "model", "link"])
def test_nothing_heavy_is_loaded_before_it_is_needed(module: str) -> None:
    """Importing the command line, the agent or its parts loads no large library."""
    assert loaded_by(f"import edge_agent.{module}") == set()
