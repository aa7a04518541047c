"""V4L2 devices and their numbers, on a sysfs made of files.

A real driver whose camera goes and comes is in `scripts/machines/test-v4l2`, in a virtual machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.core.errors import SourceError
from edge_agent.sources.v4l2 import Devices, Mode, choose, modes, shown

STANDING = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""Devices that every machine has; they lend their numbers to /dev/video0 and so on."""


class Bench:
    """A machine where cameras are plugged in and out."""

    def __init__(self, folder: Path) -> None:
        self._sysfs, self._dev = folder / "sys", folder / "dev"
        for each in (self._sysfs / "class/video4linux", self._sysfs / "dev/char", self._dev):
            each.mkdir(parents=True)
        self.devices = Devices(self._sysfs, self._dev)

    def node(self, number: int) -> Path:
        return self._dev / f"video{number}"

    def plug(
        self, number: int, name: str = "Webcam", *, port: str = "1-1", serial: str | None = None
    ) -> Path:
        """Plug a USB camera in; gives its node."""
        parent = self._sysfs / "devices/usb1" / port / f"{port}:1.0"
        parent.mkdir(parents=True, exist_ok=True)
        (parent / "uevent").write_text("DRIVER=uvcvideo\nPRODUCT=46d/82d/11\n")
        if serial is not None:
            (parent.parent / "serial").write_text(f"{serial}\n")
        folder = parent / "video4linux" / f"video{number}"
        folder.mkdir(parents=True)
        stands = STANDING[number]
        known = Path(stands).stat().st_rdev
        code = f"{os.major(known)}:{os.minor(known)}"
        for file, text in (("name", name), ("index", "0"), ("dev", code)):
            (folder / file).write_text(f"{text}\n")
        (folder / "device").symlink_to(parent)
        (self._sysfs / "dev/char" / code).symlink_to(folder)
        (self._sysfs / "class/video4linux" / folder.name).symlink_to(folder)
        self.node(number).symlink_to(stands)
        return self.node(number)

    def unplug(self, number: int) -> None:
        """Take what has this number out."""
        entry = self._sysfs / "class/video4linux" / f"video{number}"
        code = (entry / "dev").read_text().strip()
        folder = entry.resolve()
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        (folder.parents[2] / "serial").unlink(missing_ok=True)
        for link in (entry, self._sysfs / "dev/char" / code, self.node(number)):
            link.unlink()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Give a machine without cameras."""
    return Bench(tmp_path)


def test_a_camera_is_found_under_its_new_number(bench: Bench) -> None:
    """It comes back in the same port as another device: that one is opened."""
    path = bench.plug(0)
    assert bench.devices.locate(path) == path
    bench.devices.remember(path, path)
    bench.unplug(0)
    assert bench.devices.locate(path) == path  # to say that it is not there
    bench.plug(1)
    assert bench.devices.locate(path) == bench.node(1)
    bench.devices.remember(path, bench.node(1))
    bench.unplug(1)
    bench.plug(0)
    assert bench.devices.locate(path) == path


def test_a_number_that_went_to_another_camera_is_not_taken(bench: Bench) -> None:
    """Two cameras come back in another order: each pipeline keeps its own."""
    left, right = bench.plug(0, "Left", port="1-1"), bench.plug(1, "Right", port="1-2")
    for path in (left, right):
        bench.devices.remember(path, path)
    bench.unplug(0)
    bench.unplug(1)
    bench.plug(0, "Right", port="1-2")
    with pytest.raises(SourceError, match=r"another camera now \(Right at .*Left is not to be"):
        bench.devices.locate(left)
    bench.plug(1, "Left", port="1-1")
    assert bench.devices.locate(left) == bench.node(1)
    assert bench.devices.locate(right) == bench.node(0)


def test_another_port(bench: Bench) -> None:
    """In another port it is known by what it is, if nothing else looks the same."""
    path = bench.plug(0, serial="7")
    bench.devices.remember(path, path)
    bench.unplug(0)
    bench.plug(1, port="1-2", serial="8")
    assert bench.devices.locate(path) == path
    bench.plug(2, port="1-3", serial="7")
    assert bench.devices.locate(path) == bench.node(2)


def test_twins_are_told_apart_by_their_ports(bench: Bench) -> None:
    """Cameras without serial numbers: the one beside it is never taken for the one that is gone."""
    path, twin = bench.plug(0, port="1-1"), bench.plug(1, port="1-2")
    bench.devices.remember(path, path)
    bench.unplug(0)
    assert bench.devices.locate(path) == path
    bench.devices.remember(twin, twin)
    bench.plug(2, port="1-3")
    assert bench.devices.locate(path) == bench.node(2)
    bench.plug(3, port="1-4")
    assert bench.devices.locate(path) == path  # either might be it
    bench.plug(0, port="1-1")
    assert bench.devices.locate(path) == path


def test_a_link_that_udev_keeps_right_is_followed(bench: Bench, tmp_path: Path) -> None:
    """/dev/v4l/by-id leads to the same camera whatever its number: the link itself is opened."""
    link = tmp_path / "by-id"
    link.symlink_to(bench.plug(0))
    bench.devices.remember(link, link)
    bench.unplug(0)
    link.unlink()
    link.symlink_to(bench.plug(1))
    assert bench.devices.locate(link) == link


def test_what_sysfs_does_not_know_is_opened_as_it_is(bench: Bench, tmp_path: Path) -> None:
    """No sysfs, no memory: the path in the settings counts."""
    device = Path("/dev/null")
    bench.devices.remember(device, device)
    assert bench.devices.locate(device) == device
    assert bench.devices.locate(tmp_path / "none") == tmp_path / "none"


OFFERED = (
    Mode("YUYV", (640, 480), (30.0, 15.0)),
    Mode("YUYV", (1280, 720), (10.0,)),
    Mode("MJPG", (640, 480), (30.0,)),
    Mode("MJPG", (1280, 720), (30.0, 60.0)),
    Mode("GREY", (1920, 1080), least=(16, 16)),
)


@pytest.mark.parametrize(
    ("size", "fps", "format_"),
    [
        ((640, 480), None, "YUYV"),
        ((640, 480), 15.0, "YUYV"),
        ((1280, 720), None, "MJPG"),
        ((1280, 720), 5.0, "YUYV"),
        (None, 60.0, "MJPG"),
        ((4000, 3000), None, None),
    ],
)
def test_the_cheapest_format_that_is_quick_enough_is_taken(
    size: tuple[int, int] | None, fps: float | None, format_: str | None
) -> None:
    """Compressed only where nothing else gives the size at the rate."""
    assert choose(OFFERED, size, fps) == format_


def test_what_is_offered_is_one_line() -> None:
    """By format; of what cannot be asked, nothing."""
    assert shown(OFFERED).endswith("MJPG 640x480 at 30, 1280x720 at 60; also GREY")
    assert modes(Path("/dev/null")) == modes(Path("/dev/no-such")) == []
