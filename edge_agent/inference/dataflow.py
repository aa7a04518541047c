"""Tensors between a graph's nodes: which are alive at a cut, and a stage's inputs and outputs.

Independent of the graph's format; where to cut is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """One stage: the nodes from `first` up to but not including `last`."""

    first: int
    last: int
    inputs: tuple[str, ...]
    """Inputs of the graph and tensors from earlier stages, in order of use."""
    outputs: tuple[str, ...]
    """Tensors that later stages use, and outputs of the graph, sorted."""


class Dataflow:
    """Which node makes each tensor, and which nodes use it; constants do not count."""

    def __init__(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        taken: Sequence[Iterable[str]],
        made: Sequence[Iterable[str]],
    ) -> None:
        """Index a graph.

        Args:
            inputs: the graph's inputs, without constants.
            outputs: the graph's outputs.
            taken: the tensors each node takes, in order of execution.
            made: the tensors each node makes, in the same order.
        """
        self.end = len(made)
        self._made = made
        self._from = dict.fromkeys(inputs, 0)
        """By tensor: the index of the first node for which it is available."""
        for index, names in enumerate(made):
            self._from.update(dict.fromkeys(names, index + 1))
        self._from.pop("", None)  # an optional input or output that is left out
        self._taken = [[name for name in names if name in self._from] for names in taken]
        self.users: dict[str, list[int]] = {}
        """By tensor: the nodes that use it, ascending; the end of the graph counts as one."""
        for index, names in enumerate(self._taken):
            for name in names:
                self.users.setdefault(name, []).append(index)
        for name in outputs:
            self.users.setdefault(name, []).append(self.end)

    def alive(self) -> list[set[str]]:
        """Return for each node the tensors that are made before it and used from it on."""
        alive: list[set[str]] = [set() for _ in range(self.end + 1)]
        for name, start in self._from.items():
            for place in range(max(start, 1), self._last(name) + 1):
                alive[place].add(name)
        return alive

    def cut(self, first: int, last: int) -> Cut:
        """Make one stage of the nodes from *first* up to but not including *last*."""
        taken = dict.fromkeys(name for names in self._taken[first:last] for name in names)
        made = {name for names in self._made[first:last] for name in names}
        return Cut(
            first,
            last,
            tuple(name for name in taken if self._from[name] <= first),
            tuple(sorted(name for name in made if self._last(name) >= last)),
        )

    def _last(self, name: str) -> int:
        """Return the index of the last node that uses a tensor; -1: none does."""
        return self.users.get(name, [-1])[-1]
