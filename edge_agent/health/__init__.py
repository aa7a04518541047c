"""Measurements and reports of the running agent."""
