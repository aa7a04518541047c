"""Makes the artifacts of prepared forms, in a separate process, and stores them."""
