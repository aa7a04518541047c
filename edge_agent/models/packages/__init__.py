"""Packages, the form in which models travel: blocks, signature. Section 5 of the interface."""
