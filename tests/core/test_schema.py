"""Reading records: what is read is what their JSON Schemas allow."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from edge_agent.config.device_profile import DeviceProfile
from edge_agent.config.settings import SecondStage, Settings
from edge_agent.core.errors import UsageError
from edge_agent.core.json_schema import of_record
from edge_agent.core.schema import WrongDataError, build, read
from edge_agent.models.manifest import Manifest
from tests.helpers.support import CHECKOUT

ODD = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 5, 10**400, 0.5, 5.0, math.inf, -math.inf, math.nan),
        *("", "1", "true", "auto", "openvino", [], {}, [1], ["a", 1], {"a": 1}, [[0.5]]),
    ]
)


def near(hint: Any) -> st.SearchStrategy[Any]:
    """Make values that are of a type, or nearly."""
    return st.one_of(fitting(hint), fitting(hint), fitting(hint), ODD)


def fitting(hint: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - the parts of one fact
    """Make values that are of a type; bounds are not heeded."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fitting(arguments[0])
    if is_dataclass(hint):
        return table(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        # Later: stages have stages.
        return st.lists(st.deferred(lambda: near(arguments[0])), max_size=3)
    if hint is float:
        return st.floats(-2, 20) | st.integers(-2, 20)
    if hint is int:
        return st.integers(-2, 20)
    if hint is str:
        return st.sampled_from(["a", "b", "x.onnx", "1"])
    if hint is bool:
        return st.booleans()
    if arguments and origin is not None and "Mapping" in str(origin):
        return st.dictionaries(st.sampled_from(["a", "b"]), near(arguments[1]), max_size=2)
    if arguments:
        return st.one_of(*(near(each) for each in arguments))
    return ODD


def table(record: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Make tables with keys of a record, and sometimes others."""
    hints = get_type_hints(record, include_extras=True)
    keys = {item.name: near(hints[item.name]) for item in fields(record)}
    needed = {
        item.name: keys.pop(item.name)
        for item in fields(record)
        if item.default is MISSING and item.default_factory is MISSING
    }
    keys["base"] = keys["other"] = ODD
    return st.fixed_dictionaries({}, optional=needed | keys) | st.fixed_dictionaries(
        needed, optional={key: keys[key] for key in list(keys)[:4]}
    )


@pytest.mark.parametrize("kind", [Settings, Manifest, DeviceProfile])
def test_what_is_read_is_what_its_schema_allows(kind: Any) -> None:
    """What the schema refuses is refused, and what is allowed is read as it is."""
    made, others = of_record(kind)
    schema = Draft202012Validator(json.loads(json.dumps({**made, "$defs": others})))
    count = 0

    @given(data=table(kind))
    @settings(
        max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    def compare(data: dict[str, Any]) -> None:
        nonlocal count
        try:
            found = read(kind, data)
        except WrongDataError:
            return
        count += 1
        schema.validate(data)
        for key, value in data.items():
            if isinstance(value, str | int | float | bool):
                assert getattr(found, key) == value

    compare()
    assert count > 0


def test_settings_and_models_are_read_without_heavy_libraries(tmp_path: Path) -> None:
    """Neither profiles, nor manifests, nor settings load one."""
    script = (
        "import sys; from pathlib import Path\n"
        "from edge_agent.config.load import load\n"
        "from edge_agent.daemon.inventory import Inventory\n"
        "inventory = Inventory(load(Path(sys.argv[1])))\n"
        "inventory.catalog.find('parts-inspection', None)\n"
        "print([name for name in sys.modules if name.startswith(('numpy', 'onnx'))])\n"
    )
    config = tmp_path / "config.toml"
    config.write_text(
        f'state_dir = "{tmp_path}"\n[broker]\nurl = "mqtt://localhost"\n[[pipelines]]\nname = "p"\n'
        'source = "file:clip.mp4"\nmodel = "parts-inspection"\nrate = 5\nroi = [0, 0, 5, 5]\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(config)],
        capture_output=True,
        text=True,
        check=True,
        cwd=CHECKOUT,
    )
    assert done.stdout.split() == ["[]"]


DEVICE: dict[str, Any] = {"description": "", "engines": [{"engine": "openvino"}]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lanes": 65}, "lanes: expected a number of at most 64, found 65"),
        ({"lanes": True}, "lanes: expected a whole number, found True"),
        ({"tune": 1}, "tune: expected true or false, found 1"),
        ({"engines": []}, "engines: expected a list of at least 1"),
        ({"engines": {}}, "engines: expected a list, found a table; write its head in double"),
        ({"match": []}, r"match: expected a table; write its keys below a line \[match\]"),
        ({"swap": "replce"}, "swap: expected 'overlap' or 'replace', .*mean 'replace'"),
        ({"lane": 1, "threads": "2"}, "lane: unknown key; did you mean 'lanes'.*and 1 more"),
        ({"engines": [{"device": "CPU"}]}, r"engines\[0\]\.engine: is missing"),
        ({"unload_idle_s": math.nan}, "unload_idle_s: expected a number of at most 31622400"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes: dict[str, Any], words: str) -> None:
    """Key, what was expected, and the mend."""
    with pytest.raises(UsageError, match=f"^where: {words}"):
        build(DeviceProfile, {**DEVICE, **changes}, "where", UsageError)


def test_a_record_may_be_nested_too_deep() -> None:
    """That is an error like any other."""
    stage: dict[str, Any] = {"name": "a", "model": "m"}
    for _ in range(2000):
        stage = {**stage, "then": [stage]}
    with pytest.raises(UsageError, match="where: is nested too deep"):
        build(SecondStage, stage, "where", UsageError)
