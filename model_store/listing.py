"""What a store holds, by the names of its files alone.

In: a storage. Out: of each model its versions and its pointers' generations.

Rule kept here: a model whose folder cannot be listed hides no other: it is told with the reason.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from model_store.errors import StorageError
from model_store.manifest import CLAIM, MANIFEST, is_name
from model_store.storage.storage import Storage

_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_POINTER_FILE = re.compile(r"[0-9]{8}\.json")


@dataclass(frozen=True, slots=True)
class ModelListing:
    """What one listing of the store shows of one model, without reading a file."""

    versions: tuple[int, ...] = ()
    """Published versions, ascending."""
    claimed: tuple[int, ...] = ()
    """Every number ever taken, published or not, ascending."""
    generations: tuple[int, ...] = ()
    """Pointer generations, ascending."""
    unreadable: str = ""
    """Why its folder cannot be listed; then nothing else is known of it."""


def list_models(storage: Storage, model: str | None = None) -> dict[str, ModelListing]:
    """One pass over a store, or over one model.

    Servers ask for it again and again, so in a folder no more is looked at than is told; a bucket
    sends a thousand paths as fast as one.

    Args:
        storage: of the store.
        model: the only one to look at; None for all.

    Raises:
        StorageError: the store itself cannot be listed.
    """
    if not storage.is_local:
        return _found_in(storage.list(f"{model}/" if model else ""))
    found: dict[str, ModelListing] = {}
    for name in sorted(filter(is_name, [model] if model else storage.names())):
        try:
            found |= _found_in(_paths_in_folder(storage, name))
        except StorageError as error:
            found[name] = ModelListing(unreadable=str(error))
    return found


def _paths_in_folder(storage: Storage, model: str) -> Iterator[str]:
    """Of a model in a folder, what tells its versions and generations."""
    for name in storage.names(model):
        folder = f"{model}/{name}"
        if _VERSION.fullmatch(name):
            yield f"{folder}/{CLAIM}"
            if storage.has(f"{folder}/{MANIFEST}"):
                yield f"{folder}/{MANIFEST}"
        elif name == "pointers":
            yield from (f"{folder}/{file}" for file in storage.names(folder))


def _found_in(paths: Iterable[str]) -> dict[str, ModelListing]:
    """Every model, version and generation that paths in a store tell of."""
    found: dict[str, tuple[set[int], set[int], set[int]]] = {}
    for path in paths:
        match path.split("/"):
            case [name, "pointers", file] if _POINTER_FILE.fullmatch(file):
                found.setdefault(name, (set(), set(), set()))[2].add(int(file[:-5]))
            case [name, number, file] if _VERSION.fullmatch(number):
                published, claimed, _ = found.setdefault(name, (set(), set(), set()))
                claimed.add(int(number))
                if file == MANIFEST:
                    published.add(int(number))
    return {
        name: ModelListing(tuple(sorted(published)), tuple(sorted(claimed)), tuple(sorted(moves)))
        for name, (published, claimed, moves) in sorted(found.items())
    }
