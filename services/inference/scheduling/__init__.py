"""Schedules requests into batches, and batches onto instances of a model."""
