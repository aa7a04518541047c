"""What the agent finds, beside what the exporters' own code has found: one table.

    python compare.py FOLDER [--only NAME…] [--no-try] [--json FILE]

Runs in the agent's environment, over a real mosquitto. Each case is installed as a user would
(`add` of the bare file or folder), runs in an agent over MQTT on each engine that takes its format,
and goes through `try`, of which the labels and scores that it prints are compared. A network of
tables runs on its rows; of a text its letters are the label, of numbers each is a finding that has
its name, as an anomaly is one. A finding is right with the same label, a score within 0.01 and, of
a box, an overlap of 0.9 (of wrappers that round to whole pixels: or corners within one); corners of
oriented boxes and key points within half a pixel. What is not right is a mismatch, or one of:

    edge   the score lies within 0.01 of the threshold
    tie    what suppresses it, or it, has a score within 0.02, or overlaps it as much as is allowed
           within 0.03; or what suppresses it is itself on one side only, for such a tie; or it is
           among the last of a full list
    area   a box without area, which the agent does not publish; in whole pixels: of one at most

Where the engines by themselves, without the agent, optimized or not, are more than 0.01 apart in
the same tensor, as with INT8 and FP16, a mismatch is the engine's own and counted as such. Ends
with 1 if there is another one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.helpers.support import (  # noqa: E402
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
)

ENGINES = ("onnxruntime", "openvino")
OVERLAP, SCORE, TIE = 0.9, 0.01, 0.02
PIXELS = 1.01
NEAR = 0.5
"""Pixels between corners or points that are the same."""
TOGETHER = 10
"""Cases in one agent."""
PATIENCE = 600.0
Finding = Mapping[str, Any]
Run = Callable[[Any], list[Any]]


@dataclass
class Count:
    """What became of the findings of a case on one way through the agent."""

    expected: int = 0
    found: int = 0
    right: int = 0
    edge: int = 0
    tie: int = 0
    area: int = 0
    wrong: int = 0
    engine: str = ""
    """What the engines by themselves do not agree on."""
    refused: str = ""
    examples: list[str] = field(default_factory=list)


def main() -> int:
    """Compare all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--no-try", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    cases = [
        json.loads(path.read_text()) for path in sorted((folder / "cases").glob("*/case.json"))
    ]
    cases = [case for case in cases if not options.only or case["name"] in options.only]
    counts: dict[str, dict[str, Count]] = {case["name"]: {} for case in cases}
    for engine in ENGINES:
        fitting = [case for case in cases if engine in engines_of(folder, case)]
        for start in range(0, len(fitting), TOGETHER):
            run(folder, engine, fitting[start : start + TOGETHER], counts)
    if not options.no_try:
        for case in (one for one in cases if not one.get("numbers")):
            counted = tried(folder, case)
            counted.engine = next(
                (one.engine for one in counts[case["name"]].values() if one.engine), ""
            )
            counts[case["name"]]["try"] = counted
    lines, silent = table(cases, counts)
    print("\n".join(lines))
    if options.json:
        rows = {
            name: {way: vars(one) for way, one in ways.items()} for name, ways in counts.items()
        }
        options.json.write_text(json.dumps(rows, indent=1))
    return 1 if silent else 0


def engines_of(folder: Path, case: Mapping[str, Any]) -> Sequence[str]:
    """Return the engines that a case runs on: only OpenVINO reads an IR or a .tflite."""
    if "engines" in case:
        return list(case["engines"])
    path = network(folder, case)
    inside = [path, *path.iterdir()] if path.is_dir() else [path]
    only = any(each.suffix in {".xml", ".tflite"} for each in inside)
    return ENGINES[1:] if only else ENGINES


def source_of(folder: Path, case: Mapping[str, Any]) -> Path:
    """Return what a case looks at: its own table, or the pictures."""
    if "rows" in case:
        return folder / "cases" / case["name"] / case["rows"]
    return folder / "pictures"


