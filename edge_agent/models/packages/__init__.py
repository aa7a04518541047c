"""Packages, the form in which models are sent: blocks, signature. Section 5 of the interface."""
