"""Models under measurement: networks, data, golden rows, and the raw model."""
