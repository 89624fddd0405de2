"""Places of the models that commands act on: a store, or the registry of a server."""
