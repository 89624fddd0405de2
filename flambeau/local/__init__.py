"""Runs our programs on this machine, on behalf of a caller's process."""
