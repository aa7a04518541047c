"""MQTT discovery of this device for Home Assistant, over the topics that there are anyway."""
