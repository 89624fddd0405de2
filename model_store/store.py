"""The store: publishes, lists and reads versions, and moves pointers. All I/O goes through here.

    <url>/<model>/<version>/claim.json       written first: claims the number
    <url>/<model>/semver/1.2.0.json          then its semantic version, see `semver_index`
    <url>/<model>/<version>/<files>          then every file
    <url>/<model>/<version>/model.sig        then the signature over them and the manifest, if any
    <url>/<model>/<version>/manifest.json    written last: the version now exists
    <url>/<model>/pointers/00000007.json     one generation of aliases

Rules: a version without a manifest does not exist; a number is claimed by creating claim.json, so
two publishers get two numbers; bytes are checked against their digest when written and whenever
they are read.
"""

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from flambeau.protocol.strict import nearest_name
from model_store import foreign_layout
from model_store.document import LARGE, SMALL
from model_store.errors import (
    ConflictError,
    DigestMismatchError,
    DocumentError,
    ManifestError,
    ModelNotFoundError,
    SignatureMismatchError,
    SignatureMissingError,
    StalePointerError,
    StorageError,
    StoreError,
    TooLargeError,
    VersionNotFoundError,
)
from model_store.host.this_user import this_user
from model_store.listing import ModelListing, list_models
from model_store.manifest import (
    MANIFEST,
    SIGNATURE,
    Draft,
    FileEntry,
    Manifest,
    check_name,
    parse_manifest,
)
from model_store.pipelines.parts import check_parts, naming_pipelines
from model_store.pointers import (
    PRODUCTION,
    Pointers,
    check_alias,
    check_new_alias,
    parse_pointers,
)
from model_store.records.claim import claim_of, claim_path, refuse_claimed
from model_store.records.tombstone import refuse_deleted
from model_store.semver import semver_index
from model_store.semver.compatibility import identity_of
from model_store.semver.semver import Bump
from model_store.signatures.key_folder import TrustedKey
from model_store.signatures.signing import MAX_SIGNATURE_BYTES, Digests, verify
from model_store.storage.checked_files import check_all_there, checked, read_drafted
from model_store.storage.mounted_folder import FolderIdentity
from model_store.storage.storage import MissingFileError, Storage, WhenMissing

MAX_CLAIM_ATTEMPTS = 100
"""Lost races against other publishers after which publishing fails."""

Progress = Callable[[str, int], None]
"""Callback that gets the name and the size in bytes of a file that is finished."""

Sign = Callable[[Digests], bytes]
"""Makes the signature over the files of a version, as `signatures.signing.signer_with` does."""


