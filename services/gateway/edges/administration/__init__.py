"""Calls beside inference: configuration, statistics, the repository, logs, traces and memory."""
