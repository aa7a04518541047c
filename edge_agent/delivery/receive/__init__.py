"""Packages as they arrive over MQTT: offers, admission, blocks, until all is on the disk."""
