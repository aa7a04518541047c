"""MQTT discovery of this device for Home Assistant, over the existing topics."""
