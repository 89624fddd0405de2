"""Loads the store's versions: chooses an artifact, admits it to memory, and schedules the load."""
