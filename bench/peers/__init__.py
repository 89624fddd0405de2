"""What `make bench-peers` runs: other people's servers and ours, the same weights, one client."""
