"""A simulated cluster: every part in a network namespace of its own, as pods would be."""
