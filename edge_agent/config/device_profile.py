"""Device profiles, `device_profiles/*.toml`: engines in order of preference for a kind of machine.

The choice is a pure function of hardware facts and profiles. Only if the chosen profile lists a GPU
or NPU that may be present are the engines probed for their devices, in child processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..core.bundled import bundled
from ..core.constraints import Ge, Le, MinLength, Plain
from ..core.errors import UsageError
from ..core.frozen import record
from ..core.names import NAME_RULE, is_name
from ..core.schema import build, nearest, read_toml
from ..device.hardware import Facts
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import EngineName, WantedEngine, capabilities, installed

if TYPE_CHECKING:
    from ..inference.engines.probe import Probe

OWN_PROFILES = Path("/etc/edge-agent/device_profiles")

_STRICT: Any = {"extra": "forbid"}
Precision = Literal["f32", "f16", "bf16", "i8", "dynamic"]
"""OpenVINO's `INFERENCE_PRECISION_HINT`; "i8" is for TensorRT in ONNX Runtime."""
Flag = Annotated[bool, Plain()]
Count = Annotated[int, Plain(), Ge(0)]
Threads = Annotated[int, Plain(), Ge(0), Le(1024)]
Lanes = Annotated[int, Plain(), Ge(0), Le(64)]


@record(kw_only=True)
class MatchRule:
    """Conditions under which a profile matches a machine; omitted ones are not checked."""

    __pydantic_config__ = _STRICT
    arch: tuple[str, ...] = ()
    vendor: tuple[str, ...] = ()
    flags_all: tuple[str, ...] = ()
    flags_any: tuple[str, ...] = ()
    flags_none: tuple[str, ...] = ()
    gpu: Literal["intel", "nvidia", "amd", "any"] | None = None
    npu: Flag | None = None
    min_memory_mb: Count = 0
    max_memory_mb: Count = 0
    """0: no limit."""
    board: str = ""
    """A regular expression, searched for in the board's name, ignoring case."""


@record(kw_only=True)
class EngineLine:
    """One `[[engines]]`: an engine, where it runs, and how."""

    __pydantic_config__ = _STRICT
    engine: EngineName
    device: str = "CPU"
    threads: Threads | None = None
    lanes: Lanes | None = None
    """None: the profile's value."""
    precision: Precision | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@record(kw_only=True)
class DeviceProfile:
    """The content of a profile file; the file name is the profile's name."""

    __pydantic_config__ = _STRICT
    description: str
    engines: Annotated[tuple[EngineLine, ...], MinLength(1)]
    """In order of preference."""
    match: MatchRule = field(default_factory=MatchRule)
    priority: Annotated[int, Plain(), Ge(-1000), Le(1000)] = 0
    """The matching profile with the highest priority is used."""
    lanes: Lanes = 0
    """Inferences at the same time; 0: two if there are at least two cores."""
    threads: Threads = 0
    """Threads of one inference; 0: the cores divided among the lanes."""
    tune: Flag = False
    """Whether the agent measures in the background the best engine and threads for a new model."""
    memory_budget_mb: Count = 0
    """Memory limit for all models together; 0: no limit."""
    unload_idle_s: Annotated[float, Plain(), Ge(0), Le(366 * 86400)] = 0.0
    """Second-stage models are loaded when first needed and unloaded after being idle this long; 0:
    they are always loaded."""
    swap: Literal["overlap", "replace"] = "overlap"
    """Whether the old model serves until the new one does, or is unloaded first to free memory."""


@record
class Match:
    """The profile chosen and why."""

    name: str
    profile: DeviceProfile
    reason: str
    rejected: tuple[tuple[str, str], ...]
    """Name and reason for each other profile."""


@record
class Lineup:
    """The engines to try, in order, and those that cannot work here."""

    choices: tuple[EngineChoice, ...]
    absent: tuple[tuple[EngineChoice, str], ...]
    notes: tuple[str, ...] = ()
    """Parts of the profile that this machine cannot follow, for the log."""


def default_dirs() -> tuple[Path, ...]:
    """Return the profile folders: the bundled one, then the user's own."""
    return (bundled("device_profiles"), OWN_PROFILES)


