"""The points at which `edge_agent.core.files.fault` kills the process where a test asks for it."""

from __future__ import annotations

import re

from tests.helpers.support import CHECKOUT

STORE_POINTS = (
    "receive.metadata",  # an offer's three files are written, their folder not yet in place
    "receive.ready",  # the transfer's folder is in place
    "block.written",  # a block is in the page cache
    "block.durable",  # and on disk
    "install.file",  # one file of the candidate is unpacked
    "install.unpacked",  # all are; nothing is in place
    "commit.before",  # everything durable, about to be renamed
    "commit.renamed",  # renamed, the folder above not yet durable
    "commit.done",
    "pointers.written",  # the new pointers are in a temporary file
    "pointers.renamed",  # they are in place, the folder above not yet durable
    "accept.marked",  # the version is marked as accepted, not yet live
    "delete.renamed",  # a version is out of the way, not yet removed
    "delete.partly",  # some of its files are gone
)
DEPLOY_POINTS = (
    "trial.marked",  # a candidate is noted as on trial
    "trial.passed",  # its child process has found it good
    "shadow.begun",  # it runs beside the incumbent
    "swap.activated",  # the pointer names it, on probation; the old one still serves
    "swap.exchanged",  # it serves
    "probation.suspended",  # an orderly end during its probation is noted
    "probation.resumed",  # and its probation goes on after it
    "probation.passed",  # it has stood it, which is not noted yet
    "rollback.done",  # the pointer names the version before again
)
FAULT_POINTS = (*STORE_POINTS, *DEPLOY_POINTS)


def points_in_the_code() -> set[str]:
    """Return the points that the program has."""
    texts = [path.read_text("utf-8") for path in (CHECKOUT / "edge_agent").rglob("*.py")]
    return {point for text in texts for point in re.findall(r'\bfault\(\s*"([\w.]+)"', text)}
