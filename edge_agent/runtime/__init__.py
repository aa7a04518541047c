"""The parts of the serving agent: scheduler, models, pipelines, and the upkeep of models."""
