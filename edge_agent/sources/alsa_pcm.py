"""Sound from a microphone: a capture PCM of ALSA, by its name (`hw:1,0`, `plughw:1,0`, `default`).

Calls ALSA's own library, `libasound.so.2`, whose interface has been stable since 2002; the Python
packages either must be compiled on the device, or find a replugged device only after all others are
closed.
"""

from __future__ import annotations

import ctypes
import errno
import time
from ctypes import byref, c_char_p, c_int, c_long, c_uint, c_ulong, c_void_p
from functools import cache
from typing import Any

import numpy as np

from ..core.errors import SampleError, SourceError, SourceInUseError
from .continuity import Rows
from .live_signal import LiveSignal, share
from .source import SourceContext
from .spec import SourceSpec

_ABSENT = {errno.ENOENT, errno.ENODEV, errno.ENXIO}
"""Error codes of an absent device."""

LIBRARY = "libasound.so.2"
BUFFER_US = 400_000
"""Length of the device's buffer; a quarter of it arrives at a time."""
CAPTURE, NONBLOCK, INTERLEAVED = 1, 1, 3
FORMATS = ((2, "<i2", 2.0**15), (10, "<i4", 2.0**31), (14, "<f4", 1.0))
"""ALSA number, NumPy type and full scale: S16_LE, S32_LE (most I2S microphones), FLOAT_LE."""
CHANNELS = (1, 2, 4, 6, 8)
"""Numbers of channels to try if none is given."""
_Handler = ctypes.CFUNCTYPE(None, c_char_p, c_int, c_char_p, c_int, c_char_p)
_be_silent = _Handler(lambda *_: None)


class Microphone:
    """A microphone: an ALSA PCM device open for capture."""

    def __init__(self, spec: SourceSpec) -> None:
        """Open the device and begin recording."""
        self._name = spec.redacted
        self._asound = _catalog()
        self._rate: int = spec.options["rate"]
        self._pcm: c_void_p | None = c_void_p()
        self._check(
            self._asound.snd_pcm_open(byref(self._pcm), spec.name.encode(), CAPTURE, NONBLOCK),
            "cannot be opened",
        )
        try:
            self._set_up(spec.options["channels"])
            self._check(self._asound.snd_pcm_start(self._pcm), "does not start")
        except SourceError:
            self.close()
            raise
        self._overrun = False

    def _set_up(self, wanted: int | None) -> None:
        """Choose a format and a number of channels that the device supports."""
        code = 0
        for count in CHANNELS if wanted is None else (wanted,):
            for number, kind, self._one in FORMATS:
                code = self._asound.snd_pcm_set_params(
                    self._pcm, number, INTERLEAVED, count, self._rate, 1, BUFFER_US
                )
                if code >= 0:
                    self._kind, self._count = kind, count
                    frames = self._rate * BUFFER_US // 1_000_000
                    self._room = np.zeros((frames, count), kind)
                    return
        channels = "" if wanted is None else f" {wanted} channels"
        self._check(
            code, f"cannot record{channels} at {self._rate} Hz (plughw: instead of hw: converts)"
        )

    def read(self, timeout: float) -> list[Rows | SampleError]:
        ready = self._asound.snd_pcm_wait(self._pcm, int(timeout * 1000))
        if ready == 0:
            return []
        count = ready
        if ready > 0:
            count = self._asound.snd_pcm_readi(
                self._pcm, self._room.ctypes.data_as(c_void_p), len(self._room)
            )
        time_ns, since = time.time_ns(), time.monotonic()
        if count in {-errno.EAGAIN, 0}:
            return []
        if count < 0:
            self._recover(count)
            return []
        data = self._room[:count].astype(np.float32) / np.float32(self._one)
        gap, self._overrun = self._overrun, False
        return [Rows(data, time_ns, since, rate_hz=float(self._rate), gap=gap)]

    def _recover(self, code: int) -> None:
        """Continue after an overrun or a suspend, which have lost sound."""
        if code not in {-errno.EPIPE, -errno.ESTRPIPE, -errno.EINTR}:
            self._check(code, "is lost")
        self._overrun = True
        self._check(self._asound.snd_pcm_recover(self._pcm, code, 1), "is lost")
        self._check(self._asound.snd_pcm_start(self._pcm), "is lost")

    def close(self) -> None:
        """Close the device; may be called twice."""
        pcm, self._pcm = self._pcm, None
        if pcm is not None:
            self._asound.snd_pcm_close(pcm)

    def _check(self, code: int, what: str) -> None:
        if code == -errno.EBUSY:
            raise SourceInUseError(
                f"{self._name}: {what}: another program, or the agent, has it open"
            )
        if code < 0:
            why = self._asound.snd_strerror(code).decode("utf-8", "replace")
            mend = "; `arecord -L` lists those there are" if -code in _ABSENT else ""
            raise SourceError(f"{self._name}: {what}: {why}{mend}")


@cache
def _catalog() -> Any:
    """Load ALSA's library."""
    try:
        asound = ctypes.CDLL(LIBRARY)
    except OSError:
        raise SourceError(
            f"alsa: needs {LIBRARY}: apt install libasound2 (Ubuntu 24.04: libasound2t64)"
        ) from None
    asound.snd_pcm_open.argtypes = [ctypes.POINTER(c_void_p), c_char_p, c_int, c_int]
    asound.snd_pcm_set_params.argtypes = [*(c_void_p, c_int, c_int, c_uint, c_uint, c_int, c_uint)]
    asound.snd_pcm_readi.argtypes = [c_void_p, c_void_p, c_ulong]
    asound.snd_pcm_readi.restype = c_long
    for name, more in (
        ("wait", [c_int]),
        ("recover", [c_int, c_int]),
        ("start", []),
        ("close", []),
    ):
        getattr(asound, f"snd_pcm_{name}").argtypes = [c_void_p, *more]
    asound.snd_strerror.restype = c_char_p
    # Otherwise it also writes the meaning of its codes to stderr.
    asound.snd_lib_error_set_handler(_be_silent)
    return asound


def open_source(spec: SourceSpec, context: SourceContext) -> LiveSignal:
    """Open a microphone."""
    return share(spec, context, lambda: Microphone(spec))
