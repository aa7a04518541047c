"""Sets models up to infer several samples at a time, if requested or faster.

In the background, while a model serves: an engine with an open batch accepts any number as it is;
other networks are compiled for it; and a model loaded from its prepared form, which takes one
sample at a time, is loaded whole and exchanged between two frames.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

from ..core.containment import contained
from ..core.errors import AgentError, EngineError
from ..core.files import size_of
from ..inference.batching import Batch, load_batch, seconds_alone
from ..inference.engines.engine import PreparedForm
from ..inference.engines.registry import capabilities
from ..inference.model import Model, load_model
from .active import ActiveModels, Lanes, Serving
from .loader import ModelLoader

log = logging.getLogger(__name__)

MOST_CROPS = 8
"""Most crops of a second stage in one batch: more gains nothing on a processor."""
UNASKED_BYTES = 16 << 20
"""Largest network that is compiled for several crops without a request: each batch size takes as
much memory again in every lane."""


class BatchSetup:
    """Sets up each model once."""

    def __init__(self, active: ActiveModels, loader: ModelLoader, lanes: Lanes) -> None:
        """Start without any model set up."""
        self._active = active
        self._loader = loader
        self._lanes = lanes
        self._alone: WeakKeyDictionary[Model, float] = WeakKeyDictionary()
        """Seconds per sample of the model that a whole one replaced."""

    def run(self, serving: Serving, model: Model) -> None:
        """Set up a model for batches, if requested or faster."""
        asked = self._loader.engines.max_batch(model.folder)
        most = max(asked, min(serving.crops, MOST_CROPS))
        if most < 2 or (asked < 2 and _costly(model)):
            return
        try:
            prepared = model.engine.prepared
            if prepared is not None and capabilities(model.choice.engine).open_batch:
                self._load_whole(serving, model, prepared)
                return  # its replacement is set up next
            batch = load_batch(model, serving.kind, most)
            # A tune's decision is not measured again.
            tuned = asked > 1 and self._loader.engines.batching.max_batch == 0
            pays = tuned or self._pays(model, batch)
        except AgentError as problem:
            if asked > 1:
                log.info("%s", problem)
            return
        if asked < 2 and not pays:
            log.info("model %s: crops are inferred one by one, which is faster", model.id)
            batch.close()
            return
        if not pays:
            log.warning(
                "model %s: up to %d samples are inferred together, as set by [batching] max_batch, "
                "but one by one is faster here; leave it at 0 to let a tune decide",
                model.id,
                batch.most,
            )
        self._equip(model, batch, asked)

    def _pays(self, model: Model, batch: Batch) -> bool:
        """Whether batches are not slower; closes the batch if that cannot be measured."""
        try:
            with contained(model.id):
                return batch.pays(self._alone.get(model, float("inf")))
        except AgentError:
            batch.close()
            raise

    def _equip(self, model: Model, batch: Batch, asked: int) -> None:
        with self._lanes.boundary():
            serves = self._active.serves(model)
            if serves:
                model.batch, model.together = batch, max(1, asked)
        if not serves:
            batch.close()
            return
        log.info("model %s: up to %d samples are inferred together", model.id, batch.most)

    def _load_whole(self, serving: Serving, model: Model, prepared: PreparedForm) -> None:
        """Replace a model running from its prepared form by the whole model."""
        if not prepared.accepts_batches:
            raise EngineError(f"{model.id}: the network's batch is fixed")
        if self._loader.engines.budget.exceeds(model.folder):
            raise EngineError(f"{model.id}: is larger than the memory budget")
        choices = self._loader.engines.choices_for(model.folder)
        own = [choice for choice in choices if choice.engine == model.choice.engine]
        alone = seconds_alone(model)
        whole = load_model(model.folder, own, serving.kind, checked=True)
        self._loader.attach_check(whole, serving.kind)
        self._alone[whole] = alone
        if not self._active.replace(model, whole):
            whole.close()  # another model serves meanwhile


def _costly(model: Model) -> bool:
    """Whether batches of crops would take much more memory."""
    return (
        not capabilities(model.choice.engine).open_batch
        and size_of(model.folder.path) > UNASKED_BYTES
    )
