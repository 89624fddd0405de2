"""Imports of large libraries, without the garbage collector."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Keeps the garbage collector from searching what is imported in the block, then and later.

    Modules are no garbage. The search takes a fifth of the CPU time of importing torch's exporters,
    and as much again where the interpreter ends; of importing a server, a twelfth.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
