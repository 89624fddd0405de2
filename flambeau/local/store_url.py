"""The address of a store, as a caller gives it."""

import os
from pathlib import Path

DEFAULT_STORE = "./var/model_store"


def store_url(given: str | os.PathLike[str]) -> str:
    """Returns the address for a process of ours, whose working directory is another.

    Args:
        given: a folder, or the URL of a bucket.
    """
    text = os.fspath(given)
    return text if "://" in text else str(Path(text).expanduser().absolute())
