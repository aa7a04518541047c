"""Frozen records to JSON and back, and that a new one needs no entry anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.config.settings import Pipeline, Settings, keep_until_restart
from edge_agent.core.codec import modules, pack, storable, unpack
from edge_agent.core.frozen import record


@storable
@record(kw_only=True)
class Corner:
    """A new record of settings, all that is to be written of it."""

    name: str
    corners: tuple[tuple[int, int], ...] = ()
    folder: Path | None = None


def test_a_new_record_goes_there_and_back() -> None:
    """It is enough to decorate it: the codec makes it again, and a plan depends on its file."""
    zone = Corner(name="door", corners=((0, 1), (2, 3)), folder=Path("/var"))
    assert unpack(json.loads(json.dumps(pack({"zones": [zone]})))) == {"zones": [zone]}
    assert Path(__file__) in modules()


def test_what_could_not_be_read_back_is_not_written() -> None:
    """A record that is not decorated is refused when it is packed, not at the next start."""

    @record
    class Door:
        name: str

    with pytest.raises(TypeError, match="Door cannot be packed: it is not decorated as storable"):
        pack(Door("a"))
    with pytest.raises(KeyError):
        unpack({"!": "Door", "name": "a"})


def test_names_are_unique() -> None:
    """Two records of one name would be taken for each other."""

    @record
    class Corner:
        name: str

    with pytest.raises(TypeError, match=r"Corner: .* has a storable record of this name"):
        storable(Corner)


def test_what_needs_a_restart_says_so_itself() -> None:
    """A key's own metadata decides; the table it stands in is taken over otherwise."""
    present = Settings(device_id="one", broker=Settings().broker)
    new = unpack(pack(present) | {"device_id": "two", "groups": ["yard"]})
    broker = unpack(pack(present.broker) | {"topic_root": "other", "url": "mqtt://other"})
    kept, waiting = keep_until_restart(unpack(pack(new) | {"broker": pack(broker)}), present)
    assert waiting == ["device_id", "broker.topic_root"]
    assert (kept.device_id, kept.groups) == ("one", ["yard"])
    assert (kept.broker.topic_root, kept.broker.url) == ("edge", "mqtt://other")


def test_a_table_may_have_the_key_that_marks_classes() -> None:
    """A label can be called anything."""
    pipeline = Pipeline(name="p", source="dir:x", model="m", thresholds={"!": 0.5, "a": 0.2})
    assert unpack(pack(pipeline)) == pipeline
