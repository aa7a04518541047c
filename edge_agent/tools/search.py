"""The search for the eight-bit network: ways to quantise, and operators that must stay float."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from ..core.errors import AgentError, ModelError
from ..core.frozen import record
from ..core.types import Kind, Tensors
from ..inference.compare import relative_distance
from ..inference.engines.engine import EngineChoice
from ..models.files.check_onnx import inspect
from ..models.importing import write_manifest
from ..models.manifest import GOLDEN, MANIFEST, ModelFolder
from . import nncf_quantization
from .judging import EXACT, Jury, Verdict, outputs_of
from .measure import Cost, costs_of
from .network import HEAVY, FloatNetwork
from .static_quantization import METHODS, Method, calibrate, quantize_onnx
from .targets import Target

AROUND = frozenset(
    {
        *("Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu"),
        *("MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Split"),
        *("Squeeze", "Transpose", "Unsqueeze"),
    }
)
"""Operators between the heavy ones that compute in eight bits, so that no float lies between."""
GROUPS = 24
"""Parts of a network whose sensitivity is measured."""
SENSITIVITY_SAMPLES = 6
MOST_FLOAT = 0.5
"""Share of the heavy operators that may stay float; with more it is hardly an eight-bit network."""

SAME_SPEED = 1.1
"""Networks of which none is slower than the other by more than this count as equally fast."""

Progress = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and of how much."""


@record(kw_only=True)
class Way:
    """One way to quantise."""

    tool: str
    method: Method | None = None
    around: bool = True
    """Whether what lies between the heavy operators is quantised too."""
    float_nodes: tuple[str, ...] = ()
    """Heavy operators that stay float."""

    def __str__(self) -> str:
        words = [self.tool]
        if self.method is not None:
            words.append(self.method)
        if not self.around:
            words.append("heavy operators only")
        if self.float_nodes:
            words.append(f"{len(self.float_nodes)} left float")
        return ", ".join(words)


@record(quick=True, eq=False)
class Candidate:
    """A network that came out of one way."""

    way: Way
    folder: Path
    verdicts: dict[str, Verdict]
    """By engine."""
    drop: float
    """What it loses, on the engine where it loses most."""
    costs: dict[str, Cost]
    """By engine, where it was measured."""

    @property
    def fastest_ms(self) -> float:
        return min((cost.infer_ms for cost in self.costs.values()), default=float("inf"))

    @property
    def product_ms(self) -> float:
        """Over all engines: of two, the lower one has the lower geometric mean."""
        return prod(cost.infer_ms for cost in self.costs.values())


ONNX_RUNTIME, NNCF = "ONNX Runtime", "NNCF"


def best_of(good: Sequence[Candidate]) -> Candidate | None:
    """Return the one to take of networks that lose little enough; None: there are none.

    Of those that are about as fast as the fastest, the one that loses least; of those that lose
    the same, the fastest over all engines: a box may have the other one.
    """
    fastest = min((each.fastest_ms for each in good), default=0.0)
    near = [each for each in good if each.fastest_ms <= fastest * SAME_SPEED]
    return min(near, key=lambda each: (each.drop, each.product_ms), default=None)


