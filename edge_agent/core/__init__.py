"""Errors, names, records, files, threads and logs, for use by every other package."""
