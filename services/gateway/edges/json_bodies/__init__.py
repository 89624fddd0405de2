"""The JSON of requests and answers: fast readers, and strict ones in slices."""
