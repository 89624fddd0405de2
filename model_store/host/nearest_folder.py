"""Finds the folder that a misspelt path may mean."""

import contextlib
import difflib
import itertools
import os
from pathlib import Path

from flambeau.protocol.strict import MAX_NAME

MAX_SIBLINGS = 1000
"""Folders whose names are compared with the name of a missing one."""


def nearest_folder(missing: Path) -> Path | None:
    """Returns the existing folder most similar to a missing one, in the first differing part."""
    there = next(parent for parent in missing.parents if parent.is_dir())
    first, *rest = missing.relative_to(there).parts
    with contextlib.suppress(OSError):
        names = [entry.name for entry in itertools.islice(os.scandir(there), MAX_SIBLINGS)]
        for name in difflib.get_close_matches(first[:MAX_NAME], names):
            found = there.joinpath(name, *rest)
            if found.is_dir():
                return found
    return None