class ModelStore:
    """A versioned model store at a URL; arguments and errors are those of `Storage`."""

    def __init__(
        self,
        url: str,
        *,
        when_missing: WhenMissing = "create",
        known: FolderIdentity | None = None,
    ) -> None:
        self.storage = Storage(url, when_missing=when_missing, known=known)

    @property
    def url(self) -> str:
        """Location of the store: the absolute path of its folder, or its URL."""
        return self.storage.url

    @property
    def is_local(self) -> bool:
        """True if the store is a folder of this machine, from which code kinds may be loaded."""
        return self.storage.is_local

    def listing(self, model: str | None = None) -> dict[str, ModelListing]:
        """Lists all models, versions and generations, or those of one model; see `list_models`.

        Raises:
            StoreGoneError: the store's folder is gone.
        """
        found = list_models(self.storage, model)
        self.storage.check_there()  # what is listed of the place of a volume is not the store
        return found

    def _listing_of(self, model: str) -> ModelListing:
        """Lists one model; empty if it does not exist.

        Raises:
            StorageError: its folder cannot be listed.
        """
        listing = self.listing(check_name(model)).get(model, ModelListing())
        if listing.unreadable:
            raise StorageError(listing.unreadable)
        return listing

    def foreign_layout(self) -> str:
        """Describes other content than models; empty for an empty store. See `foreign_layout`.

        Raises:
            StorageError: the store is out of reach.
        """
        paths = self.storage.some_paths(foreign_layout.MAX_DEPTH, foreign_layout.MAX_PATHS)
        return foreign_layout.foreign_layout(self.url, paths)

    def models(self) -> list[str]:
        """Returns the names of all models with at least one version."""
        return [name for name, listing in self.listing().items() if listing.versions]

    def versions(self, model: str) -> list[int]:
        """Returns the published versions, ascending.

        Raises:
            ModelNotFoundError, StoreGoneError: none is published; the store's folder is gone.
        """
        listing = self._listing_of(model)
        if not listing.versions:
            known = nearest_name(model, self.models())
            if not known and (there := self.foreign_layout()):
                raise ModelNotFoundError(f"model '{model}' cannot be read: {there}")
            known = known or ": ".join(
                filter(None, ["; it holds nothing yet", self.storage.how_new()])
            )
            raise ModelNotFoundError(f"model '{model}' is not in the store {self.url}{known}")
        return list(listing.versions)

    def manifest(self, model: str, version: int) -> Manifest:
        """Reads and checks one manifest.

        Raises:
            VersionNotFoundError: no such version.
            ManifestError: it is invalid, from a newer flambeau, or of another version.
        """
        path = manifest_path(check_name(model), version)
        try:
            data = self.storage.get(path, LARGE.max_bytes)
        except TooLargeError as error:
            raise ManifestError(f"{error}; publish the version again") from error
        except MissingFileError as error:
            versions = self.versions(model)
            raise VersionNotFoundError(
                f"model '{model}' has no version {version}; published: "
                f"{', '.join(map(str, versions))}"
            ) from error
        manifest = parse_manifest(data, path)
        if (manifest.model, manifest.version) != (model, version):
            raise ManifestError(
                f"{path} is the manifest of '{manifest.model}' version {manifest.version}, so the "
                "folder was moved or copied manually; use push and pull to copy versions"
            )
        return manifest

    def read_file(
        self, manifest: Manifest, entry: FileEntry, max_bytes: int | None = None
    ) -> bytes:
        """Reads one file of a version and checks its digest before it returns the bytes.

        Args:
            manifest: manifest of the version.
            entry: the file's entry in it.
            max_bytes: limit of the size, whatever the manifest says; None for no limit.

        Raises:
            DigestMismatchError: the bytes do not match the manifest.
            TooLargeError: it is larger than `max_bytes`.
            StorageError: the file is missing or unreadable.
        """
        where = f"{manifest.model}/{manifest.version}/{entry.file}"
        if max_bytes is not None and entry.size_bytes > max_bytes:
            raise TooLargeError(
                f"{where} has {entry.size_bytes:,} bytes, and at most {max_bytes:,} are read"
            )
        return self._checked(entry, where)

    def read_text(self, manifest: Manifest, entry: FileEntry) -> str:
        """Reads a text file of a version, such as its recipe.

        Raises:
            DocumentError: it is not UTF-8.
            StoreError: as `read_file`.
        """
        try:
            return self.read_file(manifest, entry, LARGE.max_bytes).decode()
        except UnicodeDecodeError as error:
            raise DocumentError(
                f"'{entry.file}' of {manifest.model} {manifest.version} is not UTF-8: {error}"
            ) from error

    def _checked(self, entry: FileEntry, where: str) -> bytes:
        try:
            return checked(self.storage.get(where, entry.size_bytes), entry, where)
        except TooLargeError as error:
            raise DigestMismatchError(
                f"{where} is not the file that the manifest names: {error}; refused"
            ) from error

    def sealed(self, manifest: Manifest) -> bytes:
        """Returns the stored bytes of a version's manifest.

        Raises:
            StorageError: they exceed the limit, are missing or out of reach.
        """
        path = manifest_path(manifest.model, manifest.version)
        return self.storage.get(path, LARGE.max_bytes)

    def signature(self, model: str, version: int) -> bytes | None:
        """Returns the stored signature of a version, unverified; None if there is none."""
        try:
            path = signature_path(check_name(model), version)
            return self.storage.get(path, MAX_SIGNATURE_BYTES)
        except MissingFileError:
            return None

    def signer(self, manifest: Manifest, trusted: Sequence[TrustedKey]) -> TrustedKey:
        """Verifies a version's signature over manifest and digests, and returns the signing key.

        `read_file` checks the files themselves against the manifest.

        Args:
            manifest: the version's manifest, as it was read.
            trusted: the trusted keys.

        Raises:
            SignatureMissingError: it is not signed, or its signature was removed.
            ForeignKeyError: none of these keys signed it.
            SignatureMismatchError: the manifest, a digest in it or the signature was changed.
            SigningUnavailableError: the libraries that verify are not installed.
        """
        where = f"version {manifest.version} of '{manifest.model}' in {self.url}"
        bundle = self.signature(manifest.model, manifest.version)
        if bundle is None:
            raise SignatureMissingError(
                f"{where} is not signed: it was published without a key, or its {SIGNATURE} was "
                "removed since; publish it again with a key that is trusted here"
            )
        path = manifest_path(manifest.model, manifest.version)
        sealed = self.sealed(manifest)
        if parse_manifest(sealed, path) != manifest:
            raise SignatureMismatchError(
                f"{where}: {MANIFEST} was changed after it had been read; versions never change, "
                "so investigate the change"
            )
        return verify(bundle, manifest.digests(sealed), trusted, where)

    def publish(
        self,
        draft: Draft,
        folder: Path,
        progress: Progress | None = None,
        sign: Sign | None = None,
        bump: Bump | None = None,
    ) -> Manifest:
        """Publishes a draft, and the files it names in `folder`, as the next version.

        Atomic: the manifest is written last, so a publisher that dies leaves a claimed number and
        a claimed semantic version, but no visible version.

        Args:
            draft: the version's contents.
            folder: the folder of its files.
            progress: callback after every file.
            sign: function that makes the version's signature; None leaves it unsigned.
            bump: the bump of the semantic version; None for the smallest that is required.

        Raises:
            BumpTooSmallError: `bump` is smaller than required. Nothing is published, as always.
            PipelinePartError: it is a pipeline, and a part is missing or does not fit.
            DigestMismatchError: a file in the folder does not match the draft.
            ManifestError: its manifest would exceed the limits `LARGE`.
            GoldenMismatchError: the golden rows do not match the signature.
            StorageError: the folder lacks a file, or the store failed (disk full, no permission).
        """
        from model_store.golden import parse_golden  # imports NumPy, which a listing does not use

        check_parts(self, draft)
        golden = parse_golden(read_drafted(folder, draft.golden.file), draft)
        model = check_name(draft.model)
        listing = self._listing_of(model)
        with naming_pipelines(self, model):
            following = semver_index.next_semver(
                self, model, identity_of(draft), listing.versions, bump, golden
            )
        version = self._claim_next(model, listing.claimed)
        semver = following.claim(self.storage, model, version)
        manifest = draft.seal(version, datetime.now(UTC), semver)
        sealed = manifest.to_json()
        try:
            parse_manifest(sealed, "the manifest")  # an unreadable manifest is not published
            for entry in draft.all_files():
                self.write_file(manifest, entry, read_drafted(folder, entry))
                if progress:
                    progress(entry.file, entry.size_bytes)
            if sign:
                self.storage.replace(signature_path(model, version), sign(manifest.digests(sealed)))
            check_all_there(self.storage, manifest)
        except StoreError:
            self.discard(manifest)
            raise
        self.storage.create(manifest_path(draft.model, version), sealed)
        return manifest

    def claim(self, model: str, version: int, owner: str) -> None:
        """Claims a version number; the same owner may claim it again.

        Raises:
            ConflictError: another owner has claimed it.
        """
        try:
            self.storage.create(claim_path(model, version), claim_of(owner))
        except ConflictError:
            refuse_claimed(self.storage, model, version, owner)

    def pointers(self, model: str) -> Pointers | None:
        """Reads the newest generation; None if no pointer was ever moved."""
        generations = self._listing_of(model).generations
        return self.pointers_at(model, generations[-1]) if generations else None

    def pointers_at(self, model: str, generation: int) -> Pointers:
        """Reads one generation."""
        path = _pointer_path(model, generation)
        try:
            pointers = parse_pointers(self.storage.get(path, SMALL.max_bytes), path)
        except TooLargeError as error:
            raise ManifestError(str(error)) from error
        if pointers.generation != generation:
            raise ManifestError(
                f"{path} says that it is generation {pointers.generation}, so it was renamed or "
                "edited manually; remove it"
            )
        return pointers

    def history(self, model: str) -> list[Pointers]:
        """Reads all generations, oldest first.

        Raises:
            ModelNotFoundError: no version of the model is published.
        """
        self.versions(model)
        generations = self._listing_of(model).generations
        return [self.pointers_at(model, generation) for generation in generations]

    def promote(
        self,
        model: str,
        version: int,
        alias: str = PRODUCTION,
        why: str = "",
        expecting: Mapping[str, int | None] | None = None,
        who: str = "",
    ) -> Pointers:
        """Points an alias at a version, as a new generation; see `Pointers.moved`.

        Args:
            model: its name.
            version: the version that the alias shall name.
            alias: the alias.
            why: reason, for the history.
            expecting: versions by alias on which the decision to promote was based, None for an
                alias that names nothing yet; the call fails if one has changed.
            who: who moves it, for the history; empty for the user of this process.

        Raises:
            VersionNotFoundError: the version is not published.
            VersionDeletedError: it was deleted.
            StalePointerError: an alias does not name the expected version; nothing has moved.
            ConflictError: another writer moved a pointer concurrently; read again and retry.
        """
        current = self.pointers(model)
        for name, expected in (expecting or {}).items():
            named = current.aliases.get(name) if current else None
            if named != expected:
                raise StalePointerError(
                    f"alias '{name}' of '{model}' names {named or 'nothing'} and no longer "
                    f"{expected or 'nothing'}; repeat the decision for its present target"
                )
        return self.point(model, self.planned(model, version, alias, why, current, who))

    def set_aliases(self, model: str, aliases: Mapping[str, int], why: str = "") -> Pointers:
        """Replaces all aliases of a model, as a new generation: the others name nothing any more.

        Raises:
            BadNameError: an alias is not a valid name.
            ConflictError: another writer moved a pointer concurrently; read again and retry.
        """
        for alias in aliases:
            check_alias(alias)
        return self.following(model, aliases, why, self.pointers(model))

    def planned(
        self, model: str, version: int, alias: str, why: str, current: Pointers | None, who: str
    ) -> Pointers:
        """Returns the generation after `current` that moves an alias; see `promote` for errors."""
        refuse_deleted(self.storage, model, version)
        self.manifest(model, version)  # the target exists and can be read
        check_new_alias(alias, current.aliases if current else {})
        return Pointers.moved(current, alias, version, who or this_user(), why)

    def following(
        self,
        model: str,
        aliases: Mapping[str, int],
        why: str,
        current: Pointers | None,
        who: str = "",
    ) -> Pointers:
        """Writes the generation after `current`; see `promote` and `set_aliases`.

        Raises:
            ConflictError: another writer has done so since.
            BadNameError: there are too many aliases.
        """
        return self.point(model, Pointers.after(current, aliases, who or this_user(), why))

    def point(self, model: str, following: Pointers) -> Pointers:
        """Writes a generation that was made from the one before it.

        Raises:
            ConflictError: another writer has written it first.
        """
        try:
            self.storage.create(_pointer_path(model, following.generation), following.to_json())
        except ConflictError as error:
            raise ConflictError(
                f"another process moved a pointer of '{model}' to generation "
                f"{following.generation} first; check its history and try again"
            ) from error
        return following

    def _claim_next(self, model: str, claimed: Sequence[int]) -> int:
        """Claims the next free number; `claimed` is ascending and may be out of date."""
        first = claimed[-1] + 1 if claimed else 1
        owner = f"{this_user()} {uuid.uuid4().hex}"
        for version in range(first, first + MAX_CLAIM_ATTEMPTS):
            try:
                self.claim(model, version, owner)
            except ConflictError:
                continue
            return version
        raise ConflictError(
            f"{MAX_CLAIM_ATTEMPTS} other publishers of '{model}' were faster; try again"
        )

    def write_file(self, manifest: Manifest, entry: FileEntry, data: bytes) -> None:
        """Writes one file of a claimed version and reads it back to check it.

        Raises:
            DigestMismatchError: the store returned other bytes.
        """
        path = f"{manifest.model}/{manifest.version}/{entry.file}"
        self.storage.replace(path, data)
        self._checked(entry, path)

    def discard(self, manifest: Manifest) -> None:
        """Deletes a version whose publication failed; never called once an alias may name it."""
        with contextlib.suppress(StorageError):  # the first failure is the one to report
            self.storage.delete(manifest_path(manifest.model, manifest.version))
            for file in (*(entry.file for entry in manifest.all_files()), SIGNATURE):
                self.storage.delete(f"{manifest.model}/{manifest.version}/{file}")
            semver_index.discard(self.storage, manifest)


def manifest_path(model: str, version: int) -> str:
    """Returns the path of a version's manifest in its store."""
    return f"{model}/{version}/{MANIFEST}"


def signature_path(model: str, version: int) -> str:
    """Returns the path of a version's signature in its store, if it has one."""
    return f"{model}/{version}/{SIGNATURE}"


def _pointer_path(model: str, generation: int) -> str:
    return f"{model}/pointers/{generation:08d}.json"
