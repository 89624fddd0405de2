"""Models that are measured: networks, data, golden rows, and the raw model."""
