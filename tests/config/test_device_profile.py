"""Facts of a machine from trees of files, the profile they lead to, and probing in children."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.config.device_profile import (
    DeviceProfile,
    choose,
    lineup,
    load_profiles,
    unread_files,
)
from edge_agent.core.errors import UsageError
from edge_agent.device.hardware import Facts, read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.probe import EngineFacts, Probe, probe
from edge_agent.inference.engines.registry import EngineName, installed

PROFILES = Path(__file__).resolve().parents[2] / "device_profiles"

X86 = "fpu sse4_2 avx avx2 fma f16c"
ARM = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"


def x86(vendor: str, model: str, flags: str, cores: int = 4) -> str:
    """Write /proc/cpuinfo as an x86 kernel does."""
    return "\n".join(
        f"processor\t: {core}\nvendor_id\t: {vendor}\nmodel name\t: {model}\nflags\t: {flags}\n"
        for core in range(cores)
    )


def arm(parts: list[int], features: list[str]) -> str:
    """Write /proc/cpuinfo as an ARM kernel does: one part and one list of features a core."""
    return "\n".join(
        f"processor : {core}\nFeatures : {found}\nCPU implementer : 0x41\nCPU part : {part:#x}\n"
        for core, (part, found) in enumerate(zip(parts, features, strict=True))
    )


def memory(mib: int) -> str:
    """Write /proc/meminfo."""
    return f"MemTotal:       {mib * 1024} kB\nMemFree:  12 kB\n"


INTEL_GPU = {"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x8086\n"}
AMD_GPU = {"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x1002\n"}
INTEL_NPU = {"dev/accel/accel0": "", "sys/class/accel/accel0/device/vendor": "0x8086\n"}
XEON = x86(
    "GenuineIntel", "Intel(R) Xeon(R) Platinum 8480+", f"{X86} avx512_vnni amx_tile amx_int8"
)
MACHINES: Mapping[str, tuple[str, Mapping[str, str], str]] = {
    "Xeon with AMX": ("x86_64", {"proc/cpuinfo": XEON}, "intel-cpu-amx"),
    "N100 without GPU driver": (
        "x86_64",
        {"proc/cpuinfo": x86("GenuineIntel", "Intel(R) N100", f"{X86} avx_vnni")},
        "intel-cpu-vnni",
    ),
    "Core of 2015": (
        "x86_64",
        {"proc/cpuinfo": x86("GenuineIntel", "Intel(R) Core(TM) i5-6500", X86)},
        "intel-cpu",
    ),
    "N100": (
        "x86_64",
        {"proc/cpuinfo": x86("GenuineIntel", "Intel(R) N100", f"{X86} avx_vnni"), **INTEL_GPU},
        "intel-igpu",
    ),
    "Core Ultra": (
        "x86_64",
        {
            "proc/cpuinfo": x86("GenuineIntel", "Intel(R) Core(TM) Ultra 7", f"{X86} avx_vnni"),
            **INTEL_GPU,
            **INTEL_NPU,
        },
        "intel-npu",
    ),
    "Ryzen": (
        "x86_64",
        {"proc/cpuinfo": x86("AuthenticAMD", "AMD Ryzen 7 7840U", f"{X86} avx512_vnni"), **AMD_GPU},
        "amd-cpu",
    ),
    "Zhaoxin": ("x86_64", {"proc/cpuinfo": x86("  Shanghai  ", "KX-6640", X86)}, "generic-x86"),
    "PC with NVIDIA GPU": (
        "x86_64",
        {"proc/cpuinfo": XEON, "proc/driver/nvidia/version": "NVRM", "dev/nvidia0": ""},
        "nvidia-gpu",
    ),
    "Jetson Orin": (
        "aarch64",
        {
            "proc/cpuinfo": arm([0xD42] * 6, [f"{ARM} asimddp"] * 6),
            "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
            "proc/device-tree/compatible": "nvidia,p3768-0000\0nvidia,tegra234\0",
            "dev/nvhost-gpu": "",
        },
        "nvidia-jetson",
    ),
    "Raspberry Pi 5": (
        "aarch64",
        {
            "proc/cpuinfo": arm([0xD0B] * 4, [f"{ARM} asimddp"] * 4),
            "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
            "proc/meminfo": memory(8000),
        },
        "arm-dotprod",
    ),
    "RK3588": (
        "aarch64",
        {"proc/cpuinfo": arm([0xD05] * 4 + [0xD0B] * 4, [f"{ARM} asimddp"] * 8)},
        "arm-dotprod",
    ),
    "Graviton 3": (
        "aarch64",
        {"proc/cpuinfo": arm([0xD40] * 2, [f"{ARM} asimddp sve i8mm bf16"] * 2)},
        "arm-i8mm",
    ),
    "Raspberry Pi 4": (
        "aarch64",
        {"proc/cpuinfo": arm([0xD08] * 4, [ARM] * 4), "proc/meminfo": memory(3800)},
        "arm-cpu",
    ),
    "Raspberry Pi 3": (
        "aarch64",
        {"proc/cpuinfo": arm([0xD03] * 4, [ARM] * 4), "proc/meminfo": memory(905)},
        "arm-small",
    ),
    "big and little cores that differ": (
        "aarch64",
        {"proc/cpuinfo": arm([0xD03] * 4 + [0xD0B] * 4, [ARM] * 4 + [f"{ARM} asimddp"] * 4)},
        "arm-cpu",
    ),
    "RISC-V board": ("riscv64", {"proc/cpuinfo": "processor : 0\nisa : rv64gc\n"}, "generic"),
    "nothing readable": ("x86_64", {}, "generic-x86"),
}


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Make a tree of files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def profiles() -> dict[str, DeviceProfile]:
    """Load the profiles that come with the program."""
    return load_profiles([PROFILES])


@pytest.mark.parametrize("machine", MACHINES)
def test_machine_leads_to_its_profile(
    machine: str, profiles: dict[str, DeviceProfile], tmp_path: Path
) -> None:
    """Each kind of machine gets the profile written for it, with a reason for every other one."""
    arch, files, expected = MACHINES[machine]
    match = choose(profiles, read_facts(plant(tmp_path, files), arch))
    assert match.name == expected
    assert match.reason
    assert {name for name, _ in match.rejected} == set(profiles) - {expected}
    assert all(why for _, why in match.rejected)


@pytest.mark.parametrize("machine", MACHINES)
def test_without_accelerators_nothing_is_probed(
    machine: str, profiles: dict[str, DeviceProfile], tmp_path: Path
) -> None:
    """Engines are asked only where a driver of what the profile lists is loaded."""
    arch, files, _ = MACHINES[machine]
    facts = read_facts(plant(tmp_path, files), arch)
    asked = []

    def ask() -> Probe:
        asked.append(machine)
        return Probe(
            {name: EngineFacts("1", {"CPU": "CPU"}) for name in ("openvino", "onnxruntime")}
        )

    found = lineup(choose(profiles, facts).profile, facts, ask)
    assert len(asked) == int(bool(facts.gpus - {"amd"}) or facts.npu)
    assert found.choices, "no engine is left"
    assert all(choice.device == "CPU" for choice in found.choices)
    assert all(why for _, why in found.absent)


def test_every_profile_ends_on_the_cpu(profiles: dict[str, DeviceProfile]) -> None:
    """Whatever accelerator a profile prefers, its last engine runs on the processor."""
    assert {
        name for name, profile in profiles.items() if profile.engines[-1].device != "CPU"
    } == set()


def test_int8_on_arm_goes_to_onnx_runtime_first(profiles: dict[str, DeviceProfile]) -> None:
    """OpenVINO runs INT8 as floating point on ARM, so it is only the fallback there."""
    for name in ("arm-cpu", "arm-dotprod", "arm-i8mm", "arm-small"):
        assert profiles[name].engines[0].engine == "onnxruntime"


def test_facts_of_a_raspberry_pi(tmp_path: Path) -> None:
    """Board, cores, memory and flags are read as a person would name them."""
    files = {
        **MACHINES["Raspberry Pi 5"][1],
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3\n",
        "proc/sys/kernel/osrelease": "6.12.34+rpt-rpi-2712\n",
        "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    }
    facts = read_facts(plant(tmp_path, files), "aarch64")
    assert facts.board == "Raspberry Pi 5 Model B Rev 1.0"
    assert (facts.vendor, facts.cpu) == ("arm", "Cortex-A76")
    assert (facts.cpus, facts.memory_mb) == (4, 8000)
    assert facts.kernel == "6.12.34+rpt-rpi-2712"
    assert facts.os == "Debian GNU/Linux 12 (bookworm)"
    assert "asimddp" in facts.flags
    assert not (facts.gpus)
    assert not (facts.npu)
    assert "Raspberry Pi 5" in str(facts)


@pytest.mark.parametrize(
    ("files", "cpus", "mib"),
    [
        ({}, 8, 4000),
        ({"proc/self/status": "Cpus_allowed_list:\t2,4-6\n"}, 4, 4000),
        (
            {
                "proc/self/cgroup": "0::/system.slice/edge.service\n",
                "sys/fs/cgroup/system.slice/edge.service/cpu.max": "250000 100000\n",
                "sys/fs/cgroup/system.slice/edge.service/memory.max": f"{512 << 20}\n",
                "sys/fs/cgroup/system.slice/memory.max": "max\n",
            },
            2,
            512,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/memory.high": f"{256 << 20}\n",
            },
            1,
            256,
        ),
        (
            {  # a container that sees the host's path but only its own mount
                "proc/self/cgroup": "0::/docker/0123\n",
                "sys/fs/cgroup/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/memory.max": f"{1 << 30}\n",
            },
            3,
            1024,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{700 << 20}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            4,
            700,
        ),
    ],
    ids=["free", "affinity", "v2", "v2 above", "container", "v1"],
)
def test_limits_count(files: Mapping[str, str], cpus: int, mib: int, tmp_path: Path) -> None:
    """Cores and memory are what this process may use: affinity, and every cgroup above it."""
    plain = {
        "proc/meminfo": memory(4000),
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-7\n",
    }
    facts = read_facts(plant(tmp_path, plain | dict(files)))
    assert (facts.cpus, facts.memory_mb) == (cpus, mib)


ODD_NAMES = (
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/self/status",
    "proc/self/cgroup",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max",
    "proc/device-tree/model",
    "etc/os-release",
    "sys/class/drm/renderD128/device/vendor",
    "dev/dri/renderD128",
)
ODD_CONTENTS = (
    b"CPU implementer : zz\nCPU part : 0xg\n",
    b"0::../../..\n",
    b"100 0\n",
    b"Cpus_allowed_list:\t-,9-2\n",
    b"flags\n:\n",
    b"\0\0",
    b"-1 100000",
)


@settings(deadline=None, max_examples=60)
@given(
    files=st.dictionaries(
        st.sampled_from(ODD_NAMES), st.binary(max_size=80) | st.sampled_from(ODD_CONTENTS)
    )
)
def test_odd_files_never_raise(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the files hold, facts are read, with at least one core."""
    root = tmp_path_factory.mktemp("odd")
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    facts = read_facts(root)
    assert facts.cpus >= 1
    assert facts.memory_mb >= 0


