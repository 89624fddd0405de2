"""Models that callers load and unload, where gateways and workers share a Redis."""
