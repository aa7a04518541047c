"""From samples to the network's input tensors, as `[input]` in the manifest says."""
