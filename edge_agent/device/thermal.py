"""Temperatures of this machine, and causes of processor throttling, read from sysfs.

Needs no privileges; missing or malformed values are left out. All files are read below one root, so
that a tree of files can represent any machine. Not with `psutil.sensors_temperatures`: it reads
fixed paths, which rules out tests on such trees, has no passive trip points, leaves out zones if
there is any hwmon sensor, and accepts invalid values of broken sensors as temperatures.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .resources import ROOT, entries, text

HOT_C = 90.0
"""Limit of a sensor that reports none."""
MARGIN_C = 5.0
"""Degrees below the shutdown temperature from which a sensor counts as hot."""
EVERY_SECONDS = 5.0
"""Seconds between readings: slow buses take tens of milliseconds, and a query can wake a disk."""
RECENT_SECONDS = 60.0
"""Seconds for which throttling counted by the processor is reported."""

# Disabled or broken sensors read as 0 K, 0xFFFF K, or random values.
_SENSIBLE = (-60.0, 200.0)
# The thermal framework's names of devices that throttle a processor ("thermal-cpufreq-0" until
# Linux 5.11, "cpufreq-cpu0" since; "Processor" with ACPI); fans are cooling devices too.
_SLOWING = re.compile(r"(?i)cpufreq|devfreq|^processor$|powerclamp|cpuidle|cpu-idle")
# Bits of `vcgencmd get_throttled` for the present state (Raspberry Pi documentation, "vcgencmd").
_PI_BITS = (
    (0x1, "the voltage is too low: use a stronger power supply"),
    (0x2, "the firmware limits the processor's frequency"),
    (0x4, "the firmware slows the processor down"),
    (0x8, "the firmware's soft temperature limit is reached"),
)


@dataclass(frozen=True, slots=True)
class Sensor:
    """One reading of a sensor."""

    name: str
    celsius: float
    slows_at: float | None
    """Temperature at which the machine is throttled; None: unknown."""
    dies_at: float | None
    """Temperature at which the machine shuts down; None: unknown."""

    @property
    def hot(self) -> bool:
        """Whether it is above its limit, or near the shutdown temperature."""
        if self.slows_at is not None and self.celsius >= self.slows_at:
            return True
        if self.dies_at is not None:
            return self.celsius >= self.dies_at - MARGIN_C
        return self.slows_at is None and self.celsius >= HOT_C


@dataclass(frozen=True, slots=True)
class ThermalState:
    """Temperatures and throttling at one time."""

    sensors: tuple[Sensor, ...]
    slowed: tuple[str, ...]
    """Causes of processor throttling, as texts."""

    @property
    def celsius(self) -> float | None:
        """Temperature of the hottest sensor, degrees Celsius, or None without a sensor."""
        return max((sensor.celsius for sensor in self.sensors), default=None)

    def problems(self) -> list[str]:
        """List hot sensors and throttling, as texts."""
        reasons = [f"hot: {_words(sensor)}" for sensor in self.sensors if sensor.hot]
        return reasons[:3] + [f"throttled: {words}" for words in self.slowed]


class Thermometer:
    """Reads temperatures and throttling, at most every few seconds."""

    def __init__(
        self,
        root: Path = ROOT,
        *,
        every: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._every = every
        self._clock = clock
        self._read_at: float | None = None
        self._last = ThermalState((), ())
        self._counted: int | None = None
        """The processor's throttling counts at the last reading."""
        self._grown_at: float | None = None

    def read(self) -> ThermalState:
        """Return temperatures and throttling, at most a few seconds old."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= self._every:
            self._read_at = now
            slowed = (*_cooled(self._root), *self._counts(now), *_raspberry(self._root))
            self._last = ThermalState(tuple(_sensors(self._root)), slowed)
        return self._last

    def _counts(self, now: float) -> Iterator[str]:
        """Compare the throttling counters of x86 processors."""
        folder = self._root / "sys/devices/system/cpu"
        counts = [
            int(count)
            for path in sorted(folder.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
            if (count := text(path)).isdecimal()
        ]
        if not counts:
            return
        total = sum(counts)
        if self._counted is not None and total > self._counted:
            self._grown_at = now
        self._counted = total
        if self._grown_at is not None and now - self._grown_at < RECENT_SECONDS:
            yield "the processor slowed itself down for its temperature within the last minute"


def _words(sensor: Sensor) -> str:
    limits = [
        f"{what} {limit:g}"
        for what, limit in (
            ("slows down from", sensor.slows_at),
            ("switches off at", sensor.dies_at),
        )
        if limit is not None
    ]
    return f"{sensor.name} {sensor.celsius:.1f} °C" + (f" ({', '.join(limits)})" if limits else "")


def _sensors(root: Path) -> Iterator[Sensor]:
    """Yield every sensor once: those of hwmon, and thermal zones that hwmon lacks."""
    seen: set[str] = set()
    for chip in entries(root / "sys/class/hwmon", "hwmon*"):
        name = text(chip / "name") or chip.name
        # A zone's copy in hwmon has its name, with "-" as "_", but not its trip points.
        zone = _zone_called(root, name)
        for path in entries(chip, "temp*_input"):
            celsius = _milli(path)
            if celsius is None:
                continue
            stem = path.name.removesuffix("_input")
            label = text(chip / f"{stem}_label")
            dies_at = _limit(chip / f"{stem}_crit")
            slows_at, dies_too = _trips(zone) if zone is not None else (None, None)
            seen.add(_plain(name))
            yield Sensor(f"{name} {label}".strip(), celsius, slows_at, dies_at or dies_too)
    for zone in entries(root / "sys/class/thermal", "thermal_zone*"):
        kind = text(zone / "type") or zone.name
        celsius = _milli(zone / "temp")
        if celsius is not None and _plain(kind) not in seen:
            yield Sensor(kind, celsius, *_trips(zone))


def _zone_called(root: Path, name: str) -> Path | None:
    for zone in entries(root / "sys/class/thermal", "thermal_zone*"):
        if _plain(text(zone / "type")) == _plain(name):
            return zone
    return None


def _trips(zone: Path) -> tuple[float | None, float | None]:
    """Return the temperatures at which a zone throttles, and shuts the machine down.

    Source: the kernel's Documentation/driver-api/thermal/sysfs-api.rst. A trip point of type "hot"
    only notifies the driver; "active" ones start fans.
    """
    found: dict[str, list[float]] = {"passive": [], "critical": []}
    for path in entries(zone, "trip_point_*_type"):
        limit = _limit(path.with_name(path.name.removesuffix("_type") + "_temp"))
        if limit is not None:
            found.setdefault(text(path), []).append(limit)
    return min(found["passive"], default=None), min(found["critical"], default=None)


def _cooled(root: Path) -> Iterator[str]:
    """Yield a text if the kernel throttles a processor to cool it.

    Not by comparing frequencies, which an idle processor, a governor or a user's limit also lower.
    A cooling device is above state 0 only because of heat.
    """
    for device in entries(root / "sys/class/thermal", "cooling_device*"):
        kind, state = text(device / "type"), text(device / "cur_state")
        if _SLOWING.search(kind) and state.isdecimal() and int(state) > 0:
            most = text(device / "max_state")
            now, top = _frequencies(root)
            held = f", at most {now} of {top} MHz" if now and top and now < top else ""
            yield f"the kernel cools {kind} (step {state} of {most or '?'}{held})"
            return  # one processor represents its siblings


def _frequencies(root: Path) -> tuple[int, int]:
    """Return the highest frequency allowed now and the highest possible, MHz; 0: unknown."""
    policies = entries(root / "sys/devices/system/cpu/cpufreq", "policy*")
    allowed = [_kilohertz(policy / "scaling_max_freq") for policy in policies]
    most = [_kilohertz(policy / "cpuinfo_max_freq") for policy in policies]
    return max(allowed, default=0), max(most, default=0)


def _kilohertz(path: Path) -> int:
    frequency = text(path)
    return int(frequency) // 1000 if frequency.isdecimal() else 0


def _raspberry(root: Path) -> Iterator[str]:
    """Yield the reports of a Raspberry Pi's firmware; no privileges are needed."""
    flags = 0
    for path in entries(root / "sys/devices/platform", "*/*firmware/get_throttled") + entries(
        root / "sys/devices/platform", "*/*/*firmware/get_throttled"
    ):
        try:
            flags |= int(text(path), 16)
        except ValueError:
            continue
    # The kernel's own driver reports the voltage even if the firmware's flags are not available.
    for chip in entries(root / "sys/class/hwmon", "hwmon*"):
        if text(chip / "name") == "rpi_volt" and text(chip / "in0_lcrit_alarm") == "1":
            flags |= 0x1
    for bit, words in _PI_BITS:
        if flags & bit:
            yield words


def _milli(path: Path) -> float | None:
    """Read thousandths of a degree; return None if there is no valid reading."""
    reading = text(path)
    if not re.fullmatch(r"-?\d{1,9}", reading):
        return None
    celsius = int(reading) / 1000
    return celsius if _SENSIBLE[0] < celsius < _SENSIBLE[1] else None


def _limit(path: Path) -> float | None:
    """Read a limit; drivers without one report 0 or an absurd number."""
    limit = _milli(path)
    return limit if limit is not None and limit >= 40 else None


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
