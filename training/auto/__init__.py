"""`export: auto`: what to try, trying it, and what is worth keeping."""
