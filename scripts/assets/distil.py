"""Train a small detector to find what another one finds, in frames that nobody has labeled.

    python scripts/assets/distil.py TEACHER --frames SOURCE --out DIR [--width W] [--epochs N]

The teacher is a model folder of the agent's that finds boxes, run by the agent's own code. Its
boxes are the truth that the trainer of `models/parts-inspection` gets; what it is in doubt about
counts neither recipe. A quarter of the frames is not trained on, but judged on. The student comes
out as a model folder in float32; `edge-agent quantize` makes eight bits of it.

Needs: edge-agent with its extra tools, and torch.
"""

import argparse
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
from draw_conveyor import INPUT
from make_common import export, in_onnxruntime, write_golden
from make_parts_inspection import (
    BATCH,
    MANIFEST,
    NAMES,
    Detector,
    Exported,
    Pictures,
    best_threshold,
    model_ready,
    new_detector,
    run_all,
    train,
)

from edge_agent.cli.samples import Samples
from edge_agent.core.errors import AgentError
from edge_agent.core.types import Detections, Request, Sample
from edge_agent.inference.model import Model, default_threshold, load_model
from edge_agent.models.manifest import ModelFolder, load
from edge_agent.sources.spec import guess_source, parse_source
from edge_agent.tools.evaluation import EXACT, Evaluator
from edge_agent.tools.folders import move_to, new_folder

STRETCH = 25  # frames in a row; those of a clip are so like their neighbors that single ones
EVERY = 4  # would be no test: of so many stretches one is judged on
MOST_JUDGED = 160
DOUBT = 0.5  # share of the teacher's threshold from which a box counts neither way


def write_folder(
    net: Detector, folder: Path, name: str, labels: list[str], threshold: float
) -> None:
    """Write what makes a student a model folder."""
    folder.mkdir(exist_ok=True)
    export(Exported(net), (1, 3, INPUT[1], INPUT[0]), folder / "model.onnx", NAMES)
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    (folder / "model.toml").write_text(MANIFEST.format(name=name, threshold=threshold))


def watch(teacher: ModelFolder, student: Model, frames: str) -> tuple[Pictures, list[Sample]]:
    """Look at frames with the teacher.

    Args:
        teacher: that finds boxes.
        student: whose manifest says how a frame becomes an input.
        frames: a source that ends.

    Returns:
        Pictures of the student's size with what the teacher finds in them, and frames to judge on.

    """
    spec = parse_source(guess_source(frames), Path.cwd())
    if spec.live or spec.kind != "picture":
        raise SystemExit(f"--frames: {frames}: expected a folder of pictures or a clip")
    if spec.scheme.name == "file" and "pace" not in spec.text:
        mark = "&" if "?" in spec.text else "?"
        spec = parse_source(f"{spec.text}{mark}pace=max", Path.cwd())
    numbers = {label: number for number, label in enumerate(teacher.labels)}
    sure = default_threshold(teacher)
    images, boxes, labels = [], [], []
    judged: list[Sample] = []
    step = 1
    model, _ = load_model(teacher, [EXACT], "picture", checked=True)
    with Samples(spec, teacher.manifest.input, threading.Event()) as samples:
        for number, sample in enumerate(samples.follow()):
            if number // STRETCH % EVERY == EVERY - 1:
                # Evenly over the whole length, however long that is.
                if number % step == 0:
                    judged.append(sample)
                if len(judged) == MOST_JUDGED:
                    judged, step = judged[::2], step * 2
                continue
            found = model.infer(sample, threshold=sure * DOUBT).findings
            assert isinstance(found, Detections)
            ready = student.prepare(Request(sample))
            assert ready.placement is not None
            pixels = student.unfolded(ready.tensors)[NAMES[0]][0].transpose(1, 2, 0) * 255
            images.append(np.round(pixels).astype(np.uint8)[..., ::-1])
            boxes.append(ready.placement.forward(found.boxes))
            known = np.array([numbers[label] for label in found.labels], np.int64)
            labels.append(np.where(found.scores >= sure, known, -1))
    model.close()
    if len(images) < BATCH or not judged:
        raise SystemExit(f"--frames: {frames}: has too few frames; expected 100 or more")
    return Pictures(np.stack(images), boxes, labels), judged


def distil(options: argparse.Namespace) -> None:
    """Make the student."""
    teacher = load(options.teacher)
    if teacher.manifest.task != "detection":
        raise SystemExit(f"{options.teacher}: is for {teacher.manifest.task}, expected detection")
    labels = list(teacher.labels)
    threshold = default_threshold(teacher)
    name = options.out.name
    net = new_detector(len(labels), options.width)
    with new_folder(options.out) as work, tempfile.TemporaryDirectory() as scratch:
        untrained, place = Path(scratch) / "untrained", work / "student"
        write_folder(net, untrained, name, labels, threshold)
        model, _ = load_model(load(untrained), [EXACT], "picture", checked=True)
        data, judged = watch(teacher, model, options.frames)
        model.close()
        count = sum(int(np.count_nonzero(each >= 0)) for each in data.labels)
        print(f"{len(data)} frames with {count} boxes to learn from, {len(judged)} to judge on")
        evaluator = Evaluator(teacher, judged, None)
        net = train(net, data, options.epochs, lambda _net, _epoch: None)
        write_folder(net, place, name, labels, threshold)
        network = in_onnxruntime(place / "model.onnx")
        threshold = best_threshold(run_all(network, data), data)
        (place / "model.toml").write_text(MANIFEST.format(name=name, threshold=threshold))
        cases = np.stack([model_ready(image) for image in data.images[:2]])
        write_golden(place, cases, np.stack([network(case) for case in cases]), NAMES)
        for title, folder in (("before", untrained), ("after", place)):
            share = evaluator.judge(folder, EXACT).agreement
            print(f"agreement with the teacher {title}: {share:.1%}")
        move_to(place, options.out)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path, help="model folder")
    parser.add_argument("--frames", required=True, help="a folder of pictures, or a clip")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--width", type=float, default=0.5, help="of its layers; 1: the bundled's")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        distil(options)
    except AgentError as problem:
        raise SystemExit(str(problem)) from None


if __name__ == "__main__":
    main()
