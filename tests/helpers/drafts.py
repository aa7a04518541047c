"""Drafts of manifests, as their users complete them."""

from __future__ import annotations


def decided(draft: str) -> str:
    """Take the questions out, as who has answered them, or knows that the defaults hold."""
    before, asked, after = draft.partition("to_decide = [\n")
    return before + after.partition("]\n")[2] if asked else draft
