"""The store: versions of models on this device, which one is live, and incoming transfers."""