class Search:
    """Tries ways to quantise one network."""

    def __init__(
        self,
        folder: ModelFolder,
        network: FloatNetwork,
        jury: Jury,
        inputs: Sequence[Tensors],
        target: Target,
        engines: Sequence[EngineChoice],
        timed: Sequence[EngineChoice],
        max_drop: float,
        place: Path,
        progress: Progress,
    ) -> None:
        """Have nothing tried yet.

        Args:
            folder: of the float model.
            network: its network, ready.
            jury: judges what comes out.
            inputs: of the network, to calibrate with.
            target: says how eight bits are used.
            engines: that the network is judged on.
            timed: that it is timed on.
            max_drop: what it may lose.
            place: a folder for networks and ranges.
            progress: is told of each step.

        """
        self._folder = folder
        self._network = network
        self._jury = jury
        self._inputs = inputs
        self._target = target
        self._engines = engines
        self._timed = timed
        self._max_drop = max_drop
        self._place = place
        self._progress = progress
        self.floats: dict[str, Verdict] = {}
        """The float network itself, by engine …"""
        self.float_costs: dict[str, Cost] = {}
        """… and what it takes."""
        self.candidates: list[Candidate] = []
        self.failed: list[str] = []
        """Ways that came to nothing, and why."""

    @property
    def kind(self) -> Kind:
        return self._jury.kind

    def run(self) -> Candidate | None:
        """Return the best network that loses no more than it may; None: there is none."""
        for choice in self._engines:
            self.floats[label(choice)] = self._jury.judge(self._folder.path, choice)
        for way in self._ways():
            self._try(way)
        if not self.candidates:
            raise ModelError(f"{self._folder.manifest.id}: {'; '.join(self.failed)}")
        good = self._good()
        if not good:
            self._restore(min(self.candidates, key=lambda each: each.drop))
            good = self._good()
        self._time(good or [min(self.candidates, key=lambda each: each.drop)])
        return best_of(good)

    def _time(self, candidates: Sequence[Candidate]) -> None:
        """Time networks beside the float one."""
        folders = [self._folder.path, *(each.folder for each in candidates)]
        for number, choice in enumerate(self._timed):
            self._progress("timing", number, len(self._timed))
            self.float_costs[label(choice)], *costs = costs_of(folders, choice, self.kind)
            for each, cost in zip(candidates, costs, strict=True):
                each.costs[label(choice)] = cost

    def _good(self) -> list[Candidate]:
        return [each for each in self.candidates if each.drop <= self._max_drop]

    def _ways(self) -> list[Way]:
        ways = [Way(tool=ONNX_RUNTIME, method=method) for method in METHODS]
        ways.append(Way(tool=ONNX_RUNTIME, method="minmax", around=False))
        if nncf_quantization.is_installed():
            ways.append(Way(tool=NNCF))
        else:
            self.failed.append(f"{NNCF}: is not installed (pip install nncf); not tried")
        return ways

    def _try(self, way: Way) -> Candidate | None:
        """Quantise in one way and judge what comes out."""
        number = len(self.candidates) + len(self.failed)
        self._progress(f"trying {way}", 0, len(self._jury.samples))
        try:
            candidate = self._judge(way, self._made(way, f"candidate-{number}"))
        except AgentError as problem:
            self.failed.append(f"{way}: {problem}")
            return None
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as problem:
            # The quantisers raise whatever their code meets in a graph that it does not know.
            first = (str(problem).strip().splitlines() or [""])[0]
            self.failed.append(f"{way}: {type(problem).__name__}: {first[:200]}")
            return None
        self.candidates.append(candidate)
        return candidate

    def _judge(self, way: Way, folder: Path) -> Candidate:
        verdicts = {}
        for choice in self._engines:
            verdicts[label(choice)] = self._jury.judge(folder, choice)
        drop = max(lost(self.floats[name], each) for name, each in verdicts.items())
        return Candidate(way, folder, verdicts, drop, {})

    def _made(self, way: Way, name: str) -> Path:
        folder = self._place / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        out = folder / "model.onnx"
        followers = self._network.followers
        behind = (name for node in way.float_nodes for name in followers[node])
        exclude = (*self._network.tail, *way.float_nodes, *behind)
        if way.method is None:
            quantize = nncf_quantization.quantize_nncf
            quantize(self._network.path, out, self._inputs, self._target, exclude=exclude)
        else:
            quantize_onnx(
                self._network.path,
                out,
                self._ranges(way.method),
                self._target,
                method=way.method,
                kinds=HEAVY | AROUND if way.around else HEAVY,
                exclude=exclude,
            )
        copy_rest(self._folder, folder)
        return folder

    def _ranges(self, method: Method) -> Path:
        """Return the file of ranges of a method, calibrated when it is first needed."""
        path = self._place / f"{method}.json"
        if not path.is_file():
            count = len(self._inputs)
            calibrate(
                self._network.path,
                self._inputs,
                path,
                method=method,
                advance=lambda done: self._progress(f"calibrating, {method}", done, count),
            )
        return path

    def _restore(self, best: Candidate) -> None:
        """Leave those operators float that lose most, as few as will do."""
        order = self._by_sensitivity(best.way)
        most = len(order)
        while most and sum(map(len, order[:most])) > MOST_FLOAT * len(self._network.heavy):
            most -= 1
        count, failed = 1, 0
        while count <= most:
            tried = self._try(_with_float(best.way, order[:count]))
            if tried is not None and tried.drop <= self._max_drop:
                break
            failed, count = count, min(count * 2, most) if count < most else most + 1
        while count <= most and count - failed > 1:
            middle = (count + failed) // 2
            tried = self._try(_with_float(best.way, order[:middle]))
            if tried is not None and tried.drop <= self._max_drop:
                count = middle
            else:
                failed = middle

    def _by_sensitivity(self, way: Way) -> list[tuple[str, ...]]:
        """Return groups of heavy operators, first those that bring most error when quantised."""
        heavy = self._network.heavy
        size = -(-len(heavy) // GROUPS)
        groups = [heavy[start : start + size] for start in range(0, len(heavy), size)]
        step = max(1, len(self._inputs) // SENSITIVITY_SAMPLES)
        inputs = self._inputs[::step][:SENSITIVITY_SAMPLES]
        float_folder = self._place / "float"
        float_folder.mkdir()
        shutil.copyfile(self._network.path, float_folder / "model.onnx")
        copy_rest(self._folder, float_folder)
        wanted = outputs_of(float_folder, self.kind, inputs)
        # One way for all, as NNCF would take a calibration for each.
        probe = replace(way, tool=ONNX_RUNTIME, method=way.method or "minmax", around=False)
        errors = []
        for number, group in enumerate(groups):
            self._progress("measuring sensitivity", number, len(groups))
            others = tuple(name for name in heavy if name not in group)
            folder = self._made(replace(probe, float_nodes=others), "probe")
            found = outputs_of(folder, self.kind, inputs)
            errors.append(
                float(
                    np.mean(
                        [
                            relative_distance(one[name], other[name])
                            for one, other in zip(wanted, found, strict=True)
                            for name in one
                        ]
                    )
                )
            )
        order = sorted(range(len(groups)), key=lambda place: -errors[place])
        return [groups[place] for place in order]


def _with_float(way: Way, groups: Sequence[tuple[str, ...]]) -> Way:
    return replace(way, float_nodes=tuple(name for group in groups for name in group))


def lost(before: Verdict, after: Verdict) -> float:
    """Return what is lost: of the metric where the truth is known, else of the agreement."""
    if before.metric is not None and after.metric is not None:
        return before.metric - after.metric
    return 1 - after.agreement


def label(choice: EngineChoice) -> str:
    """Name an engine in the report; the exact computation is none of a box's."""
    return "exact" if choice == EXACT else f"{choice.engine}:{choice.device}"


def copy_rest(source: ModelFolder, folder: Path) -> None:
    """Copy what belongs to a model but its network, its golden outputs and what tells of it."""
    left = {path.resolve() for path in inspect(source.network).files}
    for path in source.path.rglob("*"):
        name = path.relative_to(source.path)
        if not path.is_file() or path.resolve() in left:
            continue
        if path.name in {GOLDEN, MANIFEST} or path.suffix == ".md":
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    manifest = source.manifest
    about = f"eight bits, from {manifest.id}"
    write_manifest(
        replace(
            manifest,
            version=f"{manifest.version}.1",
            file="model.onnx",
            description=f"{manifest.description} ({about})" if manifest.description else about,
        ),
        folder,
    )
