"""The machine and the environment: processor, memory, installed packages."""
