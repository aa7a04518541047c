"""Packages as they arrive over MQTT: offers, admission, and blocks, until all are on the disk."""
