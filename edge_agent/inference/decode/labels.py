"""Class indices to labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError, SampleError
from ...core.frozen import record
from .decoder import Network


@record
class Labels:
    """Names the network's classes: class *first* is called names[0].

    Without names a class is called by its number. Classes before *first* have none: background.
    """

    names: tuple[str, ...]
    first: int

    @property
    def classes(self) -> int | None:
        """How many classes the network must have; None where nothing was given."""
        return len(self.names) + self.first if self.names else None

    def is_named(self, indices: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return for each class (n,) whether it has a label; only those are reported."""
        if not self.names:
            return np.ones(indices.shape, np.bool_)
        return indices >= max(self.first, 0)

    def of(self, indices: NDArray[np.intp]) -> tuple[str, ...]:
        """Return the labels of classes (n,) that all have one.

        Raises:
            SampleError: the network found a class beyond the last label.
        """
        if not self.names:
            return tuple(str(int(index)) for index in indices)
        places = [int(index) - self.first for index in indices]
        beyond = max(places, default=0)
        if beyond >= len(self.names):
            raise SampleError(
                f"output.labels: the model found class {beyond + self.first}, but the last of "
                f"{len(self.names)} labels is that of class {len(self.names) - 1 + self.first}"
            )
        return tuple(self.names[place] for place in places)


def labels_of(network: Network) -> Labels:
    """Read labels and `first_label` off a manifest."""
    return Labels(network.labels, network.manifest.output.first_label)


def check_classes(labels: Labels, found: int | None, where: str) -> None:
    """Check that there are as many labels as the network has classes.

    Raises:
        ModelError: expected and found.
    """
    if labels.classes is None or found is None or labels.classes == found:
        return
    first = f" (first_label {labels.first})" if labels.first else ""
    raise ModelError(
        f"output.labels: expected {found - labels.first} labels for the {found} classes of "
        f"{where}{first}, found {len(labels.names)}"
    )
