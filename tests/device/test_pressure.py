"""MemoryUse and disk that run short, from trees of files and from real file systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.device.headroom import bound, free_mb
from edge_agent.device.pressure import disk_problems, memory_problems, memory_uses
from tests.helpers.memory_groups import limited
from tests.helpers.support import call_cli

MIB = 2**20


def proc(root: Path, *, total_mb: int = 4096, available_mb: int = 3000, cgroup: str = "") -> Path:
    """Write /proc of a machine."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:       {total_mb * 1024} kB\nMemFree:  1 kB\n"
        f"MemAvailable:   {available_mb * 1024} kB\n"
    )
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def group(root: Path, path: str, **files: str | int) -> Path:
    """Write a cgroup's files; "_" in a name stands for "." once."""
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")
    return root


V2 = "0::/system.slice/edge-agent.service\n"


def test_a_roomy_machine_gives_no_reason(tmp_path: Path) -> None:
    """With most of the memory free there is nothing to say."""
    assert memory_problems(proc(tmp_path)) == []


def test_a_machine_without_memory_left(tmp_path: Path) -> None:
    """With less than a tenth available the reason names how much is used of what."""
    proc(tmp_path, total_mb=1000, available_mb=90)
    (reason,) = memory_problems(tmp_path)
    assert reason.startswith("memory: 910 of 1000 MiB of the machine's memory are used; ")


def test_a_cgroup_of_version_2_near_its_limit(tmp_path: Path) -> None:
    """memory.current against memory.max of the service counts, where the machine has room."""
    proc(tmp_path, cgroup=V2)
    group(
        tmp_path,
        "system.slice/edge-agent.service",
        memory_max=512 * MIB,
        memory_high="max",
        memory_current=470 * MIB,
        memory_stat="anon 1\ninactive_file 1048576",
    )
    assert memory_problems(tmp_path)[0].startswith(
        "memory: 469 of 512 MiB of what this service may use"
    )


def test_the_page_cache_is_not_used_memory(tmp_path: Path) -> None:
    """What the kernel would give back, such as a model file read through, is no reason."""
    proc(tmp_path, cgroup=V2)
    group(
        tmp_path,
        "system.slice/edge-agent.service",
        memory_max=512 * MIB,
        memory_current=510 * MIB,
        memory_stat=f"anon 1\ninactive_file {300 * MIB}",
    )
    assert memory_problems(tmp_path) == []


def test_files_in_use_leave_room_for_a_model(tmp_path: Path) -> None:
    """The code of engines is read again when needed; the reason names the limit that is near."""
    proc(tmp_path, cgroup=V2)
    assert free_mb(tmp_path) == 2400
    assert bound(tmp_path) == "of 4096 MiB of the machine's memory"
    files = {"active_file": 200 * MIB, "inactive_file": 20 * MIB}
    stat = "\n".join(f"{name} {size}" for name, size in files.items())
    group(
        tmp_path,
        "system.slice/edge-agent.service",
        memory_max=300 * MIB,
        memory_current=290 * MIB,
        memory_stat=stat,
    )
    assert free_mb(tmp_path) == 184
    assert bound(tmp_path).startswith("of 300 MiB of what this service may use (MemoryMax, or ")


def test_a_file_that_is_mapped_takes_no_room(tmp_path: Path) -> None:
    """Of a real control group: it is resident, but the kernel drops it for a model."""
    (tmp_path / "library").write_bytes(bytes(200 * MIB))
    script = (
        "import mmap, sys\nopen(sys.argv[1], 'w').write('0')\n"
        "from edge_agent.device import headroom\n"
        "file = open(sys.argv[2], 'rb')\n"
        "library = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "sum(library[::4096])\n"
        "print(headroom.own_mb(), headroom.free_mb())"
    )
    with limited(300) as members:
        words = [sys.executable, "-c", script, str(members), str(tmp_path / "library")]
        resident, free = subprocess.check_output(words, text=True).split()
    assert float(resident) > 200
    assert int(free) > 200


