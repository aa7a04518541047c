"""From boxes to events: tracks, zones, lines, rules, and what is done when one fires."""
