"""Hardware facts of this machine, read from the kernel's files: no library, driver or probe.

Missing or malformed facts are left out or treated as absent; reading never fails. All files are
read below one root, so that a tree of files can represent any machine.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Literal

from ..core.frozen import record
from .resources import ROOT, entries, read, text, usable_cpus, usable_memory

Gpu = Literal["intel", "nvidia", "amd"]

_MIB = 1024 * 1024


@record(kw_only=True)
class Facts:
    """Hardware of one machine that affects the choice of an engine."""

    arch: str
    """x86_64, aarch64 or another kernel name of the architecture."""
    vendor: str
    """Vendor of the processor: intel, amd, arm …; empty: unknown."""
    cpu: str
    """The processor's model, to display."""
    flags: frozenset[str]
    """Instruction sets of all cores, by the kernel's names (avx512_vnni, asimddp …)."""
    cpus: int
    """Cores that this process may use, given affinity and cgroup quota."""
    memory_mb: int
    """Memory that this process may use, MiB, given machine and cgroup; 0: unknown."""
    board: str
    os: str
    kernel: str
    gpus: frozenset[Gpu]
    """Vendors of the GPUs whose driver is loaded."""
    npu: bool
    """Whether the driver of an Intel NPU is loaded."""
    denied: tuple[str, ...] = ()
    """Device nodes of GPUs and NPUs that this user may not open."""

    def __str__(self) -> str:
        parts = [
            self.board,
            f"{self.cpu or self.vendor or 'unknown processor'} ({self.arch})",
            f"{self.cpus} {'core' if self.cpus == 1 else 'cores'}",
            f"{self.memory_mb} MiB" if self.memory_mb else "",
            *(f"{maker} GPU" for maker in sorted(self.gpus)),
            "Intel NPU" if self.npu else "",
            self.os,
            f"Linux {self.kernel}" if self.kernel else "",
        ]
        return ", ".join(part for part in parts if part)


def read_facts(root: Path = ROOT, machine: str | None = None) -> Facts:
    """Read the facts of this machine, or of a tree of files that represents one."""
    vendor, cpu, flags = _processor(root)
    tegra = b"nvidia,tegra" in read(root / "proc/device-tree/compatible")
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', text(root / "etc/os-release"), re.MULTILINE)
    gpus, npu, nodes = _accelerators(root, tegra=tegra)
    return Facts(
        arch={"amd64": "x86_64", "arm64": "aarch64"}.get(
            (machine or platform.machine()).lower(), (machine or platform.machine()).lower()
        ),
        vendor=vendor,
        cpu=cpu,
        flags=flags,
        cpus=usable_cpus(root),
        memory_mb=usable_memory(root) // _MIB,
        board=_board(root),
        os=name[1] if name else "",
        kernel=text(root / "proc/sys/kernel/osrelease"),
        gpus=gpus,
        npu=npu,
        denied=tuple(
            "/" + str(node.relative_to(root))
            for node in nodes
            if not os.access(node, os.R_OK | os.W_OK)
        ),
    )


# By "CPU implementer" and "CPU part" in /proc/cpuinfo, from Arm's manual of each core (MIDR_EL1).
_IMPLEMENTERS = {0x41: "arm", 0x4E: "nvidia", 0x51: "qualcomm", 0x61: "apple", 0xC0: "ampere"}
_ARM_CORES = {
    0xD03: "Cortex-A53",
    0xD04: "Cortex-A35",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD40: "Neoverse-V1",
    0xD41: "Cortex-A78",
    0xD42: "Cortex-A78AE",
    0xD46: "Cortex-A510",
    0xD47: "Cortex-A710",
    0xD49: "Neoverse-N2",
    0xD4F: "Neoverse-V2",
}
_X86_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "hygon"}


def _processor(root: Path) -> tuple[str, str, frozenset[str]]:
    """Read vendor, model and the flags that all cores share."""
    cores: list[dict[str, str]] = [{}]
    for line in text(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if not line.strip():
            cores.append({})
        elif colon:
            cores[-1][key.strip().lower()] = value.strip()
    flag_sets = [
        frozenset((core.get("flags") or core["features"]).split())
        for core in cores
        if "flags" in core or "features" in core
    ]
    # If cores differ (big and little), a network may run on any of them.
    flags = frozenset.intersection(*flag_sets) if flag_sets else frozenset()
    first = cores[0]
    if "vendor_id" in first:
        vendor = _X86_VENDORS.get(first["vendor_id"], first["vendor_id"].lower())
        return vendor, first.get("model name", ""), flags
    vendor = _IMPLEMENTERS.get(_hex(first.get("cpu implementer", "")), "")
    # The largest cores come last in every device tree seen; the displayed name starts with them.
    parts = [_hex(core["cpu part"]) for core in cores if "cpu part" in core]
    names = dict.fromkeys(
        _ARM_CORES.get(part, f"{vendor or 'ARM'} core {part:#x}") for part in parts
    )
    return vendor, " + ".join(reversed(names)), flags


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _accelerators(root: Path, *, tegra: bool) -> tuple[frozenset[Gpu], bool, list[Path]]:
    """Find GPUs and NPUs by their loaded drivers, and their device nodes."""
    gpus: set[Gpu] = set()
    nodes: list[Path] = []
    makers: dict[str, Gpu] = {"0x8086": "intel", "0x1002": "amd"}
    for node in entries(root / "dev/dri", "renderD*"):
        maker = makers.get(text(root / "sys/class/drm" / node.name / "device/vendor"))
        if maker is not None:
            gpus.add(maker)
            nodes.append(node)
    npus = [
        node
        for node in entries(root / "dev/accel", "accel*")
        if text(root / "sys/class/accel" / node.name / "device/vendor") == "0x8086"
    ]
    desktop = entries(root / "dev", "nvidia[0-9]*") + entries(
        root / "proc/driver/nvidia", "version"
    )
    # A Jetson's GPU is part of the chip: it has no PCI vendor, but special nodes.
    jetson = entries(root / "dev", "nvhost-gpu") + entries(root / "dev", "nvgpu") if tegra else []
    if desktop or jetson:
        gpus.add("nvidia")
        nodes += [node for node in desktop if node.name != "version"]
    return frozenset(gpus), bool(npus), nodes + npus


def _board(root: Path) -> str:
    """Return the board's name from the device tree, or else from the DMI tables."""
    model = text(root / "proc/device-tree/model")
    if model:
        return model
    tables = root / "sys/class/dmi/id"
    words = [text(tables / name) for name in ("sys_vendor", "product_name")]
    return " ".join(word for word in words if word and "O.E.M." not in word)
