"""One pipeline per source: capture, inference, results."""
