"""The all-in-one server of `flambeau serve`: gateway, memory queue and workers in one process."""