def load_profiles(dirs: Sequence[Path]) -> dict[str, DeviceProfile]:
    """Read all profiles; one in a later folder replaces an earlier one of the same name.

    Files whose name is not a profile name (see `unread_files`) are skipped.
    """
    profiles = {}
    for folder in dirs:
        for path in sorted(folder.glob("*.toml")):
            if is_name(path.stem):
                profiles[path.stem] = _load(path)
    return profiles


def unread_files(dirs: Sequence[Path]) -> list[str]:
    """List the files that look like profiles but are not read, each with the reason."""
    return [
        f"{path}: is not read; expected NAME.toml, with a name of {NAME_RULE}"
        for folder in dirs
        for path in sorted(folder.glob("*.[tT][oO][mM][lL]"))
        if path.suffix != ".toml" or not is_name(path.stem)
    ]


def _load(path: Path) -> DeviceProfile:
    profile = build(DeviceProfile, read_toml(path, UsageError), str(path), UsageError)
    try:
        re.compile(profile.match.board)
    except re.error as problem:
        raise UsageError(
            f"{path}: match.board: {profile.match.board!r} is not a regular expression: {problem}"
        ) from None
    return profile


def choose(profiles: Mapping[str, DeviceProfile], facts: Facts, wanted: str = "auto") -> Match:
    """Choose the profile for a machine."""
    misfits = {name: list(_misfits(profile.match, facts)) for name, profile in profiles.items()}
    if wanted != "auto":
        if wanted not in profiles:
            hint = nearest(wanted, [*profiles, "auto"])
            raise UsageError(f"profile: there is no profile '{wanted}'{hint}")
        doubt = f", although it does not match: {misfits[wanted][0]}" if misfits[wanted] else ""
        others = tuple(
            (name, "another one is named") for name in sorted(profiles) if name != wanted
        )
        return Match(wanted, profiles[wanted], f"named in the settings{doubt}", others)
    fitting = [name for name in profiles if not misfits[name]]
    if not fitting:
        raise UsageError(
            f"profile: none of {len(profiles)} profiles matches this machine ({facts}); name one "
            f"in the settings{nearest('', profiles)}"
        )
    # Finally by name, so that the same files always give the same choice.
    best = min(fitting, key=lambda name: (-profiles[name].priority, name))
    rejected = []
    for name in sorted(profiles):
        if misfits[name]:
            rejected.append((name, "; ".join(misfits[name])))
        elif name != best:
            rejected.append((name, f"matches, but has a lower priority than {best}"))
    return Match(best, profiles[best], _reason(profiles[best].match), tuple(rejected))


def _misfits(rule: MatchRule, facts: Facts) -> Iterator[str]:
    """List the conditions of a rule that a machine does not meet."""
    if rule.arch and facts.arch not in rule.arch:
        yield f"is for {_or(rule.arch)}, this is {facts.arch}"
    if rule.vendor and facts.vendor not in rule.vendor:
        found = facts.vendor or "unknown"
        yield f"is for processors by {_or(rule.vendor)}, this one is by {found}"
    missing = [flag for flag in rule.flags_all if flag not in facts.flags]
    if missing:
        yield f"the processor lacks {', '.join(missing)}"
    if rule.flags_any and not facts.flags.intersection(rule.flags_any):
        yield f"the processor has no {_or(rule.flags_any)}"
    unwanted = sorted(facts.flags.intersection(rule.flags_none))
    if unwanted:
        yield f"is for processors without {', '.join(unwanted)}"
    if rule.gpu == "any" and not facts.gpus:
        yield "there is no GPU with a driver loaded"
    if rule.gpu not in {None, "any"} and rule.gpu not in facts.gpus:
        yield f"there is no {rule.gpu} GPU with a driver loaded"
    if rule.npu is not None and rule.npu != facts.npu:
        yield "there is no NPU with a driver loaded" if rule.npu else "there is an NPU"
    # Unknown memory (0) does not exclude a profile.
    if facts.memory_mb and facts.memory_mb < rule.min_memory_mb:
        yield f"needs {rule.min_memory_mb} MiB of memory, there are {facts.memory_mb}"
    # But a profile for small machines does not match if the memory is unknown.
    if rule.max_memory_mb and not 0 < facts.memory_mb <= rule.max_memory_mb:
        there = f"{facts.memory_mb}" if facts.memory_mb else "unknown"
        yield f"is for at most {rule.max_memory_mb} MiB of memory, there are {there}"
    if rule.board and not re.search(rule.board, facts.board, re.IGNORECASE):
        yield f"is for boards like '{rule.board}', this is '{facts.board or 'unknown'}'"


