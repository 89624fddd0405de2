"""Maps the semantic versions of a model to version numbers, in an index beside the versions.

    <url>/<model>/semver/1.4.0.json     {"version": 7}

In: the identity of a new version. Out: its semantic version; also the newest version in a range.

Rules: an entry is created once, so no two versions get the same semantic version, even if published
concurrently; the entry of a deleted version stays, so nobody gets its semantic version again; only
a copied version replaces an entry, whose publisher failed; the manifest is authoritative, so an
entry whose version is missing or has another semantic version is ignored; a version with too small
a bump is refused before any of its files is written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.document import LARGE, SMALL, parse_as
from model_store.errors import (
    BumpTooSmallError,
    ConflictError,
    DocumentError,
    ManifestError,
    ModelNotFoundError,
    StoreError,
    TooLargeError,
    VersionDeletedError,
    VersionNotFoundError,
)
from model_store.manifest import MANIFEST, Manifest, parse_manifest
from model_store.records.tombstone import tombstone_of
from model_store.semver.compatibility import (
    Identity,
    Need,
    answers_differ,
    identity_of,
    needed_bump,
)
from model_store.semver.semver import (
    FIRST,
    Bump,
    SemanticVersion,
    SemverRange,
    bump_at_least,
    parse_semver,
)
from model_store.storage.storage import MissingFileError, Storage
from model_store.version_reader import VersionReader

if TYPE_CHECKING:
    from model_store.golden import GoldenRows

MAX_ATTEMPTS = 100
"""Lost races against other publishers after which publishing fails."""
MOST_TAKEN = 1024
"""Semantic versions that `taken_semvers` returns: the greatest, since the next one follows them."""
SHOWN = 8
"""Limit of the semantic versions that a message lists."""


class _Entry(StrictModel):
    version: int = Field(ge=1)

    def to_bytes(self) -> bytes:
        return (self.model_dump_json() + "\n").encode()


@dataclass(frozen=True, slots=True)
class NextSemver:
    """The base and the bump of a new version's semantic version."""

    base: SemanticVersion | None
    """Semantic version of the predecessor; None if there is none."""
    bump: Bump
    """The bump from the base."""

    def claim(self, storage: Storage, model: str, version: int) -> SemanticVersion:
        """Claims the first free semantic version, for a version number that is claimed already.

        Raises:
            ConflictError: other publishers won `MAX_ATTEMPTS` races.
        """
        found = FIRST if self.base is None else self.base.bumped(self.bump)
        for _ in range(MAX_ATTEMPTS):
            try:
                storage.create(_path(model, str(found)), _Entry(version=version).to_bytes())
            except ConflictError:
                found = found.bumped(self.bump)
            else:
                return found
        raise ConflictError(f"{MAX_ATTEMPTS} other publishers of '{model}' were faster; try again")


def next_semver(
    store: VersionReader,
    model: str,
    new: Identity,
    versions: Sequence[int],
    bump: Bump | None = None,
    golden: "GoldenRows | None" = None,
) -> NextSemver:
    """Determines the base and the bump of the next version.

    Args:
        store: the store with the earlier versions.
        model: the model's name.
        new: the identity of the next version.
        versions: the published versions, ascending.
        bump: the bump that the publisher requests; None for the smallest that is required.
        golden: its golden rows, if they are known yet.

    Raises:
        BumpTooSmallError: the requested bump is smaller than the required one.
        StorageError: the store cannot be read.
    """
    before = _newest(store, model, versions)
    if before is None:  # a first version breaks no caller; one that loses that race may
        return NextSemver(None, "major")
    need = _need(store, before, new, golden)
    if bump is not None and not bump_at_least(bump, need.bump):
        raise BumpTooSmallError(
            f"a {bump} version of '{model}' was asked for, and it takes a {need.bump} one after "
            f"{before.version_text}: {need.reason}; set bump to {need.bump}, or leave it out"
        )
    base = parse_semver(before.semver or "")
    assert base is not None, "the newest was looked for among those that have one"
    return NextSemver(base, bump or need.bump)


def broken_callers(store: VersionReader, versions: Sequence[int], new: Manifest) -> str:
    """Tells what of a published version breaks callers of the version before it.

    Args:
        store: the store with the versions.
        versions: the published versions of the model, ascending.
        new: the version.

    Returns:
        A sentence; empty if nothing does, or it is the first.

    Raises:
        StorageError: the store cannot be read.
    """
    before = _newest(store, new.model, [one for one in versions if one < new.version])
    need = (
        Need("patch", "") if before is None else needed_bump(identity_of(before), identity_of(new))
    )
    if before is None or need.bump != "major":
        return ""
    return (
        f"version {new.version_text} breaks callers of {before.version_text}, so it is a major "
        f"version: {need.reason}"
    )


