"""The architecture, as a test: imports point down, each native library has one home, sizes stay.

Read from the source, so that imports inside functions count too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from edge_agent.inference.engines.registry import ENGINES
from tests.helpers.support import CHECKOUT

PACKAGE = CHECKOUT / "edge_agent"

PACKAGES = (
    *("core", "device", "models", "inference", "sources", "config", "mqtt", "serving"),
    *("runtime", "delivery", "health", "answers", "rules", "homeassistant", "daemon"),
    *("tools", "bench", "ui", "cli"),
)
"""From bottom to top: a package imports from those before it only; see docs/architecture.md."""

NOT_IN_RUN = frozenset({"bench", "tools", "ui"})
"""Packages of which the running agent imports nothing, at no time."""
CLI_OF_RUN = frozenset(
    {"cli", "cli.attended", "cli.commands", "cli.commands.run", "cli.main", "cli.options"}
)
"""What the running agent has of the command line."""

MOST_FILE_LINES = 500
MOST_FUNCTION_LINES = 60
"""Of a function without its docstring."""
MOST_ATTRIBUTES = 15

LARGE_FILES: Mapping[str, str] = {
    "cli.commands.try_": "one command, and all that it prints",
    "models.files.guess": "one rule for each family of networks",
}
LONG_FUNCTIONS: Mapping[str, str] = {
    "cli.commands.try_:_watch": "one loop over the source",
}
LARGE_CLASSES: Mapping[str, str] = {
    "cli.samples:Samples": "a source as a command reads it",
    "daemon.fast_start.plan_writer:PlanWriter": "what a plan depends on",
    "inference.model:Model": "engine, preprocessing and decoder, and their figures",
    "mqtt.client:Client": "the connection, and every channel over it",
    "runtime.pipelines.drift:Drift": "what is usual, and what has come",
}
"""What is above the limits, and what keeps it together; nothing else may be."""

# Who may import a library. Names as above; a library that is not here may be used anywhere.
HOMES: Mapping[str, str] = {
    "paho": (
        "mqtt.paho_client mqtt.connection bench.common.start_script bench.pipeline bench.push.raw"
    ),
    "openvino": (
        "inference.engines inference.prepared.ov_engine bench.common.start_script "
        "bench.pipeline.plain tools.wake_word tools.micro_wake_word tools.micro_frontend"
    ),
    "onnxruntime": "inference.engines inference.prepared tools bench",
    "onnx": "models.files inference.folding inference.prepared.compile tools",
    "google": "models.files.check_onnx",
    "cv2": (
        "sources.opencv inference.preprocess inference.decode.boxes inference.decode.text "
        "runtime.pipelines.camera_watch runtime.pipelines.draw runtime.pipelines.motion_gate "
        "runtime.pipelines.masks cli.signal_plot bench"
    ),
    "PIL": "inference.preprocess.resize",
    "av": (
        "sources.video sources.packet_ring sources.hw_decode sources.camera sources.clip "
        "bench.cameras bench.pipeline.steps"
    ),
    "cryptography": "models.packages",
    "pydantic": "core.schema config.load",
    "pydantic_core": "core.schema",
    "pydantic_settings": "config.load",
    "psutil": "device.headroom delivery.trial.process bench.common",
    "rich": "cli",
    "tomli_w": "models.importing cli",
    "amqtt": "mqtt.amqtt_broker",
    "lap": "rules.tracker",
    "prometheus_client": "health.prometheus health.bounded_server",
    "serial": "sources.serial_line",
    "tokenizers": "inference.preprocess.text",
    "openvino_genai": "inference.engines.generator",
    "matplotlib": "tools",
    "nncf": "tools.quantizers",
    "starlette": "ui answers.http_app bench.infer.plain_server",
    "torch": "tools.pytorch_model",
    "uvicorn": "core.web_server answers.http_protocol ui.http_protocol bench.infer.plain_server",
    "ai_edge_litert": "tools.conversion_worker tools.wake_word tools.micro_wake_word",
}

# What is imported by another name than it is installed by, or comes with something installed.
DISTRIBUTIONS: Mapping[str, str] = {
    "cv2": "opencv-python-headless",
    "paho": "paho-mqtt",
    "google": "onnx",
    "pydantic": "pydantic-settings",
    "serial": "pyserial",
    "PIL": "pillow",
    "pydantic_core": "pydantic-settings",
    "annotated_types": "pydantic-settings",
}

HEAVY = (
    *("openvino", "onnxruntime", "onnx", "cv2", "av", "pydantic", "pydantic_settings"),
    *("paho", "cryptography", "rich", "psutil", "amqtt", "prometheus_client", "matplotlib"),
    *("lap", "torch", "PIL", "starlette", "uvicorn", "tokenizers", "openvino_genai"),
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
def tree(module: str) -> ast.Module:
    """Parse a module, once for all tests."""
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Let go of the parsed modules after the last test: they are large."""
    yield
    tree.cache_clear()


