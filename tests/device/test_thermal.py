"""Temperature and throttling, from trees of files as real machines show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.device.thermal import EVERY_SECONDS, RECENT_SECONDS, ThermalState, Thermometer


def tree(root: Path, **files: str | int) -> Path:
    """Write files below *root*/sys; "__" in a name stands for "/"."""
    for name, content in files.items():
        path = root / "sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def zone(root: Path, number: int, kind: str, milli: int | str, **trips: int) -> Path:
    """Write a thermal zone with trip points by type."""
    folder = root / "sys/class/thermal" / f"thermal_zone{number}"
    folder.mkdir(parents=True)
    (folder / "type").write_text(f"{kind}\n")
    (folder / "temp").write_text(f"{milli}\n")
    for index, (trip, limit) in enumerate(trips.items()):
        (folder / f"trip_point_{index}_type").write_text(f"{trip}\n")
        (folder / f"trip_point_{index}_temp").write_text(f"{limit}\n")
    return root


def cooling(root: Path, number: int, kind: str, state: int) -> Path:
    """Write a cooling device in a state of five."""
    folder = root / "sys/class/thermal" / f"cooling_device{number}"
    folder.mkdir(parents=True)
    for name, content in (("type", kind), ("cur_state", state), ("max_state", 5)):
        (folder / name).write_text(f"{content}\n")
    return root


def read(root: Path) -> ThermalState:
    """Look at a machine once."""
    return Thermometer(root).read()


def test_a_machine_without_sensors_says_nothing(tmp_path: Path) -> None:
    """Where there is no sysfs, there is no temperature and no reason."""
    heat = read(tmp_path)
    assert heat.celsius is None
    assert heat.problems() == []


def test_a_pc_gives_its_hottest_sensor(tmp_path: Path) -> None:
    """Of several hwmon sensors the hottest counts; its limit is its own."""
    tree(
        tmp_path,
        class__hwmon__hwmon0__name="coretemp",
        class__hwmon__hwmon0__temp1_input=61000,
        class__hwmon__hwmon0__temp1_label="Package id 0",
        class__hwmon__hwmon0__temp1_crit=100000,
        class__hwmon__hwmon1__name="nvme",
        class__hwmon__hwmon1__temp1_input=38850,
        class__hwmon__hwmon1__temp1_crit=84850,
    )
    heat = read(tmp_path)
    assert heat.celsius == 61.0
    assert heat.problems() == []


def test_near_its_limit_a_sensor_is_hot(tmp_path: Path) -> None:
    """Within 5 °C of where the machine switches itself off it is hot, and the reason says so."""
    tree(
        tmp_path,
        class__hwmon__hwmon0__name="coretemp",
        class__hwmon__hwmon0__temp1_input=95000,
        class__hwmon__hwmon0__temp1_label="Package id 0",
        class__hwmon__hwmon0__temp1_crit=100000,
    )
    assert read(tmp_path).problems() == ["hot: coretemp Package id 0 95.0 °C (switches off at 100)"]


def test_a_zone_is_hot_from_its_passive_trip_point(tmp_path: Path) -> None:
    """A board whose zone slows it down from 80 °C is hot at 80 °C, whatever its fan does at 50."""
    zone(tmp_path, 0, "cpu-thermal", 80000, active=50000, passive=80000, critical=110000)
    heat = read(tmp_path)
    assert heat.celsius == 80.0
    assert heat.problems() == ["hot: cpu-thermal 80.0 °C (slows down from 80, switches off at 110)"]


@pytest.mark.parametrize(("milli", "hot"), [(89999, False), (90000, True)])
def test_without_a_limit_90_degrees_are_hot(tmp_path: Path, milli: int, hot: bool) -> None:
    """A sensor that names no limit is hot from 90 °C."""
    zone(tmp_path, 0, "soc-thermal", milli)
    assert bool(read(tmp_path).problems()) is hot


def test_a_zone_and_its_twin_in_hwmon_are_one_sensor(tmp_path: Path) -> None:
    """The kernel shows a zone in hwmon too, without trip points: it is counted once, with them."""
    zone(tmp_path, 0, "cpu-thermal", 85000, passive=80000)
    tree(
        tmp_path,
        class__hwmon__hwmon0__name="cpu_thermal",
        class__hwmon__hwmon0__temp1_input=85000,
    )
    heat = read(tmp_path)
    assert len(heat.sensors) == 1
    assert heat.problems() == ["hot: cpu_thermal 85.0 °C (slows down from 80)"]


@pytest.mark.parametrize("nonsense", ["", "-273150", "65261850", "N/A", "999999999999999999999"])
def test_a_broken_sensor_is_left_out(tmp_path: Path, nonsense: str) -> None:
    """A reading that cannot be is no temperature; the sensor beside it counts."""
    zone(tmp_path, 0, "broken", nonsense)
    zone(tmp_path, 1, "whole", 41500)
    assert read(tmp_path).celsius == 41.5


def test_a_cooled_processor_is_throttled(tmp_path: Path) -> None:
    """A cooling device of the processor beyond state 0 means throttled, with the frequency."""
    cooling(tmp_path, 0, "cpufreq-cpu0", 2)
    tree(
        tmp_path,
        devices__system__cpu__cpufreq__policy0__scaling_max_freq=1200000,
        devices__system__cpu__cpufreq__policy0__cpuinfo_max_freq=1800000,
    )
    assert read(tmp_path).problems() == [
        "throttled: the kernel cools cpufreq-cpu0 (step 2 of 5, at most 1200 of 1800 MHz)"
    ]


@pytest.mark.parametrize(("kind", "state"), [("pwm-fan", 4), ("cpufreq-cpu0", 0)])
def test_a_running_fan_is_no_throttling(tmp_path: Path, kind: str, state: int) -> None:
    """A fan, and a processor that is not held back, are no reason."""
    cooling(tmp_path, 0, kind, state)
    assert read(tmp_path).problems() == []


def test_a_frequency_that_the_owner_lowered_is_no_throttling(tmp_path: Path) -> None:
    """A processor below its highest frequency is not called throttled for that alone."""
    tree(
        tmp_path,
        devices__system__cpu__cpufreq__policy0__scaling_max_freq=600000,
        devices__system__cpu__cpufreq__policy0__cpuinfo_max_freq=1800000,
    )
    assert read(tmp_path).problems() == []


@pytest.mark.parametrize(
    "place",
    ["soc__soc:firmware", "soc@107c000000__soc@107c000000:firmware"],
)
def test_a_raspberry_pi_says_what_slows_it(tmp_path: Path, place: str) -> None:
    """Each bit of get_throttled that holds now becomes words; what is over does not count."""
    tree(tmp_path, **{f"devices__platform__{place}__get_throttled": "d0005"})
    assert read(tmp_path).problems() == [
        "throttled: the voltage is too low: use a stronger power supply",
        "throttled: the firmware slows the processor down",
    ]


def test_a_raspberry_pi_of_the_past_is_well(tmp_path: Path) -> None:
    """Bits that say "has occurred since boot" are no reason now."""
    tree(tmp_path, **{"devices__platform__soc__soc:firmware__get_throttled": "50000"})
    assert read(tmp_path).problems() == []


def test_the_kernels_voltage_alarm_counts_too(tmp_path: Path) -> None:
    """Where the firmware's word is not shown, the hwmon driver's alarm says the same."""
    tree(
        tmp_path,
        class__hwmon__hwmon2__name="rpi_volt",
        class__hwmon__hwmon2__in0_lcrit_alarm=1,
    )
    assert read(tmp_path).problems() == [
        "throttled: the voltage is too low: use a stronger power supply"
    ]


def test_counted_throttling_is_spoken_of_for_a_minute(tmp_path: Path) -> None:
    """An x86 counter that grows means throttled, until it has stood still for a minute."""
    counter = "devices__system__cpu__cpu0__thermal_throttle__core_throttle_count"
    now = 1000.0
    meter = Thermometer(tree(tmp_path, **{counter: 7}), clock=lambda: now)
    assert meter.read().problems() == []  # from before we came
    tree(tmp_path, **{counter: 8})
    now += EVERY_SECONDS
    assert [why.split(":")[0] for why in meter.read().problems()] == ["throttled"]
    now += RECENT_SECONDS
    assert meter.read().problems() == []


def test_sensors_are_not_asked_at_every_turn(tmp_path: Path) -> None:
    """Within a few seconds the last reading is given again."""
    now = 0.0
    meter = Thermometer(zone(tmp_path, 0, "soc", 40000), clock=lambda: now)
    assert meter.read().celsius == 40.0
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("50000\n")
    now = EVERY_SECONDS - 0.1
    assert meter.read().celsius == 40.0
    now = EVERY_SECONDS
    assert meter.read().celsius == 50.0


def test_this_machine_can_be_read() -> None:
    """On the machine that runs the tests, reading gives a sensible temperature or none."""
    heat = Thermometer().read()
    assert heat.celsius is None or -60 < heat.celsius < 200
