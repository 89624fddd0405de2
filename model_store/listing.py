"""Lists the models of a store from the names of its files alone.

In: a storage. Out: the versions and pointer generations of each model.

Rule: a model whose folder cannot be listed hides no other; it is reported with the reason.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flambeau.protocol.names import is_name
from model_store.errors import StorageError
from model_store.manifest import CLAIM, MANIFEST
from model_store.storage.storage import Storage

_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_POINTER_FILE = re.compile(r"[0-9]{8}\.json")


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One model in a listing of the store; no file is read."""

    versions: tuple[int, ...] = ()
    """Published versions, ascending."""
    claimed: tuple[int, ...] = ()
    """All claimed version numbers, published or not, ascending."""
    generations: tuple[int, ...] = ()
    """Pointer generations, ascending."""
    unreadable: str = ""
    """Reason why its folder cannot be listed; the other fields are then empty."""


def list_models(storage: Storage, model: str | None = None) -> dict[str, ModelListing]:
    """Lists a store, or one model, in one pass.

    Servers call it repeatedly, so in a folder only the paths that matter are visited; a bucket
    returns a thousand paths as fast as one.

    Args:
        storage: storage of the store.
        model: the only model to list; None for all.

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
    """Yields the paths of a model in a folder that show its versions and generations."""
    for name in storage.names(model):
        folder = f"{model}/{name}"
        if _VERSION.fullmatch(name):
            yield f"{folder}/{CLAIM}"
            if storage.has(f"{folder}/{MANIFEST}"):
                yield f"{folder}/{MANIFEST}"
        elif name == "pointers":
            yield from (f"{folder}/{file}" for file in storage.names(folder))


def _found_in(paths: Iterable[str]) -> dict[str, ModelListing]:
    """Returns the models, versions and generations that the paths of a store show."""
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


def model_names(storage: Storage) -> list[str]:
    """Returns the names of the folders that may be models, in no order; none is opened.

    Raises:
        StorageError: the store cannot be listed.
    """
    if not storage.is_local:
        return [*_found_in(storage.list())]
    return [*filter(is_name, storage.names())]


@dataclass(frozen=True, slots=True)
class NewestOfModel:
    """The newest version and pointer generation of a model."""

    version: int
    generation: int
    """0 if no pointer was ever moved."""


def newest_of(storage: Storage, model: str) -> NewestOfModel | None:
    """Returns the newest version and generation of a model; None if it has no version.

    In a folder, two folders are listed, and the newest versions alone are looked at: a model of
    1,000 versions takes a millisecond.

    Raises:
        StorageError: its folder cannot be listed.
    """
    if not storage.is_local:
        found = list_models(storage, model).get(model, ModelListing())
        if not found.versions:
            return None
        return NewestOfModel(found.versions[-1], max(found.generations, default=0))
    numbers = [int(n) for n in storage.names(model) if n[:1] in "123456789" and n.isdecimal()]
    for version in sorted(numbers, reverse=True):
        is_version = _VERSION.fullmatch(str(version))
        if is_version and storage.has(f"{model}/{version}/{MANIFEST}"):
            names = filter(_POINTER_FILE.fullmatch, storage.names(f"{model}/pointers"))
            return NewestOfModel(version, max((int(n[:8]) for n in names), default=0))
    return None
