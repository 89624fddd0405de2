"""The machine and the environment: processor, memory, what is installed."""
