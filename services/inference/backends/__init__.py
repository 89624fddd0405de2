"""What runs an artifact: one file a runtime, imported only when a version needs it."""
