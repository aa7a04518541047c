"""The pointers of a model: which version is live, previous, and on trial; a small file per model.

The file is replaced as a whole, so a change of several pointers is atomic. A disk may damage it:
a file that cannot be read counts as absent and is reported, never guessed. It is not a
`core.state_file`, because damage is published with the model, not only logged, and no write may
fail unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from ...core.files import replace_file
from ...core.frozen import record
from ...core.json_text import read_own
from ...core.names import is_version, version_key
from ...core.plain_file import NoPlainFileError, read_plain_bytes
from ...core.state_file import DAMAGED

FILE = "pointers.json"
SCHEMA = 1
ROLLED_BACK = "rolled-back"
"""Phase of a version that no longer serves, until that outcome is recorded."""
CANCELED = "canceled"
"""Phase of a candidate that a command has canceled, until that outcome is recorded."""

WAITING = "verifying"
"""Phase of a version that a start has found untried, until its trial begins."""


def same_version(one: str, other: str) -> bool:
    """Whether two versions are equal: "2" equals "2.0"."""
    return version_key(one) == version_key(other)


@record
class Trial:
    """The mark of a candidate that is being deployed, or of a version that is live on probation."""

    version: str
    phase: str
    """preparing, trial, shadow, or probation, as in the model topic; WAITING; ROLLED_BACK; or
    CANCELED."""
    since: float
    """Wall-clock time, seconds since 1970."""
    starts: int = 0
    """How often the agent has started in this phase, including after crashes."""
    why: str | None = None
    """Why it was rolled back or canceled."""
    push: str | None = None
    """The push that it came in, as its offer names it."""


def canceled(trial: Trial | None, why: str | None) -> Trial | None:
    """Return the mark of a candidate after a command has canceled it, if *why* says so."""
    if trial is None or why is None:
        return trial
    return replace(trial, phase=CANCELED, why=why)


@record
class Pointers:
    """The state of a model's versions beyond their files."""

    history: tuple[str, ...] = ()
    """Versions that have been live and may be again, the live one last. They may be outside the
    store, among bundled models."""
    trial: Trial | None = None
    """The candidate that is being deployed, which must not serve."""
    watched: Trial | None = None
    """The live version until its probation is over, or one that was rolled back until that is
    recorded. Another candidate may be deployed meanwhile."""
    highest: str | None = None
    """The highest version ever accepted; lower ones are no longer accepted."""
    used: Mapping[str, float] = field(default_factory=dict)
    """By version: when it last started to be used, seconds since 1970."""
    answer: Mapping[str, Any] | None = None
    """What the last command about versions did, until its reply is remembered; see `answer_of`."""
    damage: str | None = None
    """One line about the file if it could not be read; the pointers are then empty."""
    unread: bool = False
    """Whether it may be whole, so that it must not be replaced."""

    @property
    def live(self) -> str | None:
        """The version that runs."""
        return self.history[-1] if self.history else None

    @property
    def previous(self) -> str | None:
        """The version that ran before."""
        return self.history[-2] if len(self.history) > 1 else None

    @property
    def on_trial(self) -> str | None:
        """The version whose trial is not over, so that it must not serve."""
        return None if self.trial is None else self.trial.version

    @property
    def marks(self) -> tuple[Trial, ...]:
        """The versions of which something is still to be decided or recorded."""
        return tuple(each for each in (self.trial, self.watched) if each is not None)

    @property
    def on_probation(self) -> str | None:
        """The live version whose probation is not over."""
        watched = self.watched
        return watched.version if watched is not None and watched.phase == "probation" else None

    def role(self, version: str) -> str | None:
        """Return why a version must not be deleted: live, previous, or on trial; else None."""
        held = (
            ("live", self.live),
            ("previous", self.previous),
            *(("on trial", mark.version) for mark in self.marks),
        )
        for role, known in held:
            if known is not None and same_version(known, version):
                return role
        return None

    def without(self, version: str) -> Pointers:
        """Return the pointers without a version that is being deleted; `highest` is kept."""
        return replace(
            self,
            history=tuple(known for known in self.history if not same_version(known, version)),
            used={known: at for known, at in self.used.items() if not same_version(known, version)},
        )

    def cleared(self, version: str) -> Pointers:
        """Return the pointers without marks of *version*."""

        def kept(mark: Trial | None) -> Trial | None:
            return None if mark is not None and same_version(mark.version, version) else mark

        return replace(self, trial=kept(self.trial), watched=kept(self.watched))

    def raised(self, version: str) -> Pointers:
        """Return the pointers after *version* has been accepted."""
        if self.highest is not None and version_key(self.highest) >= version_key(version):
            return self
        return replace(self, highest=version)


