"""The machine: processor and memory, and the usable part of them, temperature, clock."""
