"""Finds and removes what killed processes left in a store: files of no version.

In: a store. Out: the folders of versions that were never published, with their files; and uploads
without activity. Rules: files younger than a day are left, as their publisher may be at work; the
claim of a number stays, so that the number is never used again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from model_store.errors import StorageError
from model_store.listing import ModelListing
from model_store.manifest import CLAIM
from model_store.retention.stored_versions import deleted_numbers
from model_store.storage.storage import StoredFile
from model_store.store import ModelStore, manifest_path
from model_store.uploads.abandoned import UPLOADS, abandoned_uploads, remove_abandoned

MIN_AGE_S = 24 * 3600.0
"""Age of the youngest file from which the files of no version are removed."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Files of no version, in one folder."""

    folder: str
    """Path of the folder in the store."""
    files: tuple[str, ...]
    """Paths of the files in the store; none for an upload, which is removed as a whole."""
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model, by version."""

    versions: dict[int, dict[str, StoredFile]]
    """Without the claims; those of numbers that are no version, too."""
    leftovers: tuple[Leftover, ...]


def model_files(store: ModelStore, model: str, now_s: float) -> ModelFiles:
    """Lists the files of a model, and finds those of no version.

    Args:
        store: the store.
        model: the model's name.
        now_s: the time, in seconds of Unix time.

    Raises:
        StorageError: the store cannot be read.
    """
    found: dict[int, dict[str, StoredFile]] = {}
    ages: dict[int, float] = {}
    listing = store.listing(model).get(model, ModelListing())
    numbers = {str(one): one for one in listing.claimed}
    for path, file in store.storage.details(f"{model}/").items():
        _, folder, name = path.split("/", 2) if path.count("/") > 1 else ("", "", "")
        if folder in numbers:
            number = numbers[folder]
            ages[number] = min(ages.get(number, now_s), now_s - file.changed_s)
            if name != CLAIM:
                found.setdefault(number, {})[path] = file
    deleted = deleted_numbers(store, model)
    leftovers = []
    for number in sorted(found.keys() - set(listing.versions)):
        files = found[number]
        if manifest_path(model, number) in files:  # published since it was listed
            continue
        if number in deleted:
            reason = "its deletion was cut off"
        elif ages[number] > MIN_AGE_S:
            reason = "never published: its publisher was killed over a day ago"
        else:
            continue
        size = sum(file.size_bytes for file in files.values())
        leftovers.append(Leftover(f"{model}/{number}", tuple(sorted(files)), size, reason))
    return ModelFiles(found, tuple(leftovers))


def left_uploads(store: ModelStore) -> list[Leftover]:
    """Returns the uploads within a local store that nobody has worked on for a day."""
    if not store.is_local:
        return []
    found = []
    for place in sorted(abandoned_uploads(Path(store.url, UPLOADS), MIN_AGE_S)):
        folder = f"{UPLOADS}/{place.name}"
        files = store.storage.details(f"{folder}/")
        size = sum(file.size_bytes for file in files.values() if file.links == 1)
        found.append(Leftover(folder, (), size, "an upload without activity for a day"))
    return found


def remove_leftover(store: ModelStore, leftover: Leftover) -> None:
    """Removes the files of no version, unless they have become one.

    Raises:
        StorageError: the store failed; remove it again.
    """
    model, _, number = leftover.folder.partition("/")
    if number and int(number) in store.listing(model)[model].versions:
        raise StorageError(f"{leftover.folder} was published meanwhile; nothing of it was removed")
    for path in leftover.files:
        store.storage.delete(path)


def remove_left_uploads(store: ModelStore) -> int:
    """Removes the uploads of `left_uploads`; returns their number."""
    return remove_abandoned(Path(store.url, UPLOADS), MIN_AGE_S) if store.is_local else 0


def freed_bytes(deleted: Iterable[Mapping[str, StoredFile]]) -> int:
    """Returns the bytes that deleting the files of versions frees.

    Hard links share their content, as pushed versions do with older ones; it is freed if all of
    its names are deleted.
    """
    contents: dict[tuple[int, int], list[StoredFile]] = {}
    freed = 0
    for files in deleted:
        for file in files.values():
            if file.content is None:
                freed += file.size_bytes
            else:
                contents.setdefault(file.content, []).append(file)
    return freed + sum(
        names[0].size_bytes for names in contents.values() if len(names) >= names[0].links
    )
