"""Make `models/bearing-vibration` and `models/media/bearing.csv` from nothing but a seed.

    python scripts/assets/make_bearing_vibration.py [--quick]

A simulator writes the acceleration that a sensor on a bearing's housing would feel: shaft
harmonics, broadband noise through the housing's resonances, changing speed and load, and
six kinds of fault. An autoencoder learns what healthy features look like and nothing else;
what it cannot reproduce is the anomaly score. The model card is written from held-out
recordings.

Needs: torch, numpy, onnx, onnxruntime, openvino. A few minutes on two cores.
"""

import multiprocessing as mp
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from make_common import (
    Floats,
    Runner,
    arguments,
    export,
    in_onnxruntime,
    in_openvino,
    milliseconds,
    seed_everything,
    table,
    to_int8,
    vnni,
    workers,
    write_golden,
)
from torch import Tensor, nn

Doubles = npt.NDArray[np.float64]
Rng = np.random.Generator

RATE = 6400  # samples a second
WINDOW = 2048
HOP = 1024
SECONDS = 4  # length of one simulated recording
NAMES = ("accel", "score")
FALSE_ALARMS = 0.002  # share of healthy validation windows that may lie above the threshold

# A deep-groove ball bearing with nine balls, in events a turn of the shaft.
BPFO, BPFI, BSF, FTF = 3.585, 5.415, 2.357, 0.398

FAULTS = ("outer race", "inner race", "ball", "imbalance", "looseness", "poor lubrication")
SEVERITIES = {"early": 0.0, "clear": 1.0, "severe": 2.0}

SEEDS = {"train": 11, "validation": 22, "test": 33, "faults": 44, "demo": 55}


