"""Makes a prepared form of every model that serves, so that the next start is a quick one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from ..core.codec import pack
from ..core.containment import contained, words
from ..core.errors import AgentError, ModelError
from ..core.types import Kind
from ..inference.engines.engine import EngineChoice, PreparedForm
from ..inference.engines.registry import installed, titles
from ..inference.model import Model
from ..inference.prepared.artifact import Artifact, ArtifactError, MappedWeights, WeightCheck
from ..inference.prepared.compile.cache import StoppedError, discard, find, measure, prepare
from ..inference.prepared.compile.collect import collect_artifacts
from ..models.manifest import ModelFolder
from ..models.store.store import Store
from .active import ActiveModels, Serving
from .choice import EngineCandidate
from .loader import ModelLoader
from .planned_model import PlannedModel

log = logging.getLogger(__name__)

DAMAGE_SECONDS = 2.0
"""Between two checks for forms that have turned out damaged while they run."""
POLL_SECONDS = 0.1
"""Between two checks whether a form is ready."""


class _Making:
    """A form that is being made or measured; what else there is to do goes on meanwhile."""

    def __init__(
        self,
        folder: ModelFolder,
        make: Callable[[], Artifact],
        measured: Artifact | None = None,
    ) -> None:
        self.folder = folder
        self.measured = measured
        """The form that is being measured, or None if one is being made."""
        self._make = make
        self._form: Artifact | None = None
        self._problem: AgentError | OSError | None = None
        self._thread = threading.Thread(target=self._run, name="prepare")
        self._thread.start()

    def _run(self) -> None:
        try:
            with contained(f"{self.folder.manifest.id}: preparing it"):
                self._form = self._make()
        except (AgentError, OSError) as problem:
            self._problem = problem

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until nothing is being made any more."""
        self._thread.join()

    def result(self) -> Artifact:
        """Return the form that is done.

        Raises:
            AgentError: it cannot be made, or measured.
            OSError: likewise.
        """
        if self._problem is not None:
            raise self._problem
        assert self._form is not None  # noqa: S101 - one of both, whatever happens
        return self._form


