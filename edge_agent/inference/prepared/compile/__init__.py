"""Makes the artifacts of prepared forms, in a process of its own, and keeps them."""