def _reason(rule: MatchRule) -> str:
    """Return the conditions by which a profile matched, in words."""
    parts = [
        _or(rule.arch),
        f"processor by {_or(rule.vendor)}" if rule.vendor else "",
        f"has {', '.join(rule.flags_all)}" if rule.flags_all else "",
        f"has {_or(rule.flags_any)}" if rule.flags_any else "",
        f"has no {_or(rule.flags_none)}" if rule.flags_none else "",
        f"{rule.gpu} GPU".replace("any ", "") if rule.gpu else "",
        ("NPU" if rule.npu else "no NPU") if rule.npu is not None else "",
        f"at least {rule.min_memory_mb} MiB" if rule.min_memory_mb else "",
        f"at most {rule.max_memory_mb} MiB" if rule.max_memory_mb else "",
        f"board like '{rule.board}'" if rule.board else "",
    ]
    return ", ".join(part for part in parts if part) or "fits every machine"


def _or(words: Sequence[str]) -> str:
    return " or ".join(words)


def lineup(
    profile: DeviceProfile,
    facts: Facts,
    ask: Callable[[], Probe],
    engine: WantedEngine = "auto",
) -> Lineup:
    """List the engines to try on this machine.

    Args:
        profile: determines the order.
        facts: the machine.
        ask: probes the engines for their devices (`probe`); called at most once, and only if the
            profile lists a device whose driver is loaded.
        engine: the user's choice of one engine, or "auto".

    Returns:
        Choices with computed lanes and threads; empty only if no engine is installed.
    """
    lines = [line for line in profile.engines if engine in {"auto", line.engine}]
    if not lines and engine != "auto":
        # The user's choice has priority over the profile's list.
        lines = [EngineLine(engine=engine)]
    versions = installed()
    found: Probe | None = None
    choices, absent, notes = [], [], []
    for line in lines:
        choice = _choice(profile, line, facts)
        asked = profile.threads if line.threads is None else line.threads
        if asked > choice.threads:
            notes.append(
                f"threads = {asked} of {line.engine}:{line.device}: more than this machine's "
                f"{facts.cpus} core(s); at most {choice.threads} are used, and fewer where lanes "
                "share them"
            )
        why = None
        if line.engine not in versions:
            why = f"{line.engine} is not installed"
        elif line.device.upper() != "CPU":
            why = _no_driver(line, facts)
            if why is None:
                found = found or ask()
                why = found.lacks(line.engine, line.device)
                if why is not None and facts.denied:
                    nodes = ", ".join(facts.denied)
                    why += f"; this user may not open {nodes}: add it to that file's group"
        if why is None:
            choices.append(choice)
        else:
            absent.append((choice, why))
    return Lineup(tuple(choices), tuple(absent), tuple(notes))


def _choice(profile: DeviceProfile, line: EngineLine, facts: Facts) -> EngineChoice:
    """Return the choice for one line of a profile, with computed lanes and threads."""
    lanes = (profile.lanes if line.lanes is None else line.lanes) or min(2, facts.cpus)
    threads = profile.threads if line.threads is None else line.threads
    return EngineChoice(
        engine=line.engine,
        device=line.device,
        # More threads than cores would only wait for each other.
        threads=min(threads, facts.cpus) or max(1, facts.cpus // lanes),
        lanes=lanes,
        precision=line.precision,
        options=line.options,
    )


def unlisted(profile: DeviceProfile, engine: EngineName, wanted: WantedEngine) -> str | None:
    """Return why a model runs on an engine that the profile does not list; None: it lists it.

    This happens with a file format that no listed engine can read.
    """
    if wanted == engine or any(line.engine == engine for line in profile.engines):
        return None
    first = profile.engines[0]
    return (
        f"{first.engine}:{first.device}: cannot read such a file, and the profile does not list "
        f"{engine}; list it, or use the .onnx"
    )


def _no_driver(line: EngineLine, facts: Facts) -> str | None:
    """Return why a device must be absent, as far as known without a probe; None: unknown."""
    needs = capabilities(line.engine).drivers.get(line.device.upper().partition(".")[0])
    if needs is None or needs in facts.gpus or (needs == "npu" and facts.npu):
        return None
    kind = "Intel NPU" if needs == "npu" else f"{needs} GPU"
    return f"there is no {kind} with a driver loaded"
