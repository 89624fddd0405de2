"""Python models: opens a user's class, calls it and checks its answers."""