def test_this_machine_has_facts() -> None:
    """On the machine that runs the tests, what every Linux shows is found."""
    facts = read_facts()
    assert facts.flags
    assert facts.memory_mb > 0
    assert facts.kernel


PLAIN = 'description = "x"\n[[engines]]\nengine = "openvino"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("description = 'x'\n", ["engines", "missing"]),
        ('description = "x"\nengines = []\n', ["engines"]),
        (PLAIN + 'devise = "GPU"\n', ["engines[0].devise", "device"]),
        (PLAIN.replace("openvino", "tensorflow"), ["engines[0].engine", "tensorflow"]),
        ("lanes = -1\n" + PLAIN, ["lanes", "-1"]),
        ('swap = "sideways"\n' + PLAIN, ["swap", "sideways"]),
        (PLAIN + '[match]\ngpu = "voodoo"\n', ["match.gpu", "voodoo"]),
        (PLAIN + "[match]\nflag_all = []\n", ["match.flag_all", "flags_all"]),
        (PLAIN + '[match]\nboard = "("\n', ["match.board", "regular expression"]),
        ("description = ", ["TOML"]),
        ('tune = "yes"\n' + PLAIN, ["tune", "true or false", "'yes'"]),
        ("tune = 1\n" + PLAIN, ["tune", "true or false"]),
        (PLAIN + "[match]\nnpu = 1\n", ["match.npu", "true or false"]),
        ("lanes = true\n" + PLAIN, ["lanes", "a whole number"]),
        ('threads = "2"\n' + PLAIN, ["threads", "a whole number", "'2'"]),
        ("unload_idle_s = true\n" + PLAIN, ["unload_idle_s", "a number"]),
        ("memory_budget_mb = 1.0\n" + PLAIN, ["memory_budget_mb", "a whole number"]),
        (PLAIN + 'precision = "f8"\n', ["engines[0].precision", "'f8'", "'bf16'"]),
    ],
)
def test_broken_profile(text: str, words: list[str], tmp_path: Path) -> None:
    """A profile that is wrong is one line with its file, the key and what is wrong."""
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_profiles([tmp_path])
    message = str(caught.value)
    assert str(tmp_path / "mine.toml") in message
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_own_profile_replaces_a_bundled_one(
    profiles: dict[str, DeviceProfile], tmp_path: Path
) -> None:
    """A file in a later folder takes the place of one of the same name; folders may be missing."""
    (tmp_path / "generic.toml").write_text(PLAIN, encoding="utf-8")
    found = load_profiles([PROFILES, tmp_path, tmp_path / "none"])
    assert set(found) == set(profiles)
    assert found["generic"].description == "x"