# ---------------------------------------------------------------------------
# The machine
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault and how far it has gone: 0 early, 1 clear, 2 severe."""

    kind: str
    severity: float
    begins: float = 0.0  # second of the recording
    grows: float = 0.0  # seconds from nothing to `severity`


def _slow(rng: Rng, count: int, period: float) -> Doubles:
    """Give a smooth random curve, about -1 to 1, that changes within `period` seconds."""
    knots = max(int(count / RATE / period) + 3, 4)
    return np.interp(np.linspace(0, knots - 1, count), np.arange(knots), rng.uniform(-1, 1, knots))


def _through(
    signal: Doubles, modes: Sequence[tuple[float, float, float]], direct: float
) -> Doubles:
    """Pass a force through the housing: its resonances (hertz, damping, strength) and itself."""
    size = len(signal)
    f = np.fft.rfftfreq(2 * size, 1 / RATE)
    response = np.full(len(f), direct, complex)
    for hertz, damping, strength in modes:
        ratio = f / hertz
        response += strength * 2 * damping * 1j * ratio / (1 - ratio**2 + 2j * damping * ratio)
    return np.fft.irfft(np.fft.rfft(signal, 2 * size) * response)[:size]


def _strikes(rng: Rng, turns: Doubles, order: float, jitter: float) -> npt.NDArray[np.int64]:
    """Give the samples at which something strikes `order` times a turn, with some slip."""
    count = int((turns[-1] - turns[0]) * order) + 2
    gaps = 1 / order * rng.normal(1, jitter, count).clip(0.7, 1.3)
    at = turns[0] + rng.uniform(0, 1 / order) + np.cumsum(gaps)
    at = at[at < turns[-1]]
    return np.searchsorted(turns, at)


def simulate(rng: Rng, seconds: float, fault: Fault | None = None) -> Floats:
    """Write one recording in m/s²; each is a slightly different day of the same machine."""
    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    speed = rng.uniform(23.5, 26.5) * (1 + 0.008 * _slow(rng, count, 1.5))  # turns a second
    turns = np.cumsum(speed) / RATE + rng.uniform()
    load = np.clip(rng.uniform(0.35, 0.95) + 0.12 * _slow(rng, count, 1.0), 0.2, 1.1)
    modes = [
        (rng.normal(620, 12), 0.05, 0.7),
        (rng.normal(1480, 25), 0.035, 1.0),
        (rng.normal(2350, 40), 0.03, 1.3),
    ]
    how_much = np.zeros(count)
    if fault is not None:
        since = time - fault.begins
        how_much = np.clip(since / fault.grows, 0, 1) if fault.grows else (since >= 0).astype(float)
    kind = fault.kind if fault is not None else ""
    level = fault.severity if fault is not None else 0.0

    # The shaft: a little imbalance and misalignment are healthy.
    harmonics = np.array([0.42, 0.2, 0.1, 0.06]) * np.exp(rng.normal(0, 0.12, 4))
    phases = rng.uniform(0, 2 * np.pi, 24)
    signal = np.zeros(count)
    for order, size in enumerate(harmonics, 1):
        signal += size * (0.8 + 0.4 * load) * np.cos(2 * np.pi * order * turns + phases[order])
    signal += 0.05 * np.exp(rng.normal(0, 0.15)) * np.cos(2 * np.pi * 100 * time + phases[0])
    if kind == "imbalance":
        extra = harmonics[0] * (0.9, 1.8, 4.0)[round(level)]
        signal += how_much * extra * np.cos(2 * np.pi * turns + phases[1])
    if kind == "looseness":
        extra = 0.12 * 2**level
        for step in range(1, 20):  # halves of the shaft's speed
            size = extra * np.exp(-step / 12) * (0.5 if step % 2 else 1.0)
            signal += how_much * size * np.cos(np.pi * step * turns + phases[step])

    # Rolling and flow: noise that grows with the load, colored by the housing.
    force = rng.normal(0, 1, count) * (0.3 + 0.35 * load) * np.exp(rng.normal(0, 0.06))
    if kind == "poor lubrication":
        force *= 1 + how_much * (0.25, 0.6, 1.5)[round(level)]
    for at in rng.integers(0, count, rng.poisson(0.15 * seconds)):  # somebody sets something down
        force[at] += rng.uniform(2, 8)

    # A damaged surface strikes each time something rolls over it.
    jitter = 0.01
    size = 3.0 * 2**level * np.exp(rng.normal(0, 0.1))
    if kind == "outer race":
        for at in _strikes(rng, turns, BPFO, jitter):
            force[at] += how_much[at] * size * (0.7 + 0.5 * load[at]) * rng.normal(1, 0.1)
    elif kind == "inner race":  # hardest where the damage passes the load
        for at in _strikes(rng, turns, BPFI, jitter):
            zone = max(np.cos(2 * np.pi * turns[at]), -0.3) * 0.75 + 0.5
            force[at] += how_much[at] * size * 1.2 * zone * rng.normal(1, 0.1)
    elif kind == "ball":  # twice a spin, in and out of the load with the cage
        for at in _strikes(rng, turns, 2 * BSF, 2 * jitter):
            zone = 0.6 + 0.5 * np.cos(2 * np.pi * FTF * turns[at])
            force[at] += how_much[at] * size * 1.1 * zone * rng.normal(1, 0.15)
    signal += _through(force, modes, 0.35)
    signal += rng.normal(0, 0.02, count)  # the sensor's own
    return signal.astype(np.float32)


def windows(signal: Floats) -> Floats:
    """Cut a recording as the agent does."""
    starts = range(0, len(signal) - WINDOW + 1, HOP)
    return np.stack([signal[s : s + WINDOW] for s in starts])[:, None]


def _recording(split: str, fault: tuple[str, float] | None, index: int) -> Floats:
    salt = 0 if fault is None else 1000 * (1 + FAULTS.index(fault[0])) + round(100 * fault[1])
    rng = np.random.default_rng([SEEDS[split], salt, index])
    return windows(simulate(rng, SECONDS, None if fault is None else Fault(*fault)))


def recordings(split: str, count: int, fault: tuple[str, float] | None = None) -> Floats:
    """Simulate recordings and cut them: [windows, 1, samples]."""
    with mp.get_context("spawn").Pool(workers()) as pool:
        return np.concatenate(
            pool.map(partial(_recording, split, fault), range(count), chunksize=8)
        )


# ---------------------------------------------------------------------------
# The model
# ---------------------------------------------------------------------------

KERNEL, STEP = 64, 16  # short spectra: 100 Hz apart, 400 a second
GROUPS = ((2, 8), (8, 13), (13, 19), (19, 26), (26, 32))  # bands whose envelope is looked at


class Features(nn.Module):
    """What an analyst would look at, as fixed arithmetic inside the model.

    The raw window is mostly noise, which no autoencoder can reproduce and which hides a weak
    knock. So the window becomes four sets of features that noise averages out of: energy by
    band, low-frequency lines, spectrum of each band group's envelope, and its peakedness.
    """

    def __init__(self) -> None:
        super().__init__()
        n = np.arange(KERNEL)
        hann = np.hanning(KERNEL + 1)[:-1]
        bands = np.arange(KERNEL // 2)
        angle = 2 * np.pi * bands[:, None] * n / KERNEL
        waves = np.concatenate([np.cos(angle) * hann, np.sin(angle) * hann]) * np.sqrt(2 / KERNEL)
        self.bands = len(bands)
        self.frames = (WINDOW - KERNEL) // STEP + 1
        self._keep("waves", waves[:, None])

        pick = np.zeros((len(GROUPS), self.bands))
        for row, (low, high) in enumerate(GROUPS):
            pick[row, low:high] = 1 / (high - low)
        self._keep("pick", pick)

        # The envelope's spectrum from about 16 Hz up to half of its rate.
        m = np.arange(self.frames)
        lines = np.arange(5, self.frames // 2 + 1)[:56]
        turn = 2 * np.pi * m[:, None] * lines / self.frames
        taper = np.hanning(self.frames + 2)[1:-1, None]
        taper = taper / np.sqrt((taper**2).sum())
        self._keep("cosines", np.cos(turn) * taper)
        self._keep("sines", np.sin(turn) * taper)

        # Low frequencies: thin the samples out eight times, then 3 Hz lines up to 300 Hz.
        reach = np.arange(-48, 48) + 0.5
        low_pass = np.sinc(reach / 8 * 0.9) * np.hamming(96)
        self._keep("low_pass", (low_pass / low_pass.sum())[None, None])
        size = (WINDOW - 96) // 8 + 1
        lines = np.arange(4, 100)
        turn = 2 * np.pi * np.arange(size)[:, None] * lines / size
        taper = np.hanning(size + 2)[1:-1, None]
        taper = taper / taper.sum()
        self._keep("low_cosines", np.cos(turn) * taper)
        self._keep("low_sines", np.sin(turn) * taper)

    def _keep(self, name: str, values: Doubles) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Give the features of windows [B, 1, samples]."""
        parts = nn.functional.conv1d(x, self.waves, stride=STEP)
        power = parts[:, : self.bands] ** 2 + parts[:, self.bands :] ** 2
        energy = torch.log(power.mean(2) + 1e-5)

        envelope = torch.sqrt(torch.matmul(self.pick, power) + 1e-8)
        level = envelope.mean(2, keepdim=True)
        swing = envelope / level - 1
        lines = torch.matmul(swing, self.cosines) ** 2 + torch.matmul(swing, self.sines) ** 2
        # The strongest of 14 neighbors: a line may lie anywhere, the shaft's speed varies.
        strongest = nn.functional.max_pool1d(lines, 14, 14)
        rhythm = torch.log(torch.cat([strongest, lines.mean(2, keepdim=True)], 2) + 1e-4).flatten(1)
        peaked = torch.log((swing**2).mean(2) + 1e-4)
        sharp = torch.log((swing**4).mean(2) + 1e-4)

        low = nn.functional.conv1d(x, self.low_pass, stride=8)[:, 0]
        low_lines = (
            torch.matmul(low, self.low_cosines) ** 2 + torch.matmul(low, self.low_sines) ** 2
        )
        low_lines = nn.functional.avg_pool1d(low_lines[:, None], 4, 4)[:, 0]
        return torch.cat([energy, rhythm, peaked, sharp, torch.log(low_lines + 1e-6)], 1)


