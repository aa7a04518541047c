"""Answers on demand: models of this device asked by others, over MQTT and HTTP."""