def test_a_file_whose_name_is_none_is_said(tmp_path: Path) -> None:
    """A profile's name is a name; a file that has another one is not read, and that is said."""
    for name in ("good.toml", "bad name.toml", "LOUD.TOML", "notes.txt"):
        (tmp_path / name).write_text(PLAIN, encoding="utf-8")
    assert list(load_profiles([tmp_path])) == ["good"]
    said = unread_files([tmp_path, tmp_path / "none"])
    assert [line.split(": ")[0] for line in said] == [
        str(tmp_path / name) for name in ("LOUD.TOML", "bad name.toml")
    ]
    assert "NAME.toml" in said[0]


def test_named_profile_is_taken_with_a_doubt(
    profiles: dict[str, DeviceProfile], tmp_path: Path
) -> None:
    """The user's word counts, and where the machine does not look like it, that is said."""
    facts = read_facts(plant(tmp_path, MACHINES["Ryzen"][1]), "x86_64")
    match = choose(profiles, facts, "arm-dotprod")
    assert match.name == "arm-dotprod"
    assert "although it does not match: is for aarch64, this is x86_64" in match.reason


def test_unknown_profile(profiles: dict[str, DeviceProfile], tmp_path: Path) -> None:
    """A profile that is not there is an error with the nearest one's name."""
    with pytest.raises(UsageError, match="did you mean 'intel-igpu'"):
        choose(profiles, read_facts(tmp_path), "intel-gpu")