@cache
def imports(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """Give what a module imports: of the package, and of others by their top name."""
    path = modules()[module]
    here = [] if module == "__init__" else module.split(".")
    if path.name != "__init__.py":
        here.pop()
    ours: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree(module)):
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


def test_the_packages_are_those_that_are_listed() -> None:
    """Beside the packages there is nothing but `__init__` and `__main__`."""
    assert {name.split(".")[0] for name in modules()} == {*PACKAGES, "__init__", "__main__"}


def test_imports_point_down() -> None:
    """A module imports from its own package and those below it."""

    def height(module: str) -> int:
        return PACKAGES.index(module.split(".", maxsplit=1)[0])

    upwards = [
        f"{module} imports {other}"
        for module in sorted(modules().keys() - {"__init__", "__main__"})
        for other in sorted(imports(module)[0] - {"__init__"})
        if height(other) > height(module)
    ]
    assert upwards == []


def _named_in_text(module: str) -> set[str]:
    """Return the modules that a module names in its strings: tables, and children with `-m`."""
    texts = (
        node.value.split(":")[0].removeprefix("edge_agent.")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("edge_agent.")
    )
    return {text for text in texts if text in modules()}


def test_what_run_may_import() -> None:
    """`run` reaches its own packages, by however many steps; neither bench, tools nor a command."""
    reached: set[str] = set()
    waiting = ["__main__", "cli.commands.run"]
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        waiting += [above] if (above := module.rpartition(".")[0]) else []
        if module != "cli.main":  # its table names every command; the argument chooses one
            waiting += _named_in_text(module)
        waiting += imports(module)[0]
    packages = {module.split(".")[0] for module in reached}
    assert packages == {*PACKAGES, "__init__", "__main__"} - NOT_IN_RUN
    assert {module for module in reached if covers("cli", module)} == CLI_OF_RUN


def test_the_table_of_packages_is_the_one_in_the_documentation() -> None:
    """docs/architecture.md lists the packages in this order, which no other page repeats."""
    rows = (CHECKOUT / "docs" / "architecture.md").read_text().split("## The map")[1]
    table = rows.split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert listed == list(PACKAGES)


@cache
def _sizes() -> tuple[list[str], list[str], list[str]]:
    """Return the files, functions and classes above the limits."""
    files, functions, classes = [], [], []
    for module, path in modules().items():
        if path.read_text(encoding="utf-8").count("\n") > MOST_FILE_LINES:
            files.append(module)
        for node in ast.walk(tree(module)):
            match node:
                case ast.FunctionDef(name=name, body=[first, *_]):
                    lines = (node.end_lineno or 0) - node.lineno + 1
                    if ast.get_docstring(node) is not None:
                        lines -= (first.end_lineno or 0) - first.lineno + 1
                    if lines > MOST_FUNCTION_LINES:
                        functions.append(f"{module}:{name}")
                case ast.ClassDef(name=name):
                    own = {
                        each.attr
                        for each in ast.walk(node)
                        if isinstance(each, ast.Attribute)
                        and isinstance(each.ctx, ast.Store)
                        and isinstance(each.value, ast.Name)
                        and each.value.id == "self"
                    }
                    if len(own) > MOST_ATTRIBUTES:
                        classes.append(f"{module}:{name}")
    return files, functions, classes


def test_files_functions_and_classes_stay_small() -> None:
    """Only those that are named above are above the limits."""
    for found, named in zip(_sizes(), (LARGE_FILES, LONG_FUNCTIONS, LARGE_CLASSES), strict=True):
        assert set(found) <= named.keys()


