"""Entry point of `make bench`: measures the raw model, then the same model served, in one run."""