def answer_of(
    reply_to: Mapping[str, Any] | None, name: str, version: str, *, deletes: bool = False
) -> dict[str, Any] | None:
    """Return the note of a command, to answer it after a kill; *reply_to* is of `Later`."""
    if reply_to is None:
        return None
    return {
        "reply_to": dict(reply_to),
        "result": {"model": name, "version": version},
        "deletes": deletes,
    }


def read(folder: Path) -> Pointers:
    """Read the pointers of the model in *folder*; empty ones if there are none."""
    path = folder / FILE
    try:
        return _parse(read_own(read_plain_bytes(path)))
    except FileNotFoundError:
        return Pointers()
    except NoPlainFileError as problem:
        return Pointers(damage=f"{path}: cannot be read: {problem.strerror}")
    except OSError as problem:
        words = (
            f"{path}: cannot be read: {problem.strerror}; the highest accepted version that was "
            "not rolled back runs, and none goes live, until it can be; else delete it"
        )
        return Pointers(damage=words, unread=True)
    except DAMAGED:
        return Pointers(
            damage=f"{path}: is damaged and counts as absent;"
            " the highest accepted version that was not rolled back runs until one is activated"
        )


def write(folder: Path, pointers: Pointers) -> None:
    """Replace the pointers of the model in *folder*, durably."""
    says = {"schema": SCHEMA, **asdict(pointers)}
    del says["damage"], says["unread"]
    replace_file(folder / FILE, json.dumps(says, indent=1).encode())


def _parse(data: Any) -> Pointers:
    """Parse the content of the file; raises ValueError or TypeError if it is malformed."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError("not ours")
    trial, watched = _trial(data.get("trial")), _trial(data.get("watched"))
    if trial is not None and trial.phase in {"probation", ROLLED_BACK}:  # of an earlier version
        trial, watched = None, trial
    highest = data.get("highest")
    used, answer = data.get("used", {}), data.get("answer")
    return Pointers(
        tuple(_version(version) for version in data.get("history", ())),
        trial,
        watched,
        None if highest is None else _version(highest),
        {_version(version): float(time) for version, time in dict(used).items()},
        answer if _is_answer(answer) else None,
    )


def _trial(data: Any) -> Trial | None:
    if data is None:
        return None
    return Trial(
        _version(data["version"]),
        str(data["phase"]),
        float(data["since"]),
        int(data.get("starts", 0)),
        None if data.get("why") is None else str(data["why"]),
        None if data.get("push") is None else str(data["push"]),
    )


def _is_answer(note: Any) -> bool:
    """Whether a note of a command is one that this version writes."""
    try:
        asked, version, deletes = note["reply_to"], note["result"]["version"], note["deletes"]
        bytes.fromhex(asked["correlation"])
        texts = asked["topic"] or "", asked["id"] or "", version
    except (TypeError, KeyError, ValueError):
        return False
    return all(isinstance(each, str) for each in texts) and isinstance(deletes, bool)


def _version(value: object) -> str:
    if not isinstance(value, str) or not is_version(value):
        raise ValueError("not a version")
    return value
