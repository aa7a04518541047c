"""From boxes to events: tracks, zones, lines, rules, and the actions when one fires."""