class PrepareTask:
    """Prepares each model that serves, and again where its form turns out damaged."""

    def __init__(
        self,
        store: Store,
        active: ActiveModels,
        loader: ModelLoader,
        quota: Callable[[], int],
        changed: Callable[[], None],
        closing: threading.Event,
    ) -> None:
        """Prepare nothing yet.

        Args:
            store: in whose folder the forms lie.
            active: the models that serve.
            loader: how models are loaded here.
            quota: returns what the store may take, bytes.
            changed: called before a form is made, and when it is ready or cannot be made.
            closing: set when the agent ends.
        """
        self._store = store
        self._active = active
        self._engines = loader.engines
        self._budget_mb = loader.engines.profile.memory_budget_mb
        self._quota = quota
        self._changed = changed
        self._closing = closing
        self._forms: dict[Path, Artifact | str] = {}
        """By folder of the model: its form, or why there is none."""
        self._making: _Making | None = None
        """One at a time."""
        self._unmeasured: set[Path] = set()
        """Folders of models whose form could not be measured; the next start tries again."""
        self._again: set[Path] = set()
        """Folders of models whose form was damaged, until there is another one."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Find or make the form of a model; one that has turned out damaged is made again."""
        damaged = _damaged(model)
        if damaged is not None:
            self._discard(model, damaged)
        self._finish()
        if serving.model is not model or model.folder.path in self._forms:
            return None
        if self._making is None:
            self._prepare(model, serving)
        return None if model.folder.path in self._forms else POLL_SECONDS

    def measure(self, serving: Serving, model: Model) -> float | None:
        """Find out how the form of a model is loaded soonest, once every model has a form."""
        self._finish()
        path = model.folder.path
        form, choice = self._forms.get(path), self._choice(model)
        if not isinstance(form, Artifact) or form.measured or choice is None:
            return None
        if serving.model is not model or path in self._unmeasured:
            return None
        if self._making is None and self._all_known():
            self._making = _Making(
                model.folder,
                partial(
                    measure,
                    form,
                    model.folder,
                    choice,
                    serving.kind,
                    budget_mb=self._budget_mb,
                    stopped=self._stopped,
                ),
                form,
            )
        return POLL_SECONDS

    def step(self) -> float:
        """Make the forms again that have turned out damaged."""
        self._finish()
        for serving in self._active.all():
            model = serving.model
            if model is None:
                continue
            if _damaged(model) is not None or model.folder.path in self._again:
                self.run(serving, model)
        return POLL_SECONDS if self._making is not None else DAMAGE_SECONDS

    def close(self) -> None:
        """Wait until nothing is being made any more; it has been told to stop."""
        if self._making is not None:
            self._making.join()

    def _discard(self, model: Model, damaged: PreparedForm) -> None:
        """Delete the form that a model runs from."""
        damaged.damaged = None
        try:
            discard(damaged.folder, self._store)
        except ModelError as problem:
            log.error("model %s: %s", model.id, problem)  # noqa: TRY400 - one line, no traceback
        self._forms.pop(model.folder.path, None)
        self._unmeasured.discard(model.folder.path)
        self._again.add(model.folder.path)
        if not damaged.is_streaming:
            return
        # Nothing else can run it: it is loaded as at first, which makes a form.
        servings = [each for each in self._active.all() if each.model is model]
        for old in self._active.unload(lambda _serving, one: one is model):
            self._active.retire(old)
        for each in servings:
            self._active.load(each)

    def _prepare(self, model: Model, serving: Serving) -> None:
        """Find the form of a model, or begin to make it."""
        choice = self._choice(model)
        if choice is None:
            self._keep(model.folder, f"is not for {titles('graph')}")
            return
        try:
            form = self._found(model, choice, serving.kind)
        except (AgentError, OSError) as problem:
            self._refuse(model.folder, problem)
            return
        if form is not None:
            self._keep(model.folder, form)
            return
        # It may take minutes: until then the next start is not to count on a form.
        self._changed()
        self._making = _Making(
            model.folder,
            partial(
                prepare,
                self._store,
                model.folder,
                choice,
                serving.kind,
                budget_mb=self._budget_mb,
                quota=self._quota(),
                stopped=self._stopped,
            ),
        )

    def _finish(self) -> None:
        """Take the form that has been made or measured, if it is there."""
        making = self._making
        if making is None or not making.done:
            return
        self._making = None
        measured = making.measured
        if measured is not None and self._forms.get(making.folder.path) is not measured:
            return  # it has turned out damaged meanwhile
        try:
            form = making.result()
        except StoppedError:
            log.debug("model %s: the next start goes on with its form", making.folder.manifest.id)
        except (AgentError, OSError) as problem:
            if measured is not None:
                log.warning("%s; it is loaded whole", words(problem))
                self._unmeasured.add(making.folder.path)
            else:
                self._refuse(making.folder, problem)
        else:
            self._keep(making.folder, form)

    def _refuse(self, folder: ModelFolder, problem: Exception) -> None:
        log.warning("model %s: no prepared form: %s", folder.manifest.id, words(problem))
        self._keep(folder, words(problem))

    def _keep(self, folder: ModelFolder, form: Artifact | str) -> None:
        """Record what has become of a model's form; remove those that nobody needs."""
        self._forms[folder.path] = form
        self._again.discard(folder.path)
        # Until the form of each is known, one whose model is elsewhere now looks as if of no use.
        if isinstance(form, Artifact) and self._all_known():
            keep = [form.key for form in self._forms.values() if isinstance(form, Artifact)]
            for line in collect_artifacts(self._store, keep):
                log.info("%s", line)
        self._changed()

    def _all_known(self) -> bool:
        """Whether it is known of every model that serves whether it has a form."""
        serving = [each.model for each in self._active.all()]
        return all(model is None or model.folder.path in self._forms for model in serving)

    def _found(self, model: Model, choice: EngineChoice, kind: Kind) -> Artifact | None:
        """Find the form of a model; one that is not whole is deleted.

        A model that was not loaded from its form may have been refused it: the form is checked in
        full, or it would be refused at every start.
        """
        form = find(self._store.root, model.folder.path, choice, kind, self._budget_mb)
        if form is None or model.engine.prepared is not None:
            return form
        try:
            _check_whole(form)
        except ArtifactError as problem:
            log.warning("model %s: the prepared form is made again: %s", model.id, problem)
            discard(form.folder, self._store)
            return None
        return form

    def _stopped(self) -> str | None:
        return "the agent ends" if self._closing.is_set() else None

    def _choice(self, model: Model) -> EngineChoice | None:
        if model.engine.prepared is not None:
            return model.choice
        return self._engines.prepared_choice(model.folder)

    def state(self, name: str) -> str | None:
        """Return how far the form of what serves under a name is; None: nothing serves."""
        for serving in self._active.all():
            if serving.reference == name and serving.model is not None:
                form = self._forms.get(serving.model.folder.path)
                if form is None:
                    return "preparing"
                if not isinstance(form, Artifact):
                    return f"no: {form}"
                return self._readiness(serving.model)
        return None

    def _readiness(self, model: Model) -> str:
        """Return what is known of a form that is made: no start takes one that is unverified."""
        choice = self._choice(model)
        if choice is None or not self._engines.unverified(model.folder, choice):
            return "ready"
        verdicts = self._engines.verdicts
        why = None if verdicts is None else verdicts.why_wrong(model.folder.path, choice)
        return "preparing" if why is None else f"no: {why}"

    def planned(self) -> list[PlannedModel]:
        """List what serves, as the next start can load it at once."""
        found = []
        for serving in self._active.all():
            model = serving.model
            if model is None or serving.lazy or model.is_reference:
                continue  # the next start shall have the engine compared that stands behind it
            start, place = self._start(model)
            if start is None and serving.passed:
                continue  # the next start shall try whether the engine that it prefers is back
            start = start or EngineCandidate("whole", model.choice)
            if self._engines.unverified_alone(model.folder, start.choice):
                continue  # the next start shall have it compared first
            found.append(
                PlannedModel(
                    serving.arm.name,
                    serving.arm.version,
                    serving.kind,
                    pack(model.folder),
                    pack(start.choice),
                    place if start.way == "prepared" else "",
                    start.way,
                    start.way != "quick" and self._engines.unverified(model.folder, start.choice),
                )
            )
        return found

    def _start(self, model: Model) -> tuple[EngineCandidate | None, str]:
        """Return what gives a model's first result soonest, and the folder of its form."""
        form, running = self._forms.get(model.folder.path), model.engine.prepared
        if isinstance(form, Artifact):
            choice, place = self._choice(model) or model.choice, form.folder
            return self._engines.at_start(model.folder, choice), place
        if form is None and running is not None and Path(running.folder).is_dir():
            # Loaded from it, and not yet checked here: as at a stop right after the start.
            return EngineCandidate("prepared", model.choice), running.folder
        return self._engines.at_start(model.folder, None), ""


