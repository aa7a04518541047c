"""The parts of the serving agent: the scheduler and the pipelines."""
