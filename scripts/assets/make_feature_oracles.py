"""Make tests/inference/feature_oracles.npz: what librosa and Kaldi find in a made-up sound.

Needs `librosa` and `kaldi-native-fbank`, which neither the agent nor its tests need otherwise:

    python -m venv oracles && oracles/bin/pip install librosa kaldi-native-fbank
    oracles/bin/python scripts/assets/make_feature_oracles.py
"""

from pathlib import Path

import kaldi_native_fbank as knf
import librosa
import numpy as np

RATE = 16000
OUT = Path(__file__).parents[2] / "tests" / "inference" / "feature_oracles.npz"


def sound() -> np.ndarray:
    """Return a quarter of a second: a chirp, a hum with its mean off zero, and noise."""
    t = np.arange(RATE // 4) / RATE
    noise = np.random.default_rng(0).standard_normal(len(t))
    made = 0.4 * np.sin(2 * np.pi * (200 + 6000 * t) * t) + 0.2 * np.sin(2 * np.pi * 50 * t)
    return (made + 0.05 + 0.01 * noise).astype(np.float32)


def kaldi(samples: np.ndarray, *, mfcc: bool) -> np.ndarray:
    """Return Kaldi's fbank (or MFCC without liftering) by its own defaults, without dither."""
    options = knf.MfccOptions() if mfcc else knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.frame_opts.samp_freq = RATE
    options.mel_opts.num_bins = 40
    options.use_energy = False
    if mfcc:
        options.num_ceps = 13
        options.cepstral_lifter = 0.0
    online = (knf.OnlineMfcc if mfcc else knf.OnlineFbank)(options)
    online.accept_waveform(RATE, samples.tolist())
    online.input_finished()
    return np.array([online.get_frame(n) for n in range(online.num_frames_ready)])


def main() -> None:
    """Write the file."""
    samples = sound()
    mel = {"y": samples, "sr": RATE, "n_fft": 512, "hop_length": 160, "pad_mode": "reflect"}
    power = librosa.feature.melspectrogram(**mel, n_mels=40)
    short = librosa.feature.melspectrogram(**mel, n_mels=64, win_length=400, power=1.0, fmin=60)
    raw = librosa.feature.melspectrogram(**{**mel, "center": False}, n_mels=40, window="hamming")
    db = librosa.power_to_db(power + 1e-10, amin=1e-20, top_db=None)
    np.savez_compressed(
        OUT,
        samples=samples,
        librosa_db=db.T,
        librosa_short_log=np.log(short + 1e-6).T,
        librosa_hamming_log10=np.log10(raw + 1e-6).T,
        librosa_mfcc=librosa.feature.mfcc(S=db, n_mfcc=13, norm="ortho").T,
        librosa_emphasis=np.log1p(
            librosa.feature.melspectrogram(
                **{**mel, "y": librosa.effects.preemphasis(samples)}, n_mels=40
            )
        ).T,
        kaldi_fbank=kaldi(samples, mfcc=False),
        kaldi_mfcc=kaldi(samples, mfcc=True),
        versions=np.array([librosa.__version__, knf.__version__]),
    )


if __name__ == "__main__":
    main()
