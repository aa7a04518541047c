"""The inbox: bounded, whatever arrives, and nothing that was promised gives way to what was not."""

from __future__ import annotations

from queue import Empty

import pytest

from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.inbox import Inbox


class Sent:
    """Messages as the broker sends them, and which of them were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []

    def message(self, topic: str, payload: bytes = b"", qos: int = 0) -> ReceivedMessage:
        return ReceivedMessage(
            topic, payload, False, None, None, lambda: self.acknowledged.append(topic), qos
        )


def topics(inbox: Inbox) -> list[str]:
    """Take all messages there are."""
    found: list[str] = []
    while True:
        try:
            message = inbox.get(timeout=0)
        except Empty:
            return found
        assert message is not None
        found.append(message.topic)


def test_messages_come_out_in_order() -> None:
    """What was put in comes out, first things first, and None ends it."""
    inbox, sent = Inbox(), Sent()
    for name in "abc":
        inbox.put(sent.message(name))
    assert topics(inbox) == ["a", "b", "c"]
    inbox.put(None)
    assert inbox.get() is None
    assert sent.acknowledged == []


def test_a_flood_gives_way_and_is_counted() -> None:
    """Beyond the bound QoS 0 messages are dropped, each counted; QoS 1 still gets in."""
    inbox, sent = Inbox(messages=3), Sent()
    for number in range(10):
        inbox.put(sent.message(str(number)))
    inbox.put(sent.message("order", qos=1))
    assert topics(inbox) == ["0", "1", "2", "order"]
    assert inbox.dropped == 7


def test_bytes_are_bounded_for_everybody() -> None:
    """Payloads that would not fit give way at any QoS, and the broker is told not to wait."""
    inbox, sent = Inbox(size=100), Sent()
    inbox.put(sent.message("first", bytes(60), qos=1))
    inbox.put(sent.message("second", bytes(60), qos=1))
    inbox.put(sent.message("small", bytes(40), qos=1))
    assert sent.acknowledged == ["second"]
    assert topics(inbox) == ["first", "small"]


def test_room_comes_back() -> None:
    """What was taken makes room again, as often as one likes."""
    inbox, sent = Inbox(messages=1, size=10), Sent()
    for number in range(100):
        inbox.put(sent.message(str(number), bytes(10)))
        assert topics(inbox) == [str(number)]


def test_dropping_is_said_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line for a flood, not one for each message, and one for the next flood."""
    inbox, sent = Inbox(messages=1), Sent()
    for _ in range(2):
        for number in range(50):
            inbox.put(sent.message(str(number)))
        assert topics(inbox) == ["0"]
    assert len([r for r in caplog.records if "some are dropped" in r.message]) == 2
