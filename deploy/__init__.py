"""What runs flambeau elsewhere, and the programs that keep it pinned."""
