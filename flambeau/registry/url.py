"""URLs of registries, told from those of stores without an import."""

import re
from pathlib import Path

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}/?")


def is_registry(url: str) -> bool:
    """Returns True if a URL names a registry, and no store."""
    return url.lower().startswith(("http://", "https://"))


def lacks_scheme(url: str) -> bool:
    """Returns True for `HOST:PORT`, unless a folder of that name exists."""
    return _HOST_AND_PORT.fullmatch(url) is not None and not Path(url).exists()
