"""Splits frames or requests between the models of one route, by their weights."""

from __future__ import annotations

from collections.abc import Sequence

from ...config.settings import Arm
from ...inference.model import Model
from ...serving.active import Serving


class Split:
    """Smooth weighted round robin over the arms of a route that have a model.

    Both methods are called with the board's lock held.
    """

    def __init__(self, arms: Sequence[Arm], servings: Sequence[Serving]) -> None:
        self._servings = servings
        # Its own: others split their frames between the same models otherwise.
        self._weights = [arm.weight for arm in arms]
        self._credit = [0] * len(arms)

    def choose(self) -> Model | None:
        """Return the model of the arm that is most behind its weight; the same until `advance`."""
        if len(self._servings) == 1:
            return self._servings[0].model
        arm = self._arm()
        return None if arm is None else self._servings[arm].model

    def advance(self) -> None:
        """Charge the chosen arm with a frame."""
        if len(self._servings) == 1:
            return
        arm = self._arm()
        for index, serving in enumerate(self._servings):
            if serving.model is not None and arm is not None:
                self._credit[index] += self._weights[index]
                self._credit[arm] -= self._weights[index]

    def _arm(self) -> int | None:
        there = [index for index, serving in enumerate(self._servings) if serving.model is not None]
        return max(
            there,
            key=lambda index: self._credit[index] + self._weights[index],
            default=None,
        )
