"""URLs of registries, told from those of stores without an import."""


def is_registry(url: str) -> bool:
    """Returns True if a URL names a registry, and no store."""
    return url.lower().startswith(("http://", "https://"))
