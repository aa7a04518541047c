"""The machine: processor and memory, what of them may be used, temperature, clock."""
