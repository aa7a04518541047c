"""Models on this device: the versions there are, which one is live, and what is arriving."""
