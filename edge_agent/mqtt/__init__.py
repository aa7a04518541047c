"""The connection to the broker: publishing, spooling, requests, topics and payloads."""
