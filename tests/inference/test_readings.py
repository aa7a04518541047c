"""Readings without a model: their names, whoever else asks at the same moment."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edge_agent.config.sensor_input import SensorInput
from edge_agent.core.callbacks import Callbacks
from edge_agent.core.types import Outcome, Reading, Sample, Values
from edge_agent.inference.readings import Readings

NAN = float("nan")
FIELDS = (1, 2000)
"""Of the messages in turn."""


def test_messages_of_changing_fields_keep_their_own_names() -> None:
    """Two lanes shared the names of the last message: the agent ended, or values were exchanged."""
    model = Readings(SensorInput().spec, Callbacks())
    columns = [
        tuple(f"{letter}{n}" for n in range(FIELDS[n % 2])) for n, letter in enumerate("abcd")
    ]

    def ask(number: int) -> bool:
        names = columns[number % len(columns)]
        data = np.arange(len(names), dtype=np.float64) + number
        found = model.infer(Sample(data, number, 0, 0.0, picture=False, names=names)).findings
        values = found.as_json()["values"]
        return list(values) == list(names) and list(values.values()) == data.tolist()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as lanes:
            assert all(lanes.map(ask, range(400)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("said", "unknown"), [(None, {"t"}), (("t", "state"), {"t", "state"}), ((), set())]
)
def test_a_place_of_a_line_without_a_number_is_not_known(
    said: tuple[str, ...] | None, unknown: set[str]
) -> None:
    """Of a message its sender says so; of a row of a file an empty cell says nothing."""
    model = Readings(SensorInput().spec, Callbacks())
    reading = Reading(np.array([[NAN, 40.0]]), 0, 0.0, columns=("t", "h"), unknown=said)
    (sample,) = model.windower(reading.columns).push(reading)
    found = model.infer(sample)
    assert isinstance(found, Outcome)
    assert isinstance(found.findings, Values)
    assert found.findings.unknown == unknown
    assert found.findings.as_json() == {"values": {"h": 40.0}}
