"""Moves of pointers that are decided again after another writer has moved them."""

from collections.abc import Callable

from model_store.errors import ConflictError
from model_store.pointers import Pointers
from model_store.store import ModelStore

MOST_ATTEMPTS = 10
"""Attempts to write a generation while other writers move pointers of the model too."""


def move_repeatedly(
    store: ModelStore, model: str, act: Callable[[Pointers | None], Pointers | None]
) -> Pointers | None:
    """Writes what an act makes of the newest generation; repeats it after other writers.

    Args:
        store: the store.
        model: the model's name.
        act: returns the next generation; None to leave the pointers as they are.

    Raises:
        ConflictError: others were faster `MOST_ATTEMPTS` times.
    """
    attempt = 1
    while True:
        following = act(store.pointers(model))
        if following is None:
            return None
        try:
            return store.point(model, following)
        except ConflictError:
            if attempt == MOST_ATTEMPTS:
                raise
        attempt += 1
