"""Raw outputs of a network to results, one file per family."""
