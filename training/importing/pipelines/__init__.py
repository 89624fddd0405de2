"""Publishes pipelines: reads their graphs, records their golden outputs, writes their versions."""
