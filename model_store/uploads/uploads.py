"""Uploads of versions: begun, appended to, and finished, from any process that sees their folder.

    <folder>/<id>/lock          held by each call; its time of change is the last activity
    <folder>/<id>/claim.json    its share of places and disk (`shares.py`)
    <folder>/<id>/upload.json   the declaration; without it, no call but `begin` knows the upload
    <folder>/<id>/store/...     the files as they arrive, at their paths in a store

In: a declaration, then bytes at offsets. Out: a version in the store.

Rules:
- the size of a file on disk is the truth: an upload survives the end of client and server;
- a file that the newest versions of the model hold, by its digest, is linked and not sent again;
- nothing of the version is in the store before every digest, the manifest and the signature have
  been checked; then `transfer.copy_version` publishes it, manifest last;
- an upload belongs to one owner; an abandoned one is collected by its age.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from model_store.document import LARGE
from model_store.errors import (
    ConflictError,
    DigestMismatchError,
    StorageError,
    StorageFullError,
    StoreError,
    UploadIncompleteError,
    UploadOffsetError,
    UploadRefusedError,
)
from model_store.manifest import MANIFEST, FileEntry, Manifest, parse_manifest
from model_store.pipelines.graph import parse_part
from model_store.records.claim import owner_of_copy, refuse_claimed
from model_store.records.push_record import PushRecord
from model_store.records.tombstone import refuse_deleted
from model_store.semver.semver_index import taken_semvers
from model_store.storage.storage import FULL, MissingFileError, append_whole
from model_store.store import ModelStore, manifest_path
from model_store.transfer import CopyReport, copy_version
from model_store.uploads.abandoned import MAX_AGE_S, RECORD_FILE, remove_abandoned
from model_store.uploads.declaration import (
    Declaration,
    DeclaredFile,
    UploadRecord,
    check_against_manifest,
)
from model_store.uploads.known_records import KnownRecords
from model_store.uploads.placed_files import copy_in_pieces, link_or_copy
from model_store.uploads.running_digests import RunningDigests
from model_store.uploads.shares import MAX_PER_OWNER, OWNER_SHARE, Shares
from model_store.uploads.upload_lock import lock_file, lock_of, locked, unknown_upload

MAX_SKIPPED = 1_000_000
"""Numbers that may be free between the newest version and an uploaded one: a model has at most nine
digits of them, and none comes back."""
VERSIONS_LOOKED_AT = 16
"""Newest versions of the model whose files are looked up by digest."""

CheckSignature = Callable[[ModelStore, Manifest], None]
"""Refuses a version that its signature, or the lack of one, keeps out of the store."""


@dataclass(frozen=True, slots=True)
class UploadState:
    """The state of an upload."""

    id: str
    declaration: Declaration
    received: dict[str, int]
    """Bytes of every file that are here."""
    linked: tuple[str, ...] = ()
    """Files that the store had, by their digests; known when the upload begins."""
    is_published: bool = False
    """True if the store has this version already, with the same manifest."""
    taken_semvers: tuple[str, ...] = ()
    """The greatest semantic versions that the model has or had; known when the upload begins."""
    begun_at: datetime | None = None
    """When it began; in the list of an owner's uploads alone."""


