"""What is measured and reported of the running agent."""
