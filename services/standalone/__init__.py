"""All in one: gateway, memory queue and workers in one process; what `flambeau serve` runs."""