def test_no_profile_matches(tmp_path: Path) -> None:
    """Without a profile for everything, a machine that none fits is an error."""
    (tmp_path / "pi.toml").write_text(PLAIN + '[match]\nboard = "raspberry"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="none of 1 profiles"):
        choose(load_profiles([tmp_path]), read_facts(tmp_path))


def never() -> Probe:
    """Stand for a probe that must not be needed."""
    raise AssertionError


def pc(tmp_path: Path, cores: int = 4) -> Facts:
    """Read the facts of a PC with an Intel GPU."""
    files = {**MACHINES["N100"][1], "proc/self/status": f"Cpus_allowed_list:\t0-{cores - 1}\n"}
    return read_facts(plant(tmp_path, files), "x86_64")


@pytest.mark.parametrize(("cores", "lanes", "threads"), [(1, 1, 1), (2, 2, 1), (4, 2, 2)])
def test_lanes_share_the_cores(
    cores: int, lanes: int, threads: int, profiles: dict[str, DeviceProfile], tmp_path: Path
) -> None:
    """Left open, there are two lanes where there are two cores, which they share."""
    found = lineup(profiles["intel-cpu"], pc(tmp_path, cores), never)
    assert {(choice.lanes, choice.threads) for choice in found.choices} == {(lanes, threads)}


def test_threads_are_bounded_to_the_cores(tmp_path: Path) -> None:
    """More threads than cores are cut down to them, and it is said which were asked for."""
    text = f"threads = 64\n{PLAIN}[[engines]]\nengine = 'onnxruntime'\nthreads = 4\n"
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    found = lineup(load_profiles([tmp_path])["mine"], pc(tmp_path, 4), never)
    assert [choice.threads for choice in found.choices] == [4, 4]
    (note,) = found.notes
    assert note == (
        "threads = 64 of openvino:CPU: more than this machine's 4 core(s); at most 4 "
        "are used, and fewer where lanes share them"
    )


def test_gpu_that_openvino_does_not_find(
    profiles: dict[str, DeviceProfile], tmp_path: Path
) -> None:
    """A GPU whose driver is loaded but that OpenVINO lacks is left out in words; the CPU serves."""
    asked = Probe(
        {
            "openvino": EngineFacts("1", {"CPU": "Intel N100"}),
            "onnxruntime": EngineFacts("1", {"CPU": "CPUExecutionProvider"}),
        }
    )
    found = lineup(profiles["intel-igpu"], pc(tmp_path), lambda: asked)
    assert [(choice.engine, choice.device) for choice in found.choices] == [
        ("openvino", "CPU"),
        ("onnxruntime", "CPU"),
    ]
    assert [why for _, why in found.absent] == ["openvino finds no GPU here; it has CPU"]


def test_gpu_that_openvino_finds(profiles: dict[str, DeviceProfile], tmp_path: Path) -> None:
    """One of several GPUs is enough for "GPU", and it comes first, in its own precision."""
    asked = Probe(
        {
            "openvino": EngineFacts("1", {"CPU": "x", "GPU.0": "UHD", "GPU.1": "Arc"}),
            "onnxruntime": EngineFacts("1", {"CPU": "x"}),
        }
    )
    found = lineup(profiles["intel-igpu"], pc(tmp_path), lambda: asked)
    assert found.absent == ()
    assert (found.choices[0].device, found.choices[0].precision) == ("GPU", "f16")


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_engine_of_the_settings(
    engine: EngineName, profiles: dict[str, DeviceProfile], tmp_path: Path
) -> None:
    """An engine named in the settings is the only one tried, also where the profile lacks it."""
    for profile in (profiles["intel-cpu"], profiles["arm-small"]):
        found = lineup(profile, pc(tmp_path), never, engine)
        assert [choice.engine for choice in found.choices] == [engine]


def test_probe_of_this_machine() -> None:
    """Asked in children, both engines name their version and at least the processor."""
    found = probe(timeout_s=60)
    assert set(found.engines) == set(installed()) == {"openvino", "onnxruntime"}
    for name, facts in found.engines.items():
        assert facts.problem is None
        assert facts.version is not None
        assert facts.version.startswith(installed()[name])
        assert "CPU" in facts.devices
        assert found.lacks(name, "CPU") is None
    assert "finds no Banana here; it has CPU" in str(found.lacks("openvino", "Banana"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import os; os.abort()", "probing openvino devices ended with SIGABRT"),
        ("import os; os._exit(3)", "probing openvino devices ended with status 3 and no answer"),
        (
            "import threading; threading.Event().wait()",
            "probing openvino devices gave no answer within",
        ),
        ("raise ImportError('libtbb.so.12 is missing')", "libtbb.so.12 is missing"),
        ("def Core(): raise RuntimeError('no plugins\\nat x')", "openvino: no plugins"),
    ],
)
def test_probe_survives_a_driver(
    body: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that aborts, exits, hangs or fails is told in words, and hides no other engine."""
    (tmp_path / "openvino.py").write_text(body, encoding="utf-8")
    (tmp_path / "onnxruntime.py").write_text(
        "__version__ = '9'\ndef get_available_providers(): return ['CPUExecutionProvider']\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe(timeout_s=3 if "gave no answer" in words else 60)
    assert words in str(found.engines["openvino"].problem)
    assert found.engines["openvino"].version is not None
    assert found.engines["onnxruntime"] == EngineFacts("9", {"CPU": "CPUExecutionProvider"})
    assert words in str(found.lacks("openvino", "GPU"))


def test_auto_is_openvinos_own_choice() -> None:
    """AUTO is never missing: OpenVINO chooses behind it."""
    found = Probe({"openvino": EngineFacts("1", {"CPU": "x"})})
    assert found.lacks("openvino", "AUTO:GPU,CPU") is None
    assert EngineChoice("openvino", device="AUTO").device == "AUTO"
