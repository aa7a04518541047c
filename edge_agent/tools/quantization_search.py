"""The search for the eight-bit network: ways to quantize, and operators that must stay float."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..core.containment import contained
from ..core.errors import AgentError, ModelError
from ..core.types import Tensors
from ..inference.agreement import relative_distance
from .evaluation import Candidate, Comparison, Recipe, outputs_of
from .float_model import HEAVY, FloatNetwork
from .folders import copy_rest
from .quantizers import (
    METHODS,
    Method,
    Target,
    calibrate,
    has_nncf,
    quantize_nncf,
    quantize_onnx,
)

AROUND = frozenset(
    {
        *("Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu"),
        *("MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Split"),
        *("Squeeze", "Transpose", "Unsqueeze"),
    }
)
"""Operators between the heavy ones that can compute in eight bits, to avoid floats in between."""
GROUPS = 24
"""Number of parts of a network whose sensitivity is measured."""
SENSITIVITY_SAMPLES = 6
MOST_FLOAT = 0.5
"""Greatest share of heavy operators that may stay float; with more it is hardly eight-bit."""

SAME_SPEED = 1.1
"""Networks whose times differ by at most this factor count as equally fast."""

ONNX_RUNTIME, NNCF = "ONNX Runtime", "NNCF"


def best_of(good: Sequence[Candidate]) -> Candidate | None:
    """Choose among networks whose loss is acceptable; returns None if there are none.

    Among those about as fast as the fastest, the one that loses least is chosen; ties go to the one
    that is fastest over all engines, because a device may have only one of them.
    """
    fastest = min((each.fastest_ms for each in good), default=0.0)
    near = [each for each in good if each.fastest_ms <= fastest * SAME_SPEED]
    return min(near, key=lambda each: (each.drop, each.product_ms), default=None)


@dataclass(eq=False)
class Search:
    """Tries ways to quantize one network."""

    comparison: Comparison
    network: FloatNetwork
    inputs: Sequence[Tensors]
    """Inputs of the network, for calibration."""
    target: Target
    max_drop: float
    place: Path
    """Folder for networks and ranges."""
    candidates: list[Candidate] = field(default_factory=list, init=False)
    failed: list[str] = field(default_factory=list, init=False)
    """Failed attempts, and why."""

    def run(self) -> Candidate | None:
        """Return the best network within the allowed loss, or None."""
        for recipe in self._recipes():
            self._try(recipe)
        if not self.candidates:
            raise ModelError(f"{self.comparison.folder.manifest.id}: {'; '.join(self.failed)}")
        good = self._good()
        if not good:
            self._restore(min(self.candidates, key=lambda each: each.drop))
            good = self._good()
        self.comparison.time(good or [min(self.candidates, key=lambda each: each.drop)])
        return best_of(good)

    def _good(self) -> list[Candidate]:
        return [each for each in self.candidates if each.drop <= self.max_drop]

    def _recipes(self) -> list[Recipe]:
        ways = [Recipe(tool=ONNX_RUNTIME, method=method) for method in METHODS]
        ways.append(Recipe(tool=ONNX_RUNTIME, method="minmax", around=False))
        if has_nncf():
            ways += [Recipe(tool=NNCF), Recipe(tool=NNCF, stepwise=True)]
        else:
            self.failed.append(f"{NNCF}: is not installed (pip install nncf); not tried")
        return ways

    def _try(self, recipe: Recipe) -> Candidate | None:
        """Quantize with one recipe and judge the result."""
        number = len(self.candidates) + len(self.failed)
        self.comparison.progress(f"trying {recipe}", 0, 0)
        try:
            # The quantizers may raise anything for a graph that they do not know.
            with contained(recipe.tool):
                candidate = self.comparison.judge(recipe, self._made(recipe, f"candidate-{number}"))
        except AgentError as problem:
            self.failed.append(f"{recipe}: {problem}")
            return None
        self.candidates.append(candidate)
        return candidate

    def _made(self, recipe: Recipe, name: str) -> Path:
        folder = self.place / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        out = folder / "model.onnx"
        followers = self.network.followers
        behind = (name for node in recipe.float_nodes for name in followers[node])
        exclude = (*self.network.tail, *recipe.float_nodes, *behind)
        if recipe.method is None:
            quantize_nncf(
                self.network.path,
                out,
                self.inputs,
                self.target,
                exclude=exclude,
                stepwise=recipe.stepwise,
            )
        else:
            quantize_onnx(
                self.network.path,
                out,
                self._ranges(recipe.method),
                self.target,
                method=recipe.method,
                kinds=HEAVY | AROUND if recipe.around else HEAVY,
                exclude=exclude,
            )
        copy_rest(self.comparison.folder, folder)
        return folder

    def _ranges(self, method: Method) -> Path:
        """Return the file of ranges for a method, calibrating when it is first needed."""
        path = self.place / f"{method}.json"
        if not path.is_file():
            count, progress = len(self.inputs), self.comparison.progress
            calibrate(
                self.network.path,
                self.inputs,
                path,
                method=method,
                advance=lambda done: progress(f"calibrating, {method}", done, count),
            )
        return path

    def _restore(self, best: Candidate) -> None:
        """Make the operators that lose most float again, as few as possible."""
        order = self._by_sensitivity(best.recipe)
        most = len(order)
        while most and sum(map(len, order[:most])) > MOST_FLOAT * len(self.network.heavy):
            most -= 1
        count, failed = 1, 0
        while count <= most:
            tried = self._try(_with_float(best.recipe, order[:count]))
            if tried is not None and tried.drop <= self.max_drop:
                break
            failed, count = count, min(count * 2, most) if count < most else most + 1
        while count <= most and count - failed > 1:
            middle = (count + failed) // 2
            tried = self._try(_with_float(best.recipe, order[:middle]))
            if tried is not None and tried.drop <= self.max_drop:
                count = middle
            else:
                failed = middle

    def _by_sensitivity(self, recipe: Recipe) -> list[tuple[str, ...]]:
        """Return groups of heavy operators, those that cause most error when quantized first."""
        heavy = self.network.heavy
        size = -(-len(heavy) // GROUPS)
        groups = [heavy[start : start + size] for start in range(0, len(heavy), size)]
        step = max(1, len(self.inputs) // SENSITIVITY_SAMPLES)
        inputs = self.inputs[::step][:SENSITIVITY_SAMPLES]
        float_folder = self.place / "float"
        float_folder.mkdir()
        shutil.copyfile(self.network.path, float_folder / "model.onnx")
        copy_rest(self.comparison.folder, float_folder)
        wanted = outputs_of(float_folder, inputs)
        # One recipe for all, because NNCF would calibrate for each.
        probe = replace(
            recipe,
            tool=ONNX_RUNTIME,
            method=recipe.method or "minmax",
            around=False,
            stepwise=False,
        )
        errors = []
        for number, group in enumerate(groups):
            self.comparison.progress("measuring sensitivity", number, len(groups))
            others = tuple(name for name in heavy if name not in group)
            folder = self._made(replace(probe, float_nodes=others), "probe")
            found = outputs_of(folder, inputs)
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


def _with_float(recipe: Recipe, groups: Sequence[tuple[str, ...]]) -> Recipe:
    return replace(recipe, float_nodes=tuple(name for group in groups for name in group))
