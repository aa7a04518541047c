"""Background work on serving models: better engines, failover, prepared forms, memory."""
