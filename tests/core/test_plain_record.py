"""Reading a record without pydantic: what is read is what pydantic reads, or it is left to that."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from edge_agent.config.device_profile import DeviceProfile
from edge_agent.config.settings import Settings
from edge_agent.core.errors import UsageError
from edge_agent.core.plain_record import DoubtError, read_plain
from edge_agent.core.schema import build
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


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        (Settings, {}),
        (Manifest, {"name": "x", "version": "1", "file": "x.onnx", "task": "anomaly"}),
        (DeviceProfile, {"description": "", "engines": [{"engine": "openvino"}]}),
    ],
)
def test_what_is_read_is_what_pydantic_reads(kind: Any, whole: dict[str, Any]) -> None:
    """Equal in value and type; what pydantic refuses is never read.

    `whole` is read by both, because all that is drawn may be in doubt.
    """
    adapter = TypeAdapter(kind)
    read = 0

    @example(data=whole)
    @given(data=table(kind))
    @settings(
        max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    def compare(data: dict[str, Any]) -> None:
        nonlocal read
        try:
            made = read_plain(kind, data)
        except DoubtError:
            return
        try:
            judged = adapter.validate_python(data)
        except ValidationError as problem:
            pytest.fail(f"{data} was read, and is wrong: {problem}")
        read += 1
        # By type too: 1 is equal to 1.0 and to True.
        assert (made, repr(made)) == (judged, repr(judged))

    compare()
    assert read > 0


def test_the_bundled_files_need_no_pydantic(tmp_path: Path) -> None:
    """Neither profiles, nor manifests, nor usual settings load it."""
    script = (
        "import sys; from pathlib import Path\n"
        "from edge_agent.config.load import load\n"
        "from edge_agent.daemon.inventory import Inventory\n"
        "inventory = Inventory(load(Path(sys.argv[1])))\n"
        "inventory.catalog.find('parts-inspection', None)\n"
        "print([name for name in sys.modules if name.startswith(('pydantic', 'onnx'))])\n"
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


def test_what_is_wrong_is_explained_by_pydantic() -> None:
    """The error is the same as ever."""
    with pytest.raises(
        UsageError, match=r"where: lanes: expected a number of at most 64, found 65"
    ):
        build(
            DeviceProfile,
            {"description": "", "engines": [{"engine": "openvino"}], "lanes": 65},
            "where",
            UsageError,
        )


def test_a_missing_key_is_a_doubt() -> None:
    """And no TypeError."""
    with pytest.raises(DoubtError):
        read_plain(Manifest, {"name": "x"})
