"""A recording reverse proxy (`flambeau capture`)."""
