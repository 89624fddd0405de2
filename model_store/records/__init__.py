"""Records beside versions, which may change or outlive them: tombstones and annotations."""
