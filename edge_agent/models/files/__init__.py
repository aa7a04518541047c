"""Network files, without an engine: are they fit, and what do they say of themselves."""
