"""Turns: one question at a time, in order; one that is given up does not keep its turn."""

from __future__ import annotations

from functools import partial

from edge_agent.answers.ticket import Ticket
from edge_agent.answers.turns import Turns
from edge_agent.core.errors import RequestError


def test_a_question_begins_when_the_one_before_is_settled_or_given_up() -> None:
    """Of four, one is given up while it waits and one while it is in work."""
    turns, begun = Turns(), list[int]()
    tickets = [Ticket("m", None, 0.0) for _ in range(4)]
    for number, ticket in enumerate(tickets):
        turns.wait(ticket, partial(begun.append, number))
    assert begun == [0]
    tickets[1].future.set_exception(RequestError("gone"))
    assert begun == [0]
    tickets[0].future.set_exception(RequestError("answered"))
    assert begun == [0, 1, 2]
    tickets[2].future.set_exception(RequestError("gone"))
    assert begun == [0, 1, 2, 3]
    tickets[3].future.set_exception(RequestError("answered"))
    late = Ticket("m", None, 0.0)
    turns.wait(late, partial(begun.append, 4))
    assert begun == [0, 1, 2, 3, 4]
