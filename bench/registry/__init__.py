"""Benchmarks of the registry."""
