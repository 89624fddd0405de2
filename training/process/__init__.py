"""Processes that training starts, and the state of the process that it runs in."""