def test_the_slice_above_counts_too(tmp_path: Path) -> None:
    """A limit of a cgroup above ours holds for us, and the nearest limit is the one named."""
    proc(tmp_path, cgroup=V2)
    group(tmp_path, "system.slice", memory_high=100 * MIB, memory_current=99 * MIB)
    group(
        tmp_path,
        "system.slice/edge-agent.service",
        memory_max=512 * MIB,
        memory_current=480 * MIB,
    )
    assert memory_problems(tmp_path)[0].startswith("memory: 99 of 100 MiB")


def test_a_cgroup_of_version_1(tmp_path: Path) -> None:
    """memory.usage_in_bytes counts; a limit of 2**63 bytes is none."""
    proc(tmp_path, cgroup="4:memory:/agent\n")
    group(
        tmp_path,
        "memory/agent",
        memory_limit_in_bytes=256 * MIB,
        memory_usage_in_bytes=250 * MIB,
        memory_stat="total_inactive_file 0",
    )
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "sys/fs/cgroup/memory/memory.usage_in_bytes").write_text("1\n")
    assert [each.limit for each in memory_uses(tmp_path)] == [256 * MIB, 4096 * MIB]
    assert memory_problems(tmp_path)[0].startswith("memory: 250 of 256 MiB")


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    """Without /proc and /sys there is no reason and no error."""
    assert memory_problems(tmp_path) == []


def test_this_machine_can_be_read() -> None:
    """On the machine that runs the tests, every limit is above 0 and use is not negative."""
    found = memory_uses()
    assert found
    assert all(each.limit > 0 and each.used >= 0 for each in found)


def test_a_disk_with_room_gives_no_reason(tmp_path: Path) -> None:
    """A folder that is not there is a reason, one on a roomy disk is none."""
    assert disk_problems(tmp_path / "gone") == [
        f"disk: {tmp_path / 'gone'}: No such file or directory"
    ]
    disk = os.statvfs(tmp_path)
    if disk.f_bavail * disk.f_frsize < 256 * MIB:
        pytest.skip("the disk that the tests run on is nearly full itself")
    assert disk_problems(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """Mount a file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    return folder


def test_a_full_and_a_read_only_disk(small_disk: Path) -> None:
    """Of a real file system: room is no reason, a full one and a read-only one are, in words.

    `edge-agent check` says it too.
    """
    try:
        assert disk_problems(small_disk) == []
        (small_disk / "filler").write_bytes(bytes(3900 * 1024))
        config = small_disk.parent / "config.toml"
        config.write_text(f'state_dir = "{small_disk}"\nbroker.url = "mqtt://127.0.0.1:1"\n')
        words = f"disk: 0 of 4 MiB are free where {small_disk} is; make room"
        assert f"note  {words}" in call_cli("check", "--config", str(config)).out
        assert disk_problems(small_disk) == [
            f"disk: 0 of 4 MiB are free where {small_disk} is; make room"
        ]
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        assert disk_problems(small_disk) == [
            f"disk: {small_disk} is read-only: nothing can be kept over a restart"
        ]
        said = call_cli("check", "--config", str(config))
        assert f"FAIL  state_dir: {small_disk} is read-only: nothing can be kept" in said.out
        assert "mount -o remount,rw makes it writable" in said.out
    finally:
        subprocess.run(["umount", str(small_disk)], check=True)


def test_a_disk_that_is_read_only_for_the_service_alone(small_disk: Path) -> None:
    """It was remounted outside of the service, whose own mount stayed: nothing said what mends."""
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(small_disk)], check=True)
        (why,) = disk_problems(small_disk)
        assert why.startswith(f"disk: {small_disk} is read-only for this process, although its")
        assert "systemctl restart edge-agent" in why
    finally:
        subprocess.run(["umount", str(small_disk)], check=True)
