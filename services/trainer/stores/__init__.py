"""Stores of training jobs, SQLite and Redis, with one set of transitions."""