class Autoencoder(nn.Module):
    """The part that learns: a dense autoencoder of standardized features, run in INT8.

    Its layers are convolutions over a length of one. As matrix products, OpenVINO 2026.4
    joins them with the residual that follows and crashes while compiling the float model.

    Its waist is clipped: without limits it would follow a machine whose healthy quantities
    (load, imbalance) merely grow beyond anything healthy, and so hide exactly that.
    """

    def __init__(self, width: int, hidden: int = 128, waist: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(width, hidden, 1), nn.ReLU(), nn.Conv1d(hidden, waist, 1), nn.Hardtanh(),
            nn.Conv1d(waist, hidden, 1), nn.ReLU(), nn.Conv1d(hidden, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Give back what healthy features close to these look like."""
        return self.layers(x[..., None])[..., 0]


class Anomaly(nn.Module):
    """Window in, one number out: how far its features are from any healthy ones."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Features()
        with torch.no_grad():
            width = self.features(torch.zeros(1, 1, WINDOW)).shape[1]
        self.autoencoder = Autoencoder(width)
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("usual", torch.ones(width))  # spread of healthy residuals

    def standard(self, x: Tensor) -> Tensor:
        """Give features in units of their healthy spread."""
        return (self.features(x) - self.center) / self.spread

    def forward(self, x: Tensor) -> Tensor:
        """Give the mean squared residual in units of what is usual: about 1 when healthy.

        The residual is taken from the features themselves, not from the autoencoder's input:
        that one is rounded and cut to what 8 bits hold, which would hide large deviations.
        """
        away = self.features(x) - self.center
        residual = away - self.autoencoder(away * (1 / self.spread)) * self.spread
        return ((residual * (1 / (self.spread * self.usual))) ** 2).mean(1, keepdim=True)


def train(healthy: Floats, validation: Floats, epochs: int) -> Anomaly:
    """Learn healthy features; the usual residual is measured on windows not learned from."""
    seed_everything(5)
    model = Anomaly()
    with torch.no_grad():
        raw = torch.cat([model.features(b) for b in torch.from_numpy(healthy).split(512)])
        model.center.copy_(raw.mean(0))
        model.spread.copy_(raw.std(0))
        z = (raw - model.center) / model.spread
        held = torch.cat([model.standard(b) for b in torch.from_numpy(validation).split(512)])
    optimizer = torch.optim.AdamW(model.autoencoder.parameters(), lr=2e-3, weight_decay=1e-3)
    batch = 256
    steps = epochs * (len(z) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for epoch in range(epochs):
        for rows in torch.randperm(len(z))[: len(z) // batch * batch].split(batch):
            loss = ((model.autoencoder(z[rows]) - z[rows]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 25 == 24:
            with torch.no_grad():
                apart = ((model.autoencoder(held) - held) ** 2).mean().item()
            print(
                f"epoch {epoch + 1}/{epochs}: {loss.item():.3f}, validation {apart:.3f}", flush=True
            )
    with torch.no_grad():
        model.usual.copy_((model.autoencoder(held) - held).pow(2).mean(0).sqrt())
    return model.eval()


# ---------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------

MANIFEST = """\
name    = "bearing-vibration"
version = "1"
task    = "anomaly"
file    = "model.onnx"

[input]
channels = ["accel"]    # m/s², across the shaft, at the bearing's housing
window   = {window}
hop      = {hop}
rate_hz  = {rate}
mean     = [0.0]
scale    = [1.0]
layout   = "ct"

[output]
decoder   = "score"     # about 1 for a healthy machine
threshold = {threshold}
"""

CARD = """\
# bearing-vibration

Listens to the acceleration of a bearing's housing and says how unlike a healthy machine each
window of {length:.2f} s is. Bundled for demonstration and tests.

**Everything it knows is simulated.** No real machine was measured. It stands for one imaginary
machine (a nine-ball bearing on a shaft of 23.5 to 26.5 turns a second, one accelerometer at
{rate} samples a second) and says nothing about any other: on yours it will alarm all the time
or never. What carries over is the method: `scripts/assets/make_bearing_vibration.py` is the
whole of it, and its simulator is the part to replace by recordings of your healthy machine.

## Model

* Input `accel` [1, 1, {window}], float32, m/s². Output `score` [1, 1], the mean squared residual
  of {features} features in units of what is usual: about 1 when healthy, threshold {threshold}.
* Inside the graph: fixed arithmetic turns the window into features (energy in 32 bands, lines
  below 300 Hz, spectrum and peakedness of the envelope in five groups of bands), in float32,
  because squares and logarithms do not fit 8 bits. A dense autoencoder with a clipped waist,
  {parameters} weights, reproduces them, in INT8 (QDQ, unsigned 8-bit activations, signed 8-bit
  weights per channel in 7 bits, so that CPUs without VNNI give the same results).
* The autoencoder has seen healthy recordings only. It tells that something is wrong, not what.

## Data

Each simulated recording ({seconds} s) has its own speed, load, imbalance and resonances, all of
which drift, plus the sensor's noise and now and then a knock from outside, as healthy too.
Faults: strikes at the bearing's ball-pass frequencies (outer race, inner race, ball) that ring
the housing, imbalance, looseness, poor lubrication. *Early*, *clear* and *severe* double the
size of the fault each time or more: the early ones mostly drown in the noise.
Training: {train} healthy windows; threshold: the level that {allowed:.1%} of {validation} other
healthy windows exceed; figures below: {test} further healthy windows and {fault_windows} windows
of each fault and severity, none of them used before.

## Figures

Share of windows above the threshold, INT8 in ONNX Runtime:

{faults}

The same for both precisions and engines (faults: mean over the six kinds):

{engines}

`openvino (default)` computes the float part in bfloat16 where the CPU has it; `f32` asks for
float32 (`INFERENCE_PRECISION_HINT`). Largest relative difference of the INT8 score from ONNX
Runtime's: {apart}.

Rules without any learning, each with a threshold of the same share of healthy windows:

{baselines}

Calling a recording faulty when two of its {per_recording} windows are above the threshold finds
{voted_early:.0%} of the early, {voted_clear:.0%} of the clear and {voted_severe:.0%} of the severe
faults' recordings, and alarms in {voted_healthy:.1%} of the healthy ones.

Time for one window on one thread of the machine that made this file ({vnni}):
{times}.

## Not for

Real machines without training on them; speeds outside the range above; finding out which fault
it is; anything on which safety depends.

## Demonstration signal

`media/bearing.csv`: {demo_seconds} s, one column `accel`, {rate} samples a second. The first
{begins:.0f} s are healthy; then damage of the outer race begins, which is fully grown
{grows:.0f} s later. INT8 in ONNX Runtime: {demo_before} of {demo_healthy} windows before are above
the threshold, {demo_after} of {demo_faulty} after.
"""

DEMO_SECONDS, DEMO_BEGINS, DEMO_GROWS = 10, 5.0, 2.0


def outside_autoencoder(model: onnx.ModelProto) -> list[str]:
    """Name the nodes that stay in float."""
    return [node.name for node in model.graph.node if "/autoencoder/" not in node.name]


def _scores(runner: Runner, cut: Floats) -> Floats:
    return np.array([runner(w[None]).item() for w in cut], np.float32)


def _percent(value: float) -> str:
    return f"{value:.1%}"


def rms(cut: Floats) -> Floats:
    """Give each window's root mean square."""
    return np.sqrt((cut[:, 0] ** 2).mean(1))


def kurtosis(cut: Floats) -> Floats:
    """Give each window's peakedness."""
    x = cut[:, 0] - cut[:, 0].mean(1, keepdims=True)
    return (x**4).mean(1) / (x**2).mean(1) ** 2


def demo_signal() -> Floats:
    """Simulate the demonstration: healthy, then the outer race wears."""
    rng = np.random.default_rng(SEEDS["demo"])
    return simulate(rng, DEMO_SECONDS, Fault("outer race", 1.5, DEMO_BEGINS, DEMO_GROWS))


def main() -> None:  # noqa: PLR0914, PLR0915 - one after the other, each from what is there
    """Make the model folder and the demonstration signal."""
    options = arguments(__doc__ or "")
    scale = 20 if options.quick else 1
    healthy = recordings("train", 1000 // scale)
    validation = recordings("validation", 400 // scale)
    test = recordings("test", 400 // scale)
    each = max(20 // scale, 2)
    faulty = {
        (kind, name): recordings("faults", each, (kind, severity))
        for kind in FAULTS
        for name, severity in SEVERITIES.items()
    }
    model = train(healthy, validation, 150 if not options.quick else 20)

    folder = options.out / "bearing-vibration"
    media = options.out / "media"
    folder.mkdir(parents=True, exist_ok=True)
    media.mkdir(parents=True, exist_ok=True)
    int8 = folder / "model.onnx"
    with tempfile.TemporaryDirectory() as scratch:
        fp32 = Path(scratch) / "fp32.onnx"
        export(model, (1, 1, WINDOW), fp32, NAMES)
        some = np.random.default_rng(1).choice(len(healthy), min(1500, len(healthy)), replace=False)
        samples = (healthy[i][None] for i in some)
        to_int8(fp32, int8, samples, keep_float=outside_autoencoder)
        runners = {
            "FP32, onnxruntime": in_onnxruntime(fp32),
            "FP32, openvino (f32)": in_openvino(fp32, precision="f32"),
            "INT8, onnxruntime": in_onnxruntime(int8),
            "INT8, openvino (f32)": in_openvino(int8, precision="f32"),
            "INT8, openvino (default)": in_openvino(int8),
        }
    shipped = runners["INT8, onnxruntime"]
    threshold = round(float(np.quantile(_scores(shipped, validation), 1 - FALSE_ALARMS)), 2)

    engines, apart, reference = [], [], np.zeros(0)
    fault_rows: dict[str, list[str]] = {kind: [kind] for kind in FAULTS}
    votes: dict[str, list[bool]] = {name: [] for name in SEVERITIES}
    per_recording = (SECONDS * RATE - WINDOW) // HOP + 1
    voted_healthy = 0.0
    for name, runner in runners.items():
        clean = _scores(runner, test)
        found = {key: _scores(runner, cut) for key, cut in faulty.items()}
        by_severity = [
            np.mean([found[kind, severity] > threshold for kind in FAULTS])
            for severity in SEVERITIES
        ]
        engines.append([name, _percent((clean > threshold).mean()), *map(_percent, by_severity)])
        everything = np.concatenate([clean, *found.values()])
        if runner is shipped:
            reference = everything
            for (kind, severity), score in found.items():
                fault_rows[kind].append(_percent((score > threshold).mean()))
                alarms = (score.reshape(-1, per_recording) > threshold).sum(1) >= 2
                votes[severity].extend(alarms.tolist())
            voted_healthy = float(
                ((clean.reshape(-1, per_recording) > threshold).sum(1) >= 2).mean()
            )
        elif name.startswith("INT8"):
            worst = float(np.max(np.abs(everything - reference) / reference))
            apart.append(f"{worst:.2%} ({name.split(', ')[1]})")

    baselines = []
    for name, rule in (("root mean square", rms), ("kurtosis", kurtosis)):
        limit = np.quantile(rule(validation), 1 - FALSE_ALARMS)
        found_by = [
            np.mean([rule(faulty[kind, severity]) > limit for kind in FAULTS])
            for severity in SEVERITIES
        ]
        baselines.append([name, _percent((rule(test) > limit).mean()), *map(_percent, found_by)])

    signal = np.round(demo_signal(), 2)
    with (media / "bearing.csv").open("w") as out:
        out.write("accel\n")
        out.writelines(f"{value:.2f}\n" for value in signal)
    demo = _scores(shipped, windows(signal))
    ends = np.arange(len(demo)) * HOP + WINDOW
    before = ends <= DEMO_BEGINS * RATE

    clear = faulty["inner race", "clear"][:1]
    cases = np.concatenate(
        [test[:3], faulty["outer race", "severe"][:1], clear, faulty["looseness", "clear"][:1]]
    )
    cases = cases[:, None]
    write_golden(folder, cases, np.stack([shipped(case) for case in cases]), NAMES)
    (folder / "model.toml").write_text(
        MANIFEST.format(window=WINDOW, hop=HOP, rate=RATE, threshold=threshold)
    )
    times = ",\n".join(f"{milliseconds(r, cases[0]):.2f} ms ({n})" for n, r in runners.items())
    head = ["", "false alarms", *SEVERITIES]
    card = CARD.format(
        length=WINDOW / RATE,
        rate=RATE,
        window=WINDOW,
        features=len(model.center),
        threshold=threshold,
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=SECONDS,
        train=len(healthy),
        allowed=FALSE_ALARMS,
        validation=len(validation),
        test=len(test),
        fault_windows=each * per_recording,
        faults=table(["fault", *SEVERITIES], list(fault_rows.values())),
        engines=table(head, engines),
        apart=", ".join(apart),
        baselines=table(head, baselines),
        per_recording=per_recording,
        voted_early=np.mean(votes["early"]),
        voted_clear=np.mean(votes["clear"]),
        voted_severe=np.mean(votes["severe"]),
        voted_healthy=voted_healthy,
        vnni=vnni(),
        times=times,
        demo_seconds=DEMO_SECONDS,
        begins=DEMO_BEGINS,
        grows=DEMO_GROWS,
        demo_before=int((demo[before] > threshold).sum()),
        demo_healthy=int(before.sum()),
        demo_after=int((demo[~before] > threshold).sum()),
        demo_faulty=int((~before).sum()),
    )
    (folder / "README.md").write_text(card)
    print(card)


if __name__ == "__main__":
    main()
