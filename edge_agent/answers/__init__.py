"""Answers on demand: others ask models of this device over MQTT and HTTP."""