class Uploads:
    """The uploads into one store.

    Args:
        store: the store.
        folder: folder of the uploads; in the store's file system, files are linked and not copied.
        check_signature: refuses a version by its signature.
        max_age_s: seconds without activity after which an upload is collected.
        threads: takes digests while files arrive; None takes them at the end.
        max_per_owner: open uploads of one owner.
        owner_share: part of the free space that uploads of one owner may reserve.

    Attributes:
        folder: the folder of the uploads.
    """

    def __init__(
        self,
        store: ModelStore,
        folder: Path,
        check_signature: CheckSignature,
        max_age_s: float = MAX_AGE_S,
        threads: Executor | None = None,
        max_per_owner: int = MAX_PER_OWNER,
        owner_share: float = OWNER_SHARE,
    ) -> None:
        self._store = store
        self.folder = folder
        self._check_signature = check_signature
        self._max_age_s = max_age_s
        self._digests = RunningDigests(threads)
        self._shares = Shares(folder, max_per_owner, owner_share)
        self._records = KnownRecords()

    def begin(self, declaration: Declaration, owner: str) -> UploadState:
        """Begins an upload, or resumes the same owner's upload of the same contents.

        Raises:
            ConflictError: the store has another version under this number, or another publisher
                has claimed it.
            UploadRefusedError: the number is far above the newest.
            VersionDeletedError: it had this one, and it was deleted.
            TooManyUploadsError: `MAX_OPEN` are open, or those that one owner may have.
            UploadBusyError: another call works on the upload.
            StorageFullError: the disk has less space than this and the other uploads need.
            StoreGoneError: the folder of the store is gone.
            StorageError: the folder of the uploads cannot be written to.
        """
        self._store.storage.check_there()
        upload_id = declaration.upload_id(owner)
        if self._is_published(declaration):
            sizes = {one.file: one.size_bytes for one in declaration.files}
            return UploadState(upload_id, declaration, sizes, is_published=True)
        self._check_number(declaration)
        self._check_claim(declaration)
        with self._disk_failures():
            self.collect()
            place = self._shares.take_place(upload_id, owner)
            with locked(place, fcntl.LOCK_EX):
                is_known = self._is_recorded(place, declaration)
                linked: list[str] = []
                if self._store.is_local:  # links need no space
                    linked = self._bring_known(place, declaration)
                sizes = _sizes(place, declaration)
                missing = declaration.size_bytes - sum(sizes.values())
                try:
                    self._shares.reserve(upload_id, owner, declaration.size_bytes, missing)
                except StorageFullError:
                    if not is_known:  # nothing has arrived
                        self._remove(place)
                    raise
                if not is_known:
                    self._record(place, declaration, owner)
                if not self._store.is_local:
                    linked = self._bring_known(place, declaration)
                    sizes = _sizes(place, declaration)
                taken = taken_semvers(self._store.storage, declaration.model)
                return UploadState(
                    upload_id, declaration, sizes, tuple(sorted(linked)), taken_semvers=taken
                )

    def state(self, upload_id: str, owner: str) -> UploadState:
        """Returns the state of an upload.

        Raises:
            UnknownUploadError: this owner has no such upload.
            StoreGoneError: the folder of the store is gone, as in all calls.
        """
        with self._held(upload_id, owner, fcntl.LOCK_SH) as (place, declaration):
            return UploadState(upload_id, declaration, _sizes(place, declaration))

    def of_owner(self, owner: str, between: Callable[[], None] = lambda: None) -> list[UploadState]:
        """Returns the open uploads of an owner, the newest first.

        Args:
            owner: the owner, who has at most `max_per_owner`.
            between: called after each upload, to lend the interpreter lock.
        """
        found: list[UploadState] = []
        for upload_id in self._shares.open_ids(owner):
            place = self.folder / upload_id
            with contextlib.suppress(OSError, StoreError):  # begun or removed at this moment
                record = self._records.read(place / RECORD_FILE)
                if record.owner == owner:
                    sizes = _sizes(place, record.declaration)
                    found.append(
                        UploadState(upload_id, record.declaration, sizes, begun_at=record.begun_at)
                    )
            between()
        return sorted(found, key=lambda one: (one.begun_at, one.id), reverse=True)

    def append(
        self,
        upload_id: str,
        owner: str,
        file: str,
        offset: int,
        data: bytes | memoryview,
        check_model: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Appends bytes to a file; all of them are kept, or none.

        Args:
            upload_id: the upload.
            owner: its owner.
            file: the declared file.
            offset: bytes of the file that have arrived before, by the caller's knowledge.
            data: the bytes.
            check_model: refuses the model of the upload, by an error of its own, before any byte.

        Returns:
            The bytes of the file that are here now.

        Raises:
            UnknownUploadError: this owner has no such upload.
            UploadOffsetError: another number of bytes is here.
            UploadRefusedError: the file is not declared, or would be larger than declared.
            UploadBusyError: another call appends to the file.
            StorageFullError: the disk is full.
        """
        with self._held(upload_id, owner, fcntl.LOCK_SH) as (place, declaration):
            check_model(declaration.model)
            declared = declaration.file(file)
            if declared is None:
                raise UploadRefusedError(
                    f"'{file[:128]}' is no declared file of this upload; begin one that has it"
                )
            path = _path(place, declaration, file)
            with self._disk_failures():
                size = _append(path, declared, offset, data)
            self._digests.advance(path, size)
            return size

    def finish(
        self,
        upload_id: str,
        owner: str,
        check_part: Callable[[str], None] = lambda _: None,
        push: PushRecord | None = None,
    ) -> tuple[Manifest, CopyReport]:
        """Checks everything, and publishes the version in the store.

        Args:
            upload_id: the upload.
            owner: its owner.
            check_part: refuses a model that the version runs as a pipeline, by an error of its own,
                before anything of the store is compared with it.
            push: who pushes the version and why, recorded in the store; None leaves no record.

        Raises:
            UnknownUploadError: this owner has no such upload.
            UploadIncompleteError: bytes are missing.
            DigestMismatchError: a file has another sha256; it is removed, and can be sent again.
            ManifestError: the manifest is invalid.
            UploadRefusedError: the manifest does not name the declared files.
            CryptographicSignatureError: the signature is missing, foreign or does not match.
            ConflictError: another version was published under this number meanwhile.
            VersionDeletedError: a deleted version had its semantic version.
            PipelinePartError: it is a pipeline whose parts the store lacks.
            StorageError: the store failed; finish again.
        """
        with self._held(upload_id, owner, fcntl.LOCK_EX) as (place, declaration):
            _check_complete(place, declaration)
            with self._disk_failures():
                self._check_digests(place, declaration)
            source = ModelStore(str(place / "store"), when_missing="refuse")
            where = _path(place, declaration, MANIFEST)
            manifest = parse_manifest(where.read_bytes(), f"{MANIFEST} of the upload")
            check_against_manifest(declaration, manifest)
            for text in manifest.pipeline.graph.models() if manifest.pipeline else ():
                check_part(parse_part(text).model)
            self._check_signature(source, manifest)

            def link(manifest: Manifest, entry: FileEntry) -> None:
                path = f"{manifest.model}/{manifest.version}/{entry.file}"
                with self._disk_failures():
                    link_or_copy(place / "store" / path, Path(self._store.url, path), upload_id)

            report = copy_version(
                source,
                self._store,
                declaration.model,
                declaration.version,
                send=link if self._store.is_local else None,
                with_parts=False,
                push=push,
            )
            self._remove(place)
            return manifest, report

    def _check_digests(self, place: Path, declaration: Declaration) -> None:
        """Hashes every file, and removes one that differs: its bytes can be sent again.

        Raises:
            DigestMismatchError: one differs.
        """
        for one in declaration.files:
            path = _path(place, declaration, one.file)
            if not path.exists():  # an empty file, of which no byte is sent
                path.touch()
            found = self._digests.digest(path)
            if found != one.sha256:
                path.unlink()
                raise DigestMismatchError(
                    f"'{one.file}' arrived with sha256 {found[:12]}…, and {one.sha256[:12]}… is "
                    "declared: it was changed on the way or before; send it again"
                )

    def abandon(self, upload_id: str, owner: str) -> None:
        """Removes an upload and its files.

        Raises:
            UnknownUploadError: this owner has no such upload.
            UploadBusyError: another call works on it.
        """
        with self._held(upload_id, owner, fcntl.LOCK_EX) as (place, _):
            self._remove(place)

    def _remove(self, place: Path) -> None:
        self._digests.forget(place)
        shutil.rmtree(place, ignore_errors=True)

    def collect(self) -> int:
        """Removes the uploads without activity for `max_age_s`; returns their number."""
        return remove_abandoned(self.folder, self._max_age_s, self._digests.forget)

    def _is_published(self, declaration: Declaration) -> bool:
        """Returns True if the store has the version, with this manifest."""
        model, version = declaration.model, declaration.version
        refuse_deleted(self._store.storage, model, version)
        try:
            sealed = self._store.storage.get(manifest_path(model, version), LARGE.max_bytes)
        except MissingFileError:
            return False
        found = hashlib.sha256(sealed).hexdigest()
        if found != declaration.manifest_sha256:
            raise ConflictError(
                f"version {version} of '{model}' is in the store and differs: its manifest has "
                f"sha256 {found[:12]}…, and that of the upload {declaration.manifest_sha256[:12]}…;"
                " versions never change, so publish it again under a new number"
            )
        return True

    def _check_number(self, declaration: Declaration) -> None:
        """Refuses a number that would leave none, or few, for later versions."""
        listing = self._store.listing(declaration.model).get(declaration.model)
        newest = listing.versions[-1] if listing and listing.versions else 0
        if declaration.version > newest + MAX_SKIPPED:
            raise UploadRefusedError(
                f"version {declaration.version} is far above the newest, {newest}; give a number "
                f"up to {newest + MAX_SKIPPED}"
            )

    def _check_claim(self, declaration: Declaration) -> None:
        """Refuses a number that another publisher has claimed: `finish` would refuse it."""
        owner = owner_of_copy(declaration.manifest_sha256)
        refuse_claimed(self._store.storage, declaration.model, declaration.version, owner)

    def _is_recorded(self, place: Path, declaration: Declaration) -> bool:
        """Returns True for a known upload; forgets the files and the record of another one."""
        path, known = place / RECORD_FILE, None
        with contextlib.suppress(OSError, StoreError):
            known = self._records.read(path).declaration
        if known != declaration:
            path.unlink(missing_ok=True)
            self._digests.forget(place)
            shutil.rmtree(place / "store", ignore_errors=True)
        _path(place, declaration, MANIFEST).parent.mkdir(parents=True, exist_ok=True)
        return known == declaration

    def _record(self, place: Path, declaration: Declaration, owner: str) -> None:
        record = UploadRecord(declaration=declaration, owner=owner, begun_at=datetime.now(UTC))
        beside = place / f"{RECORD_FILE}.new"
        beside.write_text(record.model_dump_json())
        os.replace(beside, place / RECORD_FILE)

    def _bring_known(self, place: Path, declaration: Declaration) -> list[str]:
        """Links or copies the declared files that the newest versions of the model have, whole."""
        model = declaration.model
        wanted: dict[tuple[str, int], list[DeclaredFile]] = {}
        for one in declaration.files:
            if one.size_bytes and not _path(place, declaration, one.file).exists():
                wanted.setdefault((one.sha256, one.size_bytes), []).append(one)
        linked: list[str] = []
        versions = self._store.listing(model).get(model)
        for version in reversed(versions.versions[-VERSIONS_LOOKED_AT:] if versions else ()):
            with contextlib.suppress(StoreError):  # a damaged version lends nothing
                manifest = self._store.manifest(model, version)
                for entry in manifest.all_files():
                    for one in wanted.pop((entry.sha256, entry.size_bytes), ()):
                        target = _path(place, declaration, one.file)
                        if self._fetch(manifest, entry, target, place.name):
                            linked.append(one.file)
        return linked

    def _fetch(self, manifest: Manifest, entry: FileEntry, target: Path, upload_id: str) -> bool:
        """Brings a file of the store to an upload; returns False if the store lacks it."""
        path = f"{manifest.model}/{manifest.version}/{entry.file}"
        if not self._store.is_local:
            return copy_in_pieces(self._store.storage, path, entry, target, upload_id)
        source = Path(self._store.url, path)
        try:
            if source.stat().st_size != entry.size_bytes:
                return False
            link_or_copy(source, target, upload_id)
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def _held(self, upload_id: str, owner: str, mode: int) -> Iterator[tuple[Path, Declaration]]:
        """Locks an upload of this owner, and yields its folder and declaration."""
        self._store.storage.check_there()
        place = self.folder / upload_id
        with locked(place, mode):
            try:
                record = self._records.read(place / RECORD_FILE)
            except (OSError, StoreError) as error:
                raise unknown_upload(upload_id) from error
            if record.owner != owner:
                raise unknown_upload(upload_id)
            os.utime(lock_of(place))
            yield place, record.declaration

    @contextlib.contextmanager
    def _disk_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"cannot write the upload in {self.folder}: {error.strerror}"
            if error.errno in FULL:
                raise StorageFullError(f"{where}; make room there, and push again") from error
            raise StorageError(f"{where}; check its permissions, then push again") from error


def _append(path: Path, declared: DeclaredFile, offset: int, data: bytes | memoryview) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o666)
    try:
        lock_file(file, fcntl.LOCK_EX, f"another call appends to '{declared.file}'; try again")
        found = os.fstat(file)
        size = found.st_size
        if found.st_nlink > 1:  # it is a file of the store, too
            raise UploadRefusedError(
                f"'{declared.file}' is here whole, linked from the store; send nothing of it"
            )
        if offset != size:
            raise UploadOffsetError(
                f"'{declared.file}' has {size:,} bytes here, and these are for offset {offset:,}; "
                f"go on at {size:,}"
            )
        if size + len(data) > declared.size_bytes:
            raise UploadRefusedError(
                f"'{declared.file}' is declared with {declared.size_bytes:,} bytes, and would have "
                f"{size + len(data):,}; send no more than were declared"
            )
        append_whole(file, data)
        return size + len(data)
    finally:
        os.close(file)


def _check_complete(place: Path, declaration: Declaration) -> None:
    sizes = _sizes(place, declaration)
    for one in declaration.files:
        if sizes[one.file] != one.size_bytes:
            raise UploadIncompleteError(
                f"'{one.file}' has {sizes[one.file]:,} of {one.size_bytes:,} bytes; send the rest, "
                "then finish"
            )


def _sizes(place: Path, declaration: Declaration) -> dict[str, int]:
    """Returns the size of every declared file on disk."""
    found = dict.fromkeys((one.file for one in declaration.files), 0)
    folder = _path(place, declaration, MANIFEST).parent
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in found:
                found[entry.name] = entry.stat(follow_symlinks=False).st_size
    return found


def _path(place: Path, declaration: Declaration, file: str) -> Path:
    return place / "store" / declaration.model / str(declaration.version) / file
