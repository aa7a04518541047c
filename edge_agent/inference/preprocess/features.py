"""Features of sound: log-mel spectra and MFCCs of a window of samples.

Follows the conventions of the code that models are trained with. `hann` and `hamming` windows are
periodic, as in TensorFlow, librosa and torchaudio; `povey` means Kaldi's frames: symmetric window,
mean removed and pre-emphasis within each frame. `mel = "htk"` has triangles that are linear in mel
(HTK, Kaldi, TensorFlow), `"slaney"` has triangles of equal area that are linear in hertz (librosa).
Edge Impulse's features are in `edge_impulse`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...models.manifest import InputSpec
from ...models.transforms import LogMel, window_rate

Floats = NDArray[np.float32]

_SLANEY_HZ = 200.0 / 3.0
"""Hertz per mel below _SLANEY_BREAK."""
_SLANEY_BREAK = 1000.0
_SLANEY_STEP = math.log(6.4) / 27.0
"""Step per mel above it, in the logarithm of the frequency."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Computes frames of features from a window of samples. Thread-safe."""

    samples: int
    """Samples in a window."""
    frame: int
    step: int
    fft: int
    taper: Floats
    """(frame,) factors for the samples of a frame."""
    mel: Floats
    """(fft // 2 + 1, bins) weights of the mel bands."""
    dct: Floats | None
    """(bins, coefficients) matrix; None: the features are log-mel spectra."""
    spec: LogMel

    @property
    def shape(self) -> tuple[int, int]:
        """Number of frames, and of features per frame."""
        width = self.mel.shape[1] if self.dct is None else self.dct.shape[1]
        padded = self.samples + (2 * (self.fft // 2) if self.spec.center else 0)
        return 1 + (padded - self.frame) // self.step, width

    @property
    def window(self) -> tuple[int, int]:
        """Number of rows and channels of the window."""
        return self.samples, 1

    @property
    def words(self) -> str:
        """A description of the output."""
        return f"{self.shape[0]} frames of {self.shape[1]} features"

    def __call__(self, samples: Floats) -> Floats:
        """Return the features (frames, features) of a window of one channel."""
        spec = self.spec
        samples = samples.reshape(-1)
        if spec.normalize != "none":
            peak = samples.max() if spec.normalize == "max" else np.abs(samples).max()
            if peak > 0:
                samples = samples / peak
        kaldi = spec.window == "povey"
        if spec.preemphasis and not kaldi:
            samples = _preemphasized(samples, spec.preemphasis)
        if spec.center:
            edges: Any = "constant" if spec.edges == "zeros" else spec.edges
            samples = np.pad(samples, self.fft // 2, mode=edges)
        frames = np.lib.stride_tricks.sliding_window_view(samples, self.frame)[:: self.step]
        if kaldi:
            frames = frames - frames.mean(axis=1, keepdims=True)
            if spec.preemphasis:
                before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
                frames = frames - np.float32(spec.preemphasis) * before
        spectrum = np.fft.rfft(frames * self.taper, self.fft, axis=1)
        size = np.abs(spectrum)
        bands = (size if spec.power == 1 else size * size) @ self.mel
        found = _logarithm(bands, spec)
        made = found if self.dct is None else found @ self.dct
        return np.ascontiguousarray(made, np.float32)


def features_of(spec: InputSpec) -> Features:
    """Prepare the transform that a manifest asks for.

    Raises:
        ModelError: the parameters contradict each other.
    """
    wanted = spec.logmel or LogMel()
    rate = window_rate(spec.resample_hz, spec.rate_hz, spec.every)
    if not rate:
        raise ModelError(
            f"input.rate_hz: is missing; transform {spec.transform!r} needs the samples a second"
        )
    if spec.window is None:
        raise ModelError(f"input.window: is missing; transform {spec.transform!r} takes windows")
    frame, step = round(rate * wanted.frame_ms / 1e3), round(rate * wanted.step_ms / 1e3)
    if frame < 2 or step < 1:
        raise ModelError(
            f"input.logmel: a frame of {frame} and a step of {step} samples at {rate:g} Hz; "
            "expected 2 and 1 at least"
        )
    fft = wanted.fft or 1 << (frame - 1).bit_length()
    if fft < frame:
        raise ModelError(f"input.logmel.fft: {fft} is shorter than a frame of {frame} samples")
    taper = _taper(wanted.window, frame)
    if wanted.center and frame < fft:
        # As in librosa and torch: a frame is as long as the transform, its window in the middle.
        before = (fft - frame) // 2
        taper = np.pad(taper, (before, fft - frame - before))
        frame = fft
    if wanted.center and wanted.edges == "reflect" and spec.window <= fft // 2:
        raise ModelError(
            f"input.window: {spec.window} samples are too few to be reflected for frames of {fft}"
        )
    if (wanted.reference, wanted.top_db) != ("one", 0) and wanted.log != "db":
        raise ModelError(
            f'input.logmel: reference and top_db are for log = "db", found {wanted.log!r}'
        )
    if not wanted.center and spec.window < frame:
        raise ModelError(f"input.window: {spec.window} samples hold no frame of {frame}")
    high = wanted.high_hz or rate / 2
    if not wanted.low_hz < high <= rate / 2:
        raise ModelError(
            f"input.logmel: low_hz {wanted.low_hz:g} and high_hz {high:g} do not fit: expected "
            f"low < high ≤ {rate / 2:g}, half the rate"
        )
    bank = _slaney if wanted.mel == "slaney" else _htk
    mel = bank(wanted.bins, fft, rate, wanted.low_hz, high)
    dct = None
    if spec.transform == "mfcc":
        if wanted.coefficients > wanted.bins:
            raise ModelError(
                f"input.logmel.coefficients: {wanted.coefficients} of {wanted.bins} bins"
            )
        dct = _dct(wanted.bins, wanted.coefficients)
    return Features(spec.window, frame, step, fft, taper, mel, dct, wanted)


def _preemphasized(samples: Floats, factor: float) -> Floats:
    """Subtract the previous sample times *factor*, as librosa does; the first is extrapolated."""
    made = samples.copy()
    made[1:] -= np.float32(factor) * samples[:-1]
    if len(samples) > 1:
        made[0] += 2 * samples[0] - samples[1]
    return made


def _taper(name: str, count: int) -> Floats:
    if name == "povey":
        turn = np.cos(2 * np.pi * np.arange(count) / (count - 1))
        return ((0.5 - 0.5 * turn) ** 0.85).astype(np.float32)
    turn = np.cos(2 * np.pi * np.arange(count) / count)
    least = 0.54 if name == "hamming" else 0.5
    return (least - (1 - least) * turn).astype(np.float32)


def htk_mels(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert frequencies in hertz to mel, as HTK and Kaldi do; any shape."""
    return 1127.0 * np.log1p(hertz / 700.0)


def _htk(bins: int, fft: int, rate: float, low: float, high: float) -> Floats:
    """Return weights (fft // 2 + 1, bins): triangles linear in mel = 1127 ln(1 + f / 700)."""
    first, last = htk_mels(np.array([low, high]))
    edges = np.linspace(first, last, bins + 2)
    weights = _triangles(htk_mels(np.arange(fft // 2 + 1) * rate / fft), edges)
    weights[0] = 0.0  # HTK and TensorFlow both ignore the mean
    return np.asarray(weights, np.float32)


def _slaney(bins: int, fft: int, rate: float, low: float, high: float) -> Floats:
    """Return weights (fft // 2 + 1, bins): triangles linear in hertz, each of area 1."""
    ends = np.linspace(_slaney_mel(low), _slaney_mel(high), bins + 2)
    edges = np.array([_slaney_hz(mel) for mel in ends.tolist()])
    weights = _triangles(np.arange(fft // 2 + 1) * rate / fft, edges)
    return np.asarray(weights * (2.0 / (edges[2:] - edges[:-2])), np.float32)


def _triangles(places: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights (places, bins): 1 at the middle one of three edges, 0 at the other two."""
    rise = (places[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    fall = (edges[2:] - places[:, None]) / np.diff(edges)[1:]
    return np.maximum(0.0, np.minimum(rise, fall))


def _slaney_mel(hertz: float) -> float:
    if hertz < _SLANEY_BREAK:
        return hertz / _SLANEY_HZ
    return _SLANEY_BREAK / _SLANEY_HZ + math.log(hertz / _SLANEY_BREAK) / _SLANEY_STEP


def _slaney_hz(mel: float) -> float:
    above = mel - _SLANEY_BREAK / _SLANEY_HZ
    return mel * _SLANEY_HZ if above < 0 else _SLANEY_BREAK * math.exp(above * _SLANEY_STEP)


def _logarithm(bands: Floats, spec: LogMel) -> Floats:
    if spec.log == "log1p":
        return np.log1p(bands)
    floor = np.float32(spec.floor)
    found: Floats
    if spec.log != "db":
        found = np.log(bands + floor) if spec.log == "log" else np.log10(bands + floor)
        return found
    # As librosa and torchaudio do: the floor is the least, and not added.
    found = np.log10(np.maximum(bands, floor)) * np.float32(20.0 / spec.power)
    if spec.reference == "max":
        found -= found.max()
    return np.maximum(found, found.max() - np.float32(spec.top_db)) if spec.top_db else found


def _dct(bins: int, count: int) -> Floats:
    """Return (bins, count): the first columns of the orthonormal DCT-II."""
    turn = np.pi / bins * (np.arange(bins)[:, None] + 0.5) * np.arange(count)
    weights = np.cos(turn) * np.sqrt(2.0 / bins)
    weights[:, 0] = np.sqrt(1.0 / bins)
    return np.asarray(weights, np.float32)