def test_folders_within_a_package_do_not_see_each_other_in_a_circle() -> None:
    """Folders can be put in an order, too; what lies beside them counts file by file."""
    folders = {name.rpartition(".")[0] for name in modules()}

    def folder(module: str) -> str:
        if modules()[module].name == "__init__.py":
            return module
        above = module.rpartition(".")[0]
        return (
            module if any(covers(above, other) and other != above for other in folders) else above
        )

    seen: dict[str, set[str]] = {}
    for module in modules():
        seen.setdefault(folder(module), set()).update(map(folder, imports(module)[0]))
    try:
        TopologicalSorter({name: others - {name} for name, others in seen.items()}).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def test_a_package_is_a_docstring() -> None:
    """The `__init__` of a package holds its description only: nothing is hidden there."""
    packages = [
        module
        for module, path in modules().items()
        if path.name == "__init__.py" and module != "__init__"
    ]
    assert [
        module for module in packages if [type(node) for node in tree(module).body] != [ast.Expr]
    ] == []


def test_no_import_goes_in_a_circle() -> None:
    """Modules can be put in an order in which each imports earlier ones only."""
    try:
        order = list(
            TopologicalSorter({name: imports(name)[0] for name in modules()}).static_order()
        )
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))
    assert set(order) == set(modules())


def test_each_library_has_one_home() -> None:
    """A native or large library is imported in the few modules that are there for it."""
    astray = [
        f"{module} imports {library}, which belongs in {HOMES[library]}"
        for module in sorted(modules().keys() - {"__init__"})
        for library in sorted(imports(module)[1] & HOMES.keys())
        if not any(covers(home, module) for home in HOMES[library].split())
    ]
    assert astray == []


def test_engines_are_asked_what_they_can_do() -> None:
    """Only the engines, and bench, which compares them, name one or ask of which class one is."""
    wrong = [
        f"{module}: {ast.unparse(node)}: ask the engine what it can do"
        for module in modules()
        if not (covers("inference.engines", module) or covers("bench", module))
        for node in ast.walk(tree(module))
        if _names_an_engine(node)
    ]
    assert wrong == []


def _names_an_engine(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(name)):
            return name in ENGINES
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
            named = [each.id for each in ast.walk(asked) if isinstance(each, ast.Name)]
            return any(name.endswith("Engine") for name in named)
        case _:
            return False


FORBIDDEN = {"pickle", "shelve", "marshal", "dill", "joblib", "eval", "exec", "compile", "system"}


def test_no_module_runs_what_it_reads() -> None:
    """No pickle, no `eval`, no shell, nor anything that takes a model's word for code."""
    wrong = [
        f"{module}: {ast.unparse(node)}"
        for module in modules()
        for node in ast.walk(tree(module))
        if _runs_data(node)
    ]
    assert wrong == []


def _runs_data(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return bool(FORBIDDEN & {name.name.split(".")[0] for name in names})
        case ast.ImportFrom(module=str(module)):
            return module.split(".")[0] in FORBIDDEN
        case ast.Call(func=ast.Name(id=name)):
            return name in FORBIDDEN
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr=name)):
            return name in {"system", "popen"}
        case ast.keyword(arg="shell" | "allow_pickle", value=ast.Constant(value=True)):
            return True
        case _:
            return False


def test_no_error_is_told_with_its_number() -> None:
    """An error of the system is `.strerror`, or `words` of it: "[Errno 28] …" is Python's."""
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ExceptHandler) and node.name and _catches_system(node.type):
                told = [each for line in node.body for each in _told_raw(line, node.name)]
                assert not told, f"{module}:{told}: {node.name} is put into a text as it is"


def _catches_system(caught: ast.expr | None) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(each, ast.Name) and each.id == "OSError" for each in names)


def _told_raw(body: ast.AST, name: str) -> list[int]:
    """List the lines of the strings that such a name is formatted into."""
    return [
        node.lineno
        for node in ast.walk(body)
        if isinstance(node, ast.FormattedValue)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    ]


def test_the_homes_are_inhabited() -> None:
    """Every home names modules that are there: the table above is true."""
    for names in HOMES.values():
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
    wanted = [
        *project["dependencies"],
        *extras["demo"],
        *extras["metrics"],
        *extras["bench"],
        *extras["tools"],
        *extras["pytorch"],
        *extras["http"],
        *extras["completion"],
        *extras["ui"],
        *extras["text"],
    ]
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


@pytest.mark.parametrize(
    "module",
    [
        "__main__",
        "cli.main",
        "daemon.agent",
        "runtime.pipelines.pipeline",
        "inference.model",
        "mqtt.client",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(module: str) -> None:
    """Importing the command line, the agent or its parts loads no large library."""
    assert loaded_by(f"import edge_agent.{module}") == set()
