"""The versioned model store: what a version is, where it lies, and which one is live."""