def network(folder: Path, case: Mapping[str, Any]) -> Path:
    """Return what is given to the agent."""
    return folder / "cases" / case["name"] / case["model"]


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the agent to its end."""
    return subprocess.run(
        [sys.executable, "-m", "edge_agent", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def run(
    folder: Path,
    engine: str,
    cases: Sequence[Mapping[str, Any]],
    counts: Mapping[str, dict[str, Count]],
) -> None:
    """Install cases, run them in one agent over a broker, and count."""
    place = folder / "runs" / f"{engine}-{cases[0]['name']}-{time.time_ns()}"
    broker = Mosquitto(place)
    listener = Listener(broker.port)
    agent: AgentProcess | None = None
    try:
        # A machine that is busy says nothing about a model.
        trial = {"timeout_s": PATIENCE}
        base: dict[str, Any] = {"engine": engine, "device_id": "parity", "trial": trial}
        config = place / "config.toml"
        config.write_text(agent_settings("parity", broker.url, [], **base))
        running = []
        for case in cases:
            name = case["name"]
            added = command(
                "add", network(folder, case), "--name", name, "--config", config, cwd=place
            )
            if added.returncode:
                counts[name][engine] = Count(refused=last_line(added.stderr))
            else:
                running.append(case)
        pipelines = [
            {
                "name": case["name"],
                "source": f"{'csv' if 'rows' in case else 'dir'}:{source_of(folder, case)}",
                "model": case["name"],
            }
            for case in running
        ]
        if not pipelines:
            return
        agent = AgentProcess(place, agent_settings("parity", broker.url, pipelines, **base))
        for case in running:
            name = case["name"]
            results = heard(listener, agent, name, case)
            if isinstance(results, str):
                counts[name][engine] = Count(refused=results)
            else:
                counted = count(case, results)
                if counted.wrong and case["precision"] != "FP32" and "rows" not in case:
                    counted.engine = apart_by_themselves(folder, case)
                counts[name][engine] = counted
    finally:
        if agent is not None:
            agent.stop()
        listener.client.loop_stop()
        broker.stop()


def heard(
    listener: Listener, agent: AgentProcess, name: str, case: Mapping[str, Any]
) -> dict[str, list[Finding]] | str:
    """Return the findings of a pipeline by picture or row; why there are none where it is refused.

    Raises:
        TimeoutError: neither comes for long: that says nothing about the model.

    """
    deadline = time.monotonic() + PATIENCE
    topic = f"edge/parity/result/{name}"
    while time.monotonic() < deadline and agent.process.poll() is None:
        sort = "seq" if "rows" in case else "file"
        results = {str(one[sort]): findings_of(one) for one in listener.on(topic)}
        if len(results) >= len(case["expected"]):
            return results
        why = refusal(listener, name)
        if why is not None:
            return why
        time.sleep(0.1)
    raise TimeoutError(f"{name}: no results: {last_line(agent.words())}")


def findings_of(result: Mapping[str, Any]) -> list[Finding]:
    """Return what a result has found, each with a label and a score."""
    if "anomaly" in result:
        return [{"label": "anomaly", "score": result["anomaly"]["score"]}]
    if "values" in result:
        return [{"label": name, "score": value} for name, value in result["values"].items()]
    found: list[Finding] = result.get("detections", result.get("classes")) or []
    return [{**one, "label": one.get("text", one["label"])} for one in found]


def refusal(listener: Listener, name: str) -> str | None:
    """Return why the agent does not run a model; None: it does, or has yet to find out."""
    last = (listener.last(f"edge/parity/model/{name}") or {}).get("last") or {}
    if last.get("outcome") == "rejected":
        return str(last["why"])
    reasons = (listener.last("edge/parity/health") or {}).get("why", ())
    found = (why for why in reasons if why.startswith(f"model {name}:") and "not loaded" in why)
    return next(found, None)


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def count(case: Mapping[str, Any], results: Mapping[str, Sequence[Finding]]) -> Count:
    """Compare all pictures of a case."""
    total = Count()
    for picture, expected in case["expected"].items():
        inside = [clipped(one, picture) for one in expected]
        compare(case, picture, inside, results.get(picture, []), total)
    return total


def clipped(one: Finding, picture: str) -> Finding:
    """Cut a box at the picture's edges, as the agent does; RT-DETR's predictor does not."""
    if "box" not in one:
        return one
    width, height = map(int, Path(picture).stem.partition("_")[2].split("x"))
    limits = (width, height, width, height)
    box = [min(max(at, 0), limit) for at, limit in zip(one["box"], limits, strict=True)]
    return {**one, "box": box}


def compare(
    case: Mapping[str, Any],
    picture: str,
    expected: Sequence[Finding],
    found: Sequence[Finding],
    total: Count,
) -> None:
    """Match two lists of findings, best first; count what is right, explained or wrong."""
    total.expected += len(expected)
    total.found += len(found)
    left = list(range(len(found)))
    alone: list[tuple[str, Finding]] = []
    for one in expected:
        match = next((at for at in left if same(case, one, found[at])), None)
        if match is None:
            alone.append(("missing", one))
        else:
            left.remove(match)
            total.right += 1
    alone += [("too much", found[at]) for at in left]
    sides = {"missing": (expected, found), "too much": (found, expected)}
    reasons = [explanation(case, one, *sides[what]) for what, one in alone]
    while more := [at for at in range(len(alone)) if follows(case, alone, reasons, at)]:
        for at in more:
            reasons[at] = "tie"
    for (what, one), why in zip(alone, reasons, strict=True):
        setattr(total, why, getattr(total, why) + 1)
        if why == "wrong":
            total.examples.append(f"{picture}: {what} {json.dumps(one)}")


def same(case: Mapping[str, Any], one: Finding, other: Finding) -> bool:
    """Whether two findings are the same."""
    if one["label"] != other["label"] or abs(one["score"] - other["score"]) > SCORE:
        return False
    if "box" not in one:
        return True
    if not all(close(one[key], other[key]) for key in ("corners", "points") if key in one):
        return False
    if overlap(one["box"], other["box"]) >= OVERLAP:
        return True
    apart = max(abs(a - b) for a, b in zip(one["box"], other["box"], strict=True))
    return bool(case.get("whole_pixels")) and apart <= PIXELS


def close(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """Whether corners, from whichever on, or points are where the others are.

    Key points without a score are not compared.
    """
    if len(one[0]) == 2:
        turns = (other[start:] + other[:start] for start in range(len(other)))
    else:
        turns = iter([other])
    return any(
        all(
            abs(a - b) <= NEAR or (len(point) > 2 and not point[2])
            for point, there in zip(one, turned, strict=True)
            for a, b in zip(point[:2], there[:2], strict=True)
        )
        for turned in turns
    )


def explanation(
    case: Mapping[str, Any], one: Finding, own: Sequence[Finding], others: Sequence[Finding]
) -> str:
    """Return why a finding has no counterpart: edge, tie, area, or wrong.

    *own* is the list that it is in, *others* the one that it is not in.
    """
    score = one["score"]
    if edge(case, one):
        return "edge"
    if (whole_area(one) <= 1) if case.get("whole_pixels") else (area(one) <= 0):
        return "area"
    full = len(others) >= case["most"]
    if full and score <= min(other["score"] for other in others) + SCORE:
        return "tie"
    if case["iou"] is not None and "box" in one:
        for other in others:
            near = abs(other["score"] - score) <= TIE and not same(case, one, other)
            if near and overlap(one["box"], other["box"]) >= case["iou"] - 0.05:
                return "tie"
        # Ultralytics moves the classes apart in float32, and measures what is left to 0.06 pixels.
        for other in own:
            if abs(overlap(one["box"], other["box"]) - case["iou"]) <= 0.03 and other is not one:
                return "tie"
    return "wrong"


def follows(
    case: Mapping[str, Any], alone: Sequence[tuple[str, Finding]], reasons: Sequence[str], at: int
) -> bool:
    """Whether a finding without a reason is suppressed by one that only a tie has put there."""
    what, one = alone[at]
    if reasons[at] != "wrong" or case["iou"] is None or "box" not in one:
        return False
    return any(
        reason == "tie"
        and side != what
        and other["label"] == one["label"]
        and other["score"] >= one["score"] - SCORE
        and overlap(one["box"], other["box"]) >= case["iou"]
        for (side, other), reason in zip(alone, reasons, strict=True)
    )


def edge(case: Mapping[str, Any], one: Finding) -> bool:
    """Whether a finding hardly reaches the threshold."""
    return bool(abs(one["score"] - case["threshold"]) <= SCORE)


def area(one: Finding) -> float:
    """Return the area of a finding's box, pixels; of one without a box 1."""
    if "box" not in one:
        return 1.0
    x1, y1, x2, y2 = one["box"]
    return float(max(x2 - x1, 0) * max(y2 - y1, 0))


