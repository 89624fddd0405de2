"""What `make bench` runs: measures the raw model, then the same model served, in one run."""
