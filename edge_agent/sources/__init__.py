"""Cameras, clips, pictures and recorded sensor data, one file per kind."""