def whole_area(one: Finding) -> float:
    """Return the area of a box whose corners are rounded; of the agent's they have a digit more."""
    x1, y1, x2, y2 = one["box"]
    sides = (round(high - 0.05) - round(low + 0.05) for low, high in ((x1, x2), (y1, y2)))
    return float(math.prod(max(side, 0) for side in sides))


def apart_by_themselves(folder: Path, case: Mapping[str, Any]) -> str:
    """Run the engines without the agent on the same tensors; return how far apart they are.

    Each with its optimizations and without: what the exporter's own code runs on is among them.

    Returns:
        "" where all agree within 0.01 on every score, in units of the largest of its tensor.

    """
    import cv2
    import numpy as np

    runs = by_themselves(network(folder, case))
    (height, width), dtype = next(iter(runs.values()))[0]
    worst, which = 0.0, ""
    for picture in sorted((folder / "pictures").iterdir()):
        pixels = cv2.resize(cv2.imread(str(picture)), (width, height))
        tensor = np.ascontiguousarray(pixels[:, :, ::-1].transpose(2, 0, 1)[None], dtype) / 255
        outputs = {name: [scores(one) for one in run(tensor)] for name, (_, run) in runs.items()}
        for name, other in itertools.combinations(outputs, 2):
            for one, two in zip(outputs[name], outputs[other], strict=True):
                apart = float(np.abs(one - two).max() / max(1.0, np.abs(one).max()))
                if apart > worst:
                    worst, which = apart, f"{name} and {other}"
    return f"by themselves {which} are {worst:.2f} apart" if worst > SCORE else ""


