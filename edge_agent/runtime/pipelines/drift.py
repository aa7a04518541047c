"""Measures how far the inputs and scores of a pipeline's model are from the usual ones.

The usual values come from the model's folder, or else from the first results of a version, and are
then kept in the state folder. Called with a pipeline's results in the order of capture, by one lane
at a time. With each result only a few values are copied; the rest is done for many at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.types import Array, Findings, Sample
from ...inference.model import Model
from ...inference.preprocess.placement import Region, cut
from ...models.decoders import SCORED
from ...models.drift import Usual
from .learned import about, digest

if TYPE_CHECKING:
    from ...inference.drift import Histogram, Learner
    from .learned import Learned

log = logging.getLogger(__name__)

TOGETHER = 16
"""Number of results sorted into bins at a time."""


class Drift:
    """The drift of one pipeline. Any thread may read `report` and `indices`."""

    def __init__(
        self,
        pipeline: str,
        learned: Learned[Usual] | None,
        source: str,
        region: Region | None,
        content: Callable[[Model], str] = lambda _model: "",
    ) -> None:
        """Set up; *learned* None: learned values are not kept, *region* None: the whole picture.

        Values learned from another *source*, or of other files of a model (*content* returns their
        digest), are not used.
        """
        self.indices: dict[str, float] = {}
        """Drift by channel and of the score, replaced as a whole; empty: not known yet."""
        self._pipeline = pipeline
        self._learned = learned
        self._source = source
        self._region = region
        self._masks = ""
        """The areas of its pictures that are black; empty: none."""
        self._content = content
        self._model: tuple[str, str] | None = None
        """The id of the version, and the digest of its files; empty: to begin anew."""
        self._limit = 0.0
        self._values: list[Array] = []
        self._scores: list[float] = []
        self._against = ""
        self._learner: Learner | None = None
        """Learns the usual values; None: they are known."""
        self._usual: Usual | None = None
        self._inputs: Histogram | None = None
        self._score: Histogram | None = None
        self._seen = 0
        """Number of results in the histograms."""
        self._learn = 1

    def look_at(self, masks: str) -> None:
        """Follow pictures with other masks, of which it is learned anew what is usual."""
        if masks != self._masks:
            self._masks = masks
            self._model = self._model and ("", "")  # begins anew with the next result

    def follow(self, model: Model, sample: Sample, found: Findings, limit: float) -> None:
        """Add a result before any decision over several windows; *limit* is the lowest score."""
        if self._model is None:
            # The first result must not wait for further imports.
            self._model = "", ""
            return
        from ...inference.drift import values

        if (model.id, self._content(model)) != self._model or limit != self._limit:
            self._begin(model, limit)
        data = sample.data
        if self._region is not None and sample.picture:
            data = cut(data, self._region)[0]
        some = values(data, picture=sample.picture, seq=sample.seq)
        if self._values and self._values[0].shape[1] != some.shape[1]:
            self._begin(model, limit)
        self._values.append(some)
        score = found.best_score
        if score is not None:
            self._scores.append(score)
        if len(self._values) >= TOGETHER:
            self._take(model, picture=sample.picture)
            self._values.clear()
            self._scores.clear()

    def report(self) -> dict[str, Any] | None:
        """Return the drift for health, or None if there is nothing to report yet."""
        learner, usual = self._learner, self._usual
        if learner is not None:
            return {"against": "learned", "learning": round(min(1, len(learner) / self._learn), 3)}
        if usual is None:
            return None
        indices = {name: round(index, 4) for name, index in self.indices.items()}
        if not indices:
            return {"against": self._against}
        score = indices.pop("score", None) if usual.score is not None else None
        return {
            "against": self._against,
            "largest": max([*indices.values(), score or 0.0]),
            "inputs": indices,
            "score": score,
        }

    def _begin(self, model: Model, limit: float) -> None:
        """Forget earlier results, which are from another version or threshold."""
        of = model.id, self._content(model)
        if self._model and self._model[0] and of != self._model:
            log.info("%s: drift is measured again, for %s", self._pipeline, model.id)
        self._model, self._limit = of, limit
        self._values.clear()
        self._scores.clear()
        self._usual = self._learner = self._inputs = self._score = None
        self.indices = {}
        self._seen = 0
        self._learn = model.manifest.output.learn

    def _take(self, model: Model, *, picture: bool) -> None:
        """Learn from the collected values, or compare them with the usual ones."""
        from ...inference.drift import channel_names

        names = channel_names(
            self._values[0].shape[1], picture=picture, known=model.manifest.input.channels
        )
        if self._usual is None and self._learner is None:
            self._find(model, names)
        if self._learner is not None:
            self._gather(model, names, self._learner)
        else:
            self._compare()

    def _find(self, model: Model, names: tuple[str, ...]) -> None:
        """Use the model's known usual values, or start learning them."""
        given = model.folder.usual
        if given is not None and tuple(given.inputs) != names:
            words = "%s: drift.json of %s is for inputs %s, not %s: it is learned instead"
            log.warning(words, self._pipeline, model.id, ", ".join(given.inputs), ", ".join(names))
            given = None
        if given is not None:
            self._against = "calibration"
            self._use(given)
            return
        self._against = "learned"
        known = None
        if self._learned is not None:
            known = self._learned.get(self._pipeline, model.id, self._rule, self._about(model))
        if known is not None and tuple(known.inputs) == names:
            self._use(known)
            return
        from ...inference.drift import Learner

        self._learner = Learner()
        words = "%s: learning the usual values of %s from %d results"
        log.info(words, self._pipeline, model.id, self._learn)

    @property
    def _rule(self) -> str:
        return f"{digest(f'{self._source} {self._region}')}/{self._learn}"

    def _about(self, model: Model) -> dict[str, str]:
        # Without masks it is known, too, what was black: nothing.
        return about(view=self._masks or "no masks", content=self._content(model))

    def _use(self, usual: Usual) -> None:
        from ...inference.drift import Histogram

        self._usual, self._learner = usual, None
        self._inputs = Histogram(list(usual.inputs.values()))
        self._score = None if usual.score is None else Histogram([usual.score])

    def _gather(self, model: Model, names: tuple[str, ...], learner: Learner) -> None:
        scores: list[float] | list[None] = self._scores or [None] * len(self._values)
        for some, score in zip(self._values, scores, strict=True):
            learner.add(some, score)
        if len(learner) < self._learn:
            return
        usual = learner.usual(names, self._limit if model.manifest.task in SCORED else 0.0)
        self._use(usual)
        log.info("%s: has learned what is usual of %s", self._pipeline, model.id)
        if self._learned is not None:
            self._learned.put(self._pipeline, model.id, self._rule, usual, self._about(model))

    def _compare(self) -> None:
        import numpy as np

        usual, inputs, score = self._usual, self._inputs, self._score
        if usual is None or inputs is None:
            return
        keep = (1 - 1 / self._learn) ** len(self._values)
        inputs.add(np.concatenate(self._values), keep)
        if score is not None and self._scores:
            column = np.array(self._scores)[:, None]
            if usual.floor > 0:
                # Findings that the present limit drops are left out.
                column = np.where(column < usual.floor, 0.0, column)
            score.add(column, keep)
        self._seen += len(self._values)
        if 2 * self._seen < self._learn:
            return
        indices = dict(zip(usual.inputs, inputs.indices().tolist(), strict=True))
        if score is not None and self._scores:
            floor = self._limit if self._limit > usual.floor > 0 else None
            indices["score"] = float(score.indices(floor)[0])
        self.indices = indices
