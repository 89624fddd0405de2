"""The servers that `bench-peers` compares; each has a file."""