def by_themselves(path: Path) -> dict[str, tuple[tuple[tuple[int, int], str], Run]]:
    """Open a network on each engine, optimized and not.

    Returns:
        By name: height, width and type of the input, and what runs it.

    """
    import onnxruntime
    import openvino

    path = next(path.glob("*.xml")) if path.is_dir() else path
    opened: dict[str, tuple[tuple[tuple[int, int], str], Run]] = {}
    core = openvino.Core()
    for name, more in (("OpenVINO", {}), ("OpenVINO without LPT", {"LP_TRANSFORMS_MODE": "NO"})):
        compiled = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **more})
        port = compiled.inputs[0]
        _, _, height, width = port.shape
        form = (height, width), port.get_element_type().to_dtype().name
        opened[name] = form, lambda tensor, compiled=compiled: list(compiled(tensor).values())
    if path.suffix != ".onnx":
        return opened
    levels = onnxruntime.GraphOptimizationLevel
    for name, level in (
        ("ONNX Runtime", levels.ORT_ENABLE_ALL),
        ("ONNX Runtime without optimization", levels.ORT_DISABLE_ALL),
    ):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(path, options)
        entry = session.get_inputs()[0].name
        opened[name] = (
            form,
            lambda tensor, session=session, entry=entry: session.run(None, {entry: tensor}),
        )
    return opened


def scores(output: Any) -> Any:
    """Return the scores of an output: of columns for boxes without these, of a list in order."""
    import numpy as np

    if output.ndim == 3 and output.shape[2] == 6:
        return np.sort(output[..., 4])
    return output[:, 4:] if output.ndim == 3 and output.shape[1] < output.shape[2] else output


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the intersection over union of two boxes."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    both = max(wide, 0.0) * max(high, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return both / (sum(areas) - both) if both else 0.0


