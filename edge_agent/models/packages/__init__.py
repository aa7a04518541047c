"""A model as it travels: the package, its blocks, its signature. Section 5 of the interface."""
