"""What people and trackers see of a run while it learns."""