class MeasureTask:
    """Measures the form of each model, after all that makes it serve better."""

    def __init__(self, prepare: PrepareTask) -> None:
        """Measure nothing yet; *prepare* has the forms."""
        self._prepare = prepare

    def run(self, serving: Serving, model: Model) -> float | None:
        """Measure a model's form, if that has not been done yet."""
        return self._prepare.measure(serving, model)


def _damaged(model: Model) -> PreparedForm | None:
    """Return the form that a model was loaded from, if it has turned out damaged."""
    prepared = model.engine.prepared
    return prepared if prepared is not None and prepared.damaged is not None else None


def _check_whole(form: Artifact) -> None:
    """Check every checksum of a form, and the version of the engine that made it.

    Raises:
        ArtifactError: something is not as it was when the form was made.
    """
    here, found = installed().get(form.engine), str(form.table["version"])
    # Some engines name their build behind their version.
    if here is None or not f"{found}-".startswith(f"{here}-"):
        raise ArtifactError(
            f"{form.folder}: made by {form.engine} {found}, here is {here or 'none'}"
        )
    try:
        for name, (_, digest) in form.table["files"].items():
            if digest and xxh3_64_hexdigest(Path(form.path(name)).read_bytes()) != digest:
                raise ArtifactError(f"{form.path(name)}: damaged")
        weights = MappedWeights(form.weights)
        WeightCheck(weights, [tuple(stage["range"]) for stage in form.table["stages"]]).wait()
    except OSError as problem:
        raise ArtifactError(f"{form.folder}: cannot be read: {problem.strerror}") from None
