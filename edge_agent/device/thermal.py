"""Temperatures of this machine, and causes that slow its processor, read from sysfs.

No privileges; what is missing or odd is left out. All of it is read below one root, so that a tree
of files can stand for any machine. Not by `psutil.sensors_temperatures`: it reads fixed paths, so
that the tests on such trees would go, has no passive trip points, leaves zones out where there is
any hwmon sensor, and takes the nonsense of a broken sensor for a temperature.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .resources import ROOT, entries, text

HOT_C = 90.0
"""Limit of a sensor that names none of its own."""
MARGIN_C = 5.0
"""Below the temperature at which the machine switches itself off: from there on it is hot."""
EVERY_SECONDS = 5.0
"""Sensors behind slow buses take tens of milliseconds, and asking a disk can wake it."""
RECENT_SECONDS = 60.0
"""How long a throttling that the processor has counted is reported."""

# Sensors that are switched off or broken read as 0 K, as 0xFFFF K, or as nonsense.
_SENSIBLE = (-60.0, 200.0)
# What the thermal framework calls the devices that slow a processor down ("thermal-cpufreq-0" until
# Linux 5.11, "cpufreq-cpu0" since; "Processor" by ACPI); fans are cooling devices too.
_SLOWING = re.compile(r"(?i)cpufreq|devfreq|^processor$|powerclamp|cpuidle|cpu-idle")
# Bits of `vcgencmd get_throttled` that hold now (Raspberry Pi documentation, "vcgencmd").
_PI_BITS = (
    (0x1, "the voltage is too low: use a stronger power supply"),
    (0x2, "the firmware holds the processor's frequency down"),
    (0x4, "the firmware slows the processor down"),
    (0x8, "the firmware's soft temperature limit is reached"),
)


@dataclass(frozen=True, slots=True)
class Sensor:
    """One reading."""

    name: str
    celsius: float
    slows_at: float | None
    """From here on the machine is slowed down; None: unknown."""
    dies_at: float | None
    """Here it switches itself off; None: unknown."""

    @property
    def hot(self) -> bool:
        """Whether it is above its limit, or near to switching off."""
        if self.slows_at is not None and self.celsius >= self.slows_at:
            return True
        if self.dies_at is not None:
            return self.celsius >= self.dies_at - MARGIN_C
        return self.slows_at is None and self.celsius >= HOT_C


@dataclass(frozen=True, slots=True)
class ThermalState:
    """Temperatures and throttling at one moment."""

    sensors: tuple[Sensor, ...]
    slowed: tuple[str, ...]
    """Causes that slow the processor down, in words."""

    @property
    def celsius(self) -> float | None:
        """Temperature of the hottest sensor, degrees Celsius, or None without a sensor."""
        return max((sensor.celsius for sensor in self.sensors), default=None)

    def problems(self) -> list[str]:
        """List hot sensors and throttling, in words."""
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
        """Throttlings that the processor had counted at the last reading."""
        self._grown_at: float | None = None

    def read(self) -> ThermalState:
        """Return temperatures and throttling, as of now or a few seconds ago."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= self._every:
            self._read_at = now
            slowed = (*_cooled(self._root), *self._counts(now), *_raspberry(self._root))
            self._last = ThermalState(tuple(_sensors(self._root)), slowed)
        return self._last

    def _counts(self, now: float) -> Iterator[str]:
        """Compare the counters that x86 processors keep of throttling themselves."""
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
    """Yield every sensor once: of hwmon, and of the thermal zones that hwmon does not have."""
    seen: set[str] = set()
    for chip in entries(root / "sys/class/hwmon", "hwmon*"):
        name = text(chip / "name") or chip.name
        # A zone's twin in hwmon bears its name, with "-" as "_", but not its trip points.
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
    """Return where a zone begins to throttle, and where it switches the machine off.

    Source: the kernel's Documentation/driver-api/thermal/sysfs-api.rst. A trip point of type "hot"
    only tells the driver; "active" ones start fans.
    """
    found: dict[str, list[float]] = {"passive": [], "critical": []}
    for path in entries(zone, "trip_point_*_type"):
        limit = _limit(path.with_name(path.name.removesuffix("_type") + "_temp"))
        if limit is not None:
            found.setdefault(text(path), []).append(limit)
    return min(found["passive"], default=None), min(found["critical"], default=None)


def _cooled(root: Path) -> Iterator[str]:
    """Yield the processor that the kernel throttles to cool it.

    Not by comparing frequencies: an idle processor, a governor and an owner who wants quiet lower
    them too. A cooling device beyond state 0 is there for heat alone.
    """
    for device in entries(root / "sys/class/thermal", "cooling_device*"):
        kind, state = text(device / "type"), text(device / "cur_state")
        if _SLOWING.search(kind) and state.isdecimal() and int(state) > 0:
            most = text(device / "max_state")
            now, top = _frequencies(root)
            held = f", at most {now} of {top} MHz" if now and top and now < top else ""
            yield f"the kernel cools {kind} (step {state} of {most or '?'}{held})"
            return  # one processor speaks for its siblings


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
    """Yield what a Raspberry Pi's firmware reports; no privileges are needed."""
    flags = 0
    for path in entries(root / "sys/devices/platform", "*/*firmware/get_throttled") + entries(
        root / "sys/devices/platform", "*/*/*firmware/get_throttled"
    ):
        try:
            flags |= int(text(path), 16)
        except ValueError:
            continue
    # The kernel's own driver knows the voltage, also where the firmware's flags are not shown.
    for chip in entries(root / "sys/class/hwmon", "hwmon*"):
        if text(chip / "name") == "rpi_volt" and text(chip / "in0_lcrit_alarm") == "1":
            flags |= 0x1
    for bit, words in _PI_BITS:
        if flags & bit:
            yield words


def _milli(path: Path) -> float | None:
    """Read thousandths of a degree; returns None if there is no sensible reading."""
    reading = text(path)
    if not re.fullmatch(r"-?\d{1,9}", reading):
        return None
    celsius = int(reading) / 1000
    return celsius if _SENSIBLE[0] < celsius < _SENSIBLE[1] else None


def _limit(path: Path) -> float | None:
    """Read a limit; drivers without one report 0, or an absurd number."""
    limit = _milli(path)
    return limit if limit is not None and limit >= 40 else None


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
