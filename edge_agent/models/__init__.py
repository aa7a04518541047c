"""Stored models: manifests, files, packages, and the store. Nothing here runs a network."""