def tried(folder: Path, case: Mapping[str, Any]) -> Count:
    """Run `try` and compare the labels and scores that it prints: of a picture the best six."""
    place = folder / "runs" / "try"
    place.mkdir(parents=True, exist_ok=True)
    done = command("try", source_of(folder, case), network(folder, case), cwd=place)
    total = Count()
    if done.returncode:
        total.refused = last_line(done.stderr)
        return total
    lines = [line for line in done.stdout.splitlines() if " try #" in line]
    for line in lines:  # not of every picture: where they come fast, a few are shown
        number, picture, text = line.partition(" try #")[2].split(" ", 2)
        picture = number if "rows" in case else picture
        expected = case["expected"][picture]
        shown = list(read_findings(text.strip(), {one["label"] for one in expected}))
        total.expected += min(len(expected), 6 if shown and "box" in (expected or [{}])[0] else 5)
        total.found += len(shown)
        for place_, one in enumerate(shown):
            # It prints two digits.
            near = [
                other
                for other in expected
                if other["label"] == one["label"]
                and abs(other["score"] - one["score"]) <= SCORE + 0.005
            ]
            best = expected[place_] if place_ < len(expected) else None
            if near:
                total.right += 1
            elif one["score"] <= case["threshold"] + SCORE + 0.005:
                total.edge += 1
            elif best is not None and abs(best["score"] - one["score"]) <= TIE + 0.005:
                total.tie += 1
            else:
                total.wrong += 1
                total.examples.append(f"{picture}: printed {one}, expected {best}")
        sure = [one for one in expected if not edge(case, one) and area(one) > 0]
        if not shown and sure:
            total.wrong += 1
            total.examples.append(f"{number} {picture}: printed nothing of {len(sure)}")
    if not lines:
        total.wrong += 1
        total.examples.append("no result printed")
    return total


def read_findings(text: str, labels: set[str]) -> Iterator[Finding]:
    """Read label and score of each finding off a line that `try` has printed."""
    while text:
        text = re.sub(r"^class (?=\d+ )", "", text)  # so that a number is not taken for a count
        known = sorted((one for one in labels if text.startswith(f"{one} ")), key=len)
        label = known[-1] if known else text.partition(" ")[0]
        score = re.match(r" (\d\.\d\d)(?!\d)", text[len(label) :])
        if score is None:
            return
        yield {"label": label, "score": float(score[1])}
        text = text[len(label) + 5 :]
        if not text.startswith(", "):
            return
        text = text[2:]


def table(
    cases: Sequence[Mapping[str, Any]], counts: Mapping[str, Mapping[str, Count]]
) -> tuple[list[str], int]:
    """Return the table's lines, and how many silent mismatches there are."""
    numbers = ("expected", "found", "right", "edge", "tie", "area", "wrong")
    columns = ("case", "exporter", "precision", "way", *numbers, "verdict")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    examples: list[str] = []
    silent = engines = refused = 0
    for case in cases:
        for way, one in counts[case["name"]].items():
            verdict = "right"
            if one.refused:
                verdict = f"refused: {one.refused}"
                refused += not case.get("refused")
            elif case.get("refused"):
                verdict, silent = "WRONG: to be refused", silent + 1
            elif one.wrong and one.engine:
                verdict, engines = f"the engine's own: {one.engine}", engines + 1
            elif one.wrong:
                verdict, silent = "WRONG", silent + 1
                examples += [f"{case['name']} {way}: {text}" for text in one.examples[:3]]
            if case["note"] and not case.get("refused"):
                verdict += f" ({case['note']})"
            cells = [case["name"], case["exporter"], case["precision"], way]
            cells += [getattr(one, key) for key in numbers]
            lines.append(f"| {' | '.join(map(str, [*cells, verdict]))} |")
    summary = f"{silent} silent mismatches, {engines} that are an engine's own, "
    summary += f"{refused} refused that are not to be"
    return [*lines, "", summary, *examples], silent


if __name__ == "__main__":
    sys.exit(main())
