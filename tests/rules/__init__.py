"""Tracks, zones, lines, rules, events."""
