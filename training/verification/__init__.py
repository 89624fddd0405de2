"""Whether an artifact is what was trained, and what it is worth."""
