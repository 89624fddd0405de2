"""Commands on the registry of a server."""
