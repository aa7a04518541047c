"""`edge-agent quantize` beside ONNX Runtime and NNCF by hand, with their defaults; see `run`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from edge_agent.cli.lineup import engines_for
from edge_agent.cli.samples import Samples
from edge_agent.core.errors import AgentError
from edge_agent.core.types import Sample, Tensors
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import ModelFolder, load
from edge_agent.sources.spec import parse_source
from edge_agent.tools.evaluation import EXACT, Evaluator, network_inputs
from edge_agent.tools.folders import copy_rest
from edge_agent.tools.measure import costs_of


def read(pictures: Path, folder: ModelFolder) -> list[Sample]:
    """Read the pictures of a folder, as `quantize` does."""
    spec = parse_source(f"dir:{quote(str(pictures.absolute()))}", Path.cwd())
    with Samples(spec, folder.manifest.input, threading.Event()) as samples:
        return list(samples.follow())


class Reader:
    """Inputs, as ONNX Runtime's quantizer takes them."""

    def __init__(self, inputs: Sequence[Tensors]) -> None:
        self._left = iter(inputs)

    def get_next(self) -> Tensors | None:
        """Return the next; None: there is none."""
        return next(self._left, None)


def onnx_runtime(network: Path, out: Path, inputs: Sequence[Tensors]) -> None:
    """Quantize as the first example of ONNX Runtime's documentation does."""
    from onnxruntime.quantization import quantize_static

    quantize_static(network, out, Reader(inputs))


def nncf(network: Path, out: Path, inputs: Sequence[Tensors]) -> None:
    """Quantize as the first example of NNCF's documentation does."""
    import nncf
    import onnx

    onnx.save(nncf.quantize(onnx.load(network), nncf.Dataset(list(map(dict, inputs)))), out)


Quantizer = Callable[[Path, Path, Sequence[Tensors]], None]
BY_HAND: dict[str, Quantizer] = {"ONNX Runtime by hand": onnx_runtime, "NNCF by hand": nncf}


def compare(pictures: Path, model: Path, work: Path) -> None:
    """Print the rows of one model."""
    with import_model(model) as imported:
        folder = imported.folder
        made: dict[str, Path] = {"float": folder.path}
        samples = read(pictures, folder)
        inputs = network_inputs(folder, samples, lambda _: None)
        for number, (name, quantizer) in enumerate(BY_HAND.items()):
            place = work / str(number)
            place.mkdir()
            copy_rest(folder, place)
            try:
                quantizer(folder.network, place / "model.onnx", inputs)
                load(place)
            except Exception as problem:  # noqa: BLE001 - whatever it is, is the result
                print(f"{model.stem}: {name}: {type(problem).__name__}: {problem}"[:300])
                continue
            made[name] = place
        own = work / "own"
        command = [sys.executable, "-m", "edge_agent", "quantize", str(model)]
        done = subprocess.run(
            [*command, "--calibration", str(pictures), "-o", str(own)], check=False
        )
        if done.returncode == 0:
            made["edge-agent quantize"] = own
        evaluator = Evaluator(folder, samples, None)
        engines = engines_for(folder.network)
        rows: dict[str, list[str]] = {name: [] for name in made}
        runs: dict[str, list[str]] = {}
        for choice in (*engines, EXACT):
            for name, place in made.items():
                try:
                    rows[name].append(f"{evaluator.judge(place, choice).agreement:.1%}")
                    runs.setdefault(choice.engine, []).append(name)
                except AgentError as problem:
                    print(f"{model.stem}: {name} on {choice.engine}: {problem}"[:300])
                    rows[name].append("does not run")
        for choice in engines:
            able = [name for name in made if name in runs[choice.engine]]
            costs = costs_of([made[name] for name in able], choice)
            taken = dict(zip(able, costs, strict=True))
            for name in made:
                cost = taken.get(name)
                share = "" if cost is None else f"{cost.infer_ms / taken['float'].infer_ms:.2f}"
                rows[name].append(share)
        names = [choice.engine for choice in engines]
        print("| model | way |", *(f"{name} |" for name in (*names, "exact")), end=" ")
        print(*(f"time on {name}, to float's |" for name in names))
        for name, cells in rows.items():
            print(f"| {folder.manifest.name} | {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Compare every model that is named."""
    if len(sys.argv) < 3:
        sys.exit("usage: scripts/by-hand/run PICTURES MODEL…")
    for name in sys.argv[2:]:
        with TemporaryDirectory(prefix="edge-agent-by-hand-") as work:
            compare(Path(sys.argv[1]), Path(name), Path(work))


if __name__ == "__main__":
    main()
