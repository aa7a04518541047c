"""What agents say in these tests is held to `edge-agent schema`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.payload_schemas import wrong_messages
from tests.helpers.support import Listener


@pytest.fixture
def listen(listen: Callable[..., Listener]) -> Iterator[Callable[..., Listener]]:
    """Make listeners that are closed after the test; what they have heard is as its schema says."""
    made: list[Listener] = []

    def make(*given: Any, **options: Any) -> Listener:
        made.append(listen(*given, **options))
        return made[-1]

    yield make
    for listener in made:
        listener.close()
    assert [wrong for listener in made for wrong in wrong_messages(listener)][:5] == []
