"""Readers of models that other tools wrote: one module a source. All files count as hostile."""
