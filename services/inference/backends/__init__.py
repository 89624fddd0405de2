"""Backends that run artifacts: one module per runtime, imported only when a version needs it."""
