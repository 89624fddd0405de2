"""JSON of requests and responses: a fast parser, and a strict one that works in slices."""
