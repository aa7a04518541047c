"""Tensors that pass between the nodes of a graph: which are alive at a cut, and a stage's ends.

Knows neither a graph's format nor where it is wise to cut it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """One stage: nodes `first` to `last`, that one excluded."""

    first: int
    last: int
    inputs: tuple[str, ...]
    """Tensors from the graph's inputs and from stages before, in order of use."""
    outputs: tuple[str, ...]
    """Tensors that later stages take, and outputs of the graph, sorted."""


class Dataflow:
    """Which node makes a tensor, and which use it; constants do not count."""

    def __init__(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        taken: Sequence[Iterable[str]],
        made: Sequence[Iterable[str]],
    ) -> None:
        """Index a graph.

        Args:
            inputs: of the graph, constants left out.
            outputs: of the graph.
            taken: tensors that each node takes, in order of execution.
            made: tensors that each node makes, likewise.
        """
        self.end = len(made)
        self._made = made
        self._from = dict.fromkeys(inputs, 0)
        """By tensor: the first place in the order of nodes where it is available."""
        for index, names in enumerate(made):
            self._from.update(dict.fromkeys(names, index + 1))
        self._from.pop("", None)  # an input or output that may be left out, and is
        self._taken = [[name for name in names if name in self._from] for names in taken]
        self.users: dict[str, list[int]] = {}
        """By tensor: the nodes that take it, rising; the end of the graph counts as one."""
        for index, names in enumerate(self._taken):
            for name in names:
                self.users.setdefault(name, []).append(index)
        for name in outputs:
            self.users.setdefault(name, []).append(self.end)

    def alive(self) -> list[set[str]]:
        """Return for each place before a node the tensors made before and used after it."""
        alive: list[set[str]] = [set() for _ in range(self.end + 1)]
        for name, start in self._from.items():
            for place in range(max(start, 1), self._last(name) + 1):
                alive[place].add(name)
        return alive

    def cut(self, first: int, last: int) -> Cut:
        """Make one stage of the nodes from *first* to *last*, that one excluded."""
        taken = dict.fromkeys(name for names in self._taken[first:last] for name in names)
        made = {name for names in self._made[first:last] for name in names}
        return Cut(
            first,
            last,
            tuple(name for name in taken if self._from[name] <= first),
            tuple(sorted(name for name in made if self._last(name) >= last)),
        )

    def _last(self, name: str) -> int:
        """Return the last node that uses a tensor; -1: none does."""
        return self.users.get(name, [-1])[-1]
