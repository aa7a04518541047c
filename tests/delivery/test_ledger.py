"""The ledger of candidates: its table of phases, and what it says of several of one model."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from edge_agent.core.errors import ModelError
from edge_agent.delivery.rollout.ledger import PHASES, Candidate, Ledger, Outcome, Phase
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.pointers import Trial
from edge_agent.models.store.store import Store

Published = list[tuple[str, Mapping[str, Any]]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Make an empty store."""
    return Store(tmp_path / "state")


@pytest.fixture
def published() -> Published:
    """Collect what is published on the topics of transfers."""
    return []


@pytest.fixture
def ledger(store: Store, published: Published) -> Ledger:
    """Make a ledger of an empty store."""
    return Ledger(
        store,
        Catalog(store),
        lambda transfer, status: published.append((transfer, status)),
        lambda: None,
    )


def test_every_phase_has_a_row_and_can_be_reached() -> None:
    """From the offer, every phase and every outcome can be reached; none follows itself."""
    assert set(PHASES) == set(get_args(Phase))
    reached = {"receiving"}
    while new := {then for phase in reached if phase in PHASES for then in PHASES[phase]}:
        if new <= reached:
            break
        reached |= new
    assert reached == {*get_args(Phase), *get_args(Outcome)}
    assert all(phase not in then for phase, then in PHASES.items())


def test_a_candidate_goes_through_the_phases(
    store: Store, ledger: Ledger, published: Published
) -> None:
    """Each phase is published; preparing leaves a mark, from which a kill is recovered."""
    candidate = Candidate("face", "2", "t", phase="receiving", percent=40.0)
    ledger.add(candidate)
    assert ledger.describe("face")["candidate"] == {
        "version": "2",
        "phase": "receiving",
        "percent": 40.0,
    }
    assert ledger.phase("face", "2") is None  # not complete
    ledger.advance(candidate, "verifying")
    ledger.start(candidate)
    for phase in ("preparing", "trial", "shadow"):
        ledger.enter(candidate, phase)
        mark = store.pointers("face").trial
        assert mark is not None
        assert (mark.version, mark.phase) == ("2", "preparing")
        assert ledger.phase("face", "2.0") == phase
    ledger.advance(candidate, "probation")
    assert ledger.serving_phase("face", "2") == "probation"
    ledger.finish(candidate, "live", None)
    assert [status["state"] for _, status in published] == ["preparing", "trial", "shadow", "live"]
    assert ledger.describe("face") == {}
    assert ledger.by_transfer("t") is None


@pytest.mark.parametrize(
    ("phase", "then"),
    [("receiving", "trial"), ("verifying", "live"), ("shadow", "trial"), ("probation", "rejected")],
)
def test_what_the_table_does_not_have_is_an_error(ledger: Ledger, phase: Any, then: Any) -> None:
    """A step that is not in the table is a mistake of the program, never made silently."""
    candidate = Candidate("face", "2", None, phase=phase)
    with pytest.raises(RuntimeError, match=f"{then} does not follow {phase}"):
        (ledger.advance if then in PHASES else ledger.finish)(candidate, then, *_why(then))
    assert candidate.phase == phase


def _why(then: str) -> tuple[None, ...]:
    return () if then in PHASES else (None,)


def test_a_rejection_is_recorded_and_outlives_a_restart(store: Store, ledger: Ledger) -> None:
    """The file has the version, the outcome and the reason; so has the model's topic."""
    candidate = Candidate("face", "2", "t")
    ledger.add(candidate)
    ledger.finish(candidate, "rejected", "too slow")
    last = json.loads((store.root / "deployments.json").read_text())["face"]
    assert (last["version"], last["outcome"], last["why"]) == ("2", "rejected", "too slow")
    again = Ledger(store, Catalog(store), lambda _transfer, _status: None, lambda: None)
    assert again.describe("face") == {"last": last}


def test_of_several_the_one_in_the_deployers_hands_is_shown(ledger: Ledger) -> None:
    """Then the one on probation, then the one that is received; one that waits is not shown."""

    def shown() -> str | None:
        candidate = ledger.describe("face").get("candidate")
        return candidate["version"] if candidate else None

    waiting = Candidate("face", "5", None)
    ledger.add(waiting)
    assert shown() is None
    assert ledger.has_complete("face")
    assert ledger.phase("face", "5") == "verifying"
    ledger.add(Candidate("face", "4", "4", phase="receiving", percent=1.0))
    assert shown() == "4"
    watched = Candidate("face", "3", "3", phase="probation")
    ledger.add(watched)
    assert shown() == "3"
    ledger.start(waiting)
    assert shown() == "5"
    ledger.cancel("face", "rolled back by command")
    assert (waiting.canceled, watched.canceled) == ("rolled back by command", None)
    ledger.remove(waiting)
    assert shown() == "3"


def test_an_orderly_end_blames_no_candidate(store: Store, ledger: Ledger) -> None:
    """Neither one in its trial nor one that waits for a trial begun again; nor one on probation."""
    for name, phase, starts in (
        ("a", "preparing", 1),
        ("b", "preparing", 2),
    ):
        store.set_trial(name, Trial("2", phase, time.time(), starts))
    store.set_watched("c", Trial("2", "probation", time.time()))
    ledger.add(Candidate("a", "2", None, phase="trial"))
    ledger.add(Candidate("b", "2", None, starts=2))  # waits
    ledger.add(Candidate("c", "2", None, phase="probation"))
    ledger.suspend()
    marks = [mark for name in ("a", "b", "c") for mark in store.pointers(name).marks]
    assert [mark.starts for mark in marks] == [0, 1, -1]


def test_a_candidate_whose_package_is_not_complete_cannot_be_installed() -> None:
    """That is an error of a model, which rejects the candidate."""
    with pytest.raises(ModelError, match="not complete"):
        Candidate("face", "2", "t").install()
