"""What runs while the agent serves: scheduler, models, pipelines, and the upkeep of models."""