def fitting(store: VersionReader, model: str, wanted: SemverRange, text: str) -> Manifest:
    """Returns the newest version in a range.

    Args:
        store: the store with the versions.
        model: the model's name.
        wanted: the range.
        text: the range as it was written.

    Raises:
        VersionNotFoundError: no version is in the range.
        ManifestError: its manifest or its entry is damaged.
    """
    known = sorted(_entries(store.storage, model), reverse=True)
    for semver in filter(wanted.holds, known):
        path = _path(model, str(semver))
        try:
            data = store.storage.get(path, SMALL.max_bytes)
            version = parse_as(_Entry, data, path, SMALL).version
            manifest = store.manifest(model, version)
        except (DocumentError, TooLargeError) as error:
            raise ManifestError(
                f"{path} is damaged: it names no version; remove it ({error})"
            ) from error
        except (ModelNotFoundError, VersionNotFoundError):  # its publisher stopped in between
            continue
        if manifest.semver == str(semver):
            return manifest
    has = ", ".join(map(str, known[:SHOWN])) or "none; check the name"
    raise VersionNotFoundError(f"no version of '{model}' fits {text}; it has: {has}")


def note(storage: Storage, manifest: Manifest) -> None:
    """Adds the entry of a version copied from another store.

    An entry of a version that has no manifest, or one with another semantic version, is replaced:
    its publisher failed.

    Raises:
        VersionDeletedError: a deleted version had this semantic version.
    """
    if manifest.semver is None:
        return
    refuse_of_deleted(storage, manifest)
    entry, path = (
        _Entry(version=manifest.version).to_bytes(),
        _path(manifest.model, manifest.semver),
    )
    try:
        storage.create(path, entry)
    except ConflictError:
        if not _is_in_force(storage, manifest.model, manifest.semver):
            storage.replace(path, entry)


def refuse_of_deleted(storage: Storage, manifest: Manifest) -> None:
    """Refuses a copied version with the semantic version of a deleted one.

    Raises:
        VersionDeletedError: a deleted version had it.
        StoreError: a tombstone is damaged, or the store cannot be read.
    """
    model, semver = manifest.model, manifest.semver
    path = _path(model, semver or "")
    try:
        number = parse_as(_Entry, storage.get(path, SMALL.max_bytes), path, SMALL).version
    except (DocumentError, MissingFileError, TooLargeError):
        return
    deleted = tombstone_of(storage, model, number)
    if deleted is not None and deleted.semver == semver:
        raise VersionDeletedError(
            f"{semver} was version {number} of '{model}', which was deleted at "
            f"{deleted.when:%Y-%m-%d %H:%M} by {deleted.who}; a semantic version is not used "
            f"again, so publish version {manifest.version} there anew, which numbers it"
        )


def taken_semvers(storage: Storage, model: str) -> tuple[str, ...]:
    """Returns the greatest semantic versions that a model has or had, the greatest first.

    Raises:
        StorageError: the store cannot be listed.
    """
    return tuple(map(str, sorted(_entries(storage, model), reverse=True)[:MOST_TAKEN]))


def take(storage: Storage, model: str, semvers: Iterable[str], base: str, version: int) -> None:
    """Keeps semantic versions from the next version: another store has given them.

    Args:
        storage: storage without versions of its own.
        model: the model's name.
        semvers: the semantic versions; other texts are ignored.
        base: semantic version that the next one follows; empty for none.
        version: number that the entries name.

    Raises:
        StorageError: the store cannot be written to.
    """
    after = parse_semver(base)
    for semver in filter(None, map(parse_semver, semvers)):
        if after is None or semver > after:
            storage.replace(_path(model, str(semver)), _Entry(version=version).to_bytes())


def _is_in_force(storage: Storage, model: str, semver: str) -> bool:
    """Returns True if the version that an entry names has this semantic version."""
    path = _path(model, semver)
    try:
        version = parse_as(_Entry, storage.get(path, SMALL.max_bytes), path, SMALL).version
        where = f"{model}/{version}/{MANIFEST}"
        return parse_manifest(storage.get(where, LARGE.max_bytes), where).semver == semver
    except (DocumentError, ManifestError, MissingFileError, TooLargeError):
        return False


def discard(storage: Storage, manifest: Manifest) -> None:
    """Releases the semantic version of a version that failed to publish."""
    if manifest.semver is not None:
        storage.delete(_path(manifest.model, manifest.semver))


def _newest(store: VersionReader, model: str, versions: Sequence[int]) -> Manifest | None:
    """Returns the newest readable version that has a semantic version."""
    for version in reversed(versions):
        try:
            manifest = store.manifest(model, version)
        except ManifestError:  # a damaged version must not prevent publishing a new one
            continue
        if manifest.semver is not None:
            return manifest
        if not _entries(store.storage, model):  # no other version has one either
            return None
    return None


def _need(
    store: VersionReader, before: Manifest, new: Identity, golden: "GoldenRows | None"
) -> Need:
    need = needed_bump(identity_of(before), new)
    if need.bump != "patch" or golden is None:
        return need
    from model_store.golden import read_golden  # imports NumPy, which listing a store does not use

    try:
        differ = answers_differ(read_golden(store, before), golden)
    except StoreError as error:
        return Need("minor", f"the golden outputs of the previous version cannot be read ({error})")
    if differ:
        return Need("minor", "its checkpoint answers its golden rows otherwise than before")
    return need


def _entries(storage: Storage, model: str) -> list[SemanticVersion]:
    prefix = f"{model}/semver/"
    names = [path.removeprefix(prefix).removesuffix(".json") for path in storage.list(prefix)]
    return [found for found in map(parse_semver, names) if found is not None]


def _path(model: str, semver: str) -> str:
    return f"{model}/semver/{semver}.json"
