"""What `bench` measures is found as the agent finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w

from edge_agent.bench.common.models import find_models
from edge_agent.core.bundled import bundled
from edge_agent.core.errors import UsageError
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from tests.helpers.small_models import brightness
from tests.helpers.support import run_cli


def config(folder: Path) -> Path:
    """Write settings with a library of two versions of `light`."""
    for version in ("1", "2"):
        brightness(folder / "library" / f"light-{version}", version)
    table = {"state_dir": "state", "models_dirs": ["library"]}
    file = folder / "config.toml"
    file.write_text(tomli_w.dumps(table))
    return file


def nothing(text: str) -> None:
    """Fail: no model has to be made."""
    pytest.fail(text)


def test_names_are_those_of_the_agent(tmp_path: Path) -> None:
    """The live version, a pinned one, a bundled one, a folder; the store says what is live."""
    file = config(tmp_path)
    catalog = tmp_path / "library"
    names = ["light", "light@1", "parts-inspection", str(catalog / "light-1")]
    assert find_models(names, str(file), nothing) == [
        catalog / "light-2",
        catalog / "light-1",
        bundled("models") / "parts-inspection",
        catalog / "light-1",
    ]
    Catalog(Store(tmp_path / "state"), [catalog]).activate("light", "1")
    assert find_models(["light"], str(file), nothing) == [catalog / "light-1"]


def test_what_is_not_there_names_what_is(tmp_path: Path) -> None:
    """An unknown name is one line with the models that the agent has."""
    with pytest.raises(UsageError, match=r"'lihgt'.*there are .*light"):
        find_models(["lihgt"], str(config(tmp_path)), nothing)


def test_settings_that_are_named_must_be_there(tmp_path: Path) -> None:
    """Also where every model is a folder, so that nothing of them is needed."""
    file = config(tmp_path)
    folder = str(tmp_path / "library" / "light-1")
    assert find_models([folder], str(file), nothing) == [Path(folder)]
    with pytest.raises(UsageError, match="no such settings file"):
        find_models([folder], str(tmp_path / "missing.toml"), nothing)
    file.write_text("bogus = 1")
    with pytest.raises(UsageError, match="bogus"):
        find_models([folder], str(file), nothing)


def test_a_tune_finds_the_models_of_its_settings(tmp_path: Path) -> None:
    """`bench pipeline NAME --tune --config FILE` measures what an agent with FILE runs."""
    file = config(tmp_path)
    done = run_cli("bench", "pipeline", "light", "--tune", "--json", "--config", str(file))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "light@2"
