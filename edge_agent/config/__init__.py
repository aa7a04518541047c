"""Settings and device profiles: records, loading, checks."""
