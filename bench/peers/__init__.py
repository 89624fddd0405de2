"""Code of `make bench-peers`: other projects' servers and ours, the same weights, one client."""
