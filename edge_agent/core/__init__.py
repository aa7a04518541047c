"""Errors, names, records, files, threads and logs: what every other package may use."""
