"""Returns the installed versions of libraries."""

from collections.abc import Iterable
from importlib import metadata


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of the installed ones, by name."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a checkout, or not needed for this model
            continue
    return found
