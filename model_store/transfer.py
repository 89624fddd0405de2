"""Copies one version from a store to another, number and bytes unchanged.

In: two stores, a model and a version. Out: the same version in the target, and a report.

Rules:
- all or nothing: the manifest is written last, so an interrupted copy leaves no version;
- the number is claimed with the manifest's digest as owner, so that anyone can resume an
  interrupted copy, while another publisher of the same number is refused;
- every byte is checked against the manifest when it is read from the source, and again after the
  target has stored it; a file that the target already holds complete is not sent again;
- the signature is copied unchanged; it is verified when the version is loaded;
- the models of a pipeline that the target lacks are copied before it, and it is refused if those
  that the target has do not fit;
- a version is refused if the target has others of its major version with another signature: what
  names a range of them, such as a pipeline, would break.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from model_store.errors import ConflictError, DigestMismatchError, VersionNotFoundError
from model_store.manifest import FileEntry, Manifest
from model_store.pipelines.parts import check_parts, missing_parts
from model_store.records.claim import owner_of_copy
from model_store.records.push_record import PushRecord, push_record_path
from model_store.records.tombstone import refuse_deleted
from model_store.semver import semver_index
from model_store.semver.compatibility import identity_of, needed_bump
from model_store.semver.semver import parse_range, parse_semver
from model_store.storage.checked_files import check_all_there
from model_store.storage.storage import MissingFileError
from model_store.store import ModelStore, Progress, manifest_path, signature_path

SendFile = Callable[[Manifest, FileEntry], None]
"""Stores one file of a claimed version in the target."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Statistics of one copy."""

    files_copied: int
    files_skipped: int
    """Files that the target held already; digests checked unless the whole version existed."""
    bytes_copied: int
    parts: tuple[str, ...] = ()
    """Models of a pipeline that were copied before it, with their numbers: `finder/3`."""


def copy_version(
    source: ModelStore,
    target: ModelStore,
    model: str,
    version: int,
    progress: Progress | None = None,
    send: SendFile | None = None,
    *,
    with_parts: bool = True,
    push: PushRecord | None = None,
) -> CopyReport:
    """Copies a version to another store under the same number.

    Args:
        source: the store to copy from.
        target: the store to copy to; its pointers are not changed.
        model: name of the model.
        version: its number in both stores.
        progress: called for every file that is in the target, copied or found there.
        send: stores a file, whose digest it has checked; None reads it from the source and writes
            it to the target.
        with_parts: True to copy the models of a pipeline, too; else the target has them.
        push: who copies it and why, recorded in the target; None leaves no record.

    Raises:
        VersionDeletedError: the target had the version, or one with its semantic version, and it
            was deleted there.
        ModelNotFoundError, VersionNotFoundError: the source does not have it.
        DigestMismatchError: a file of the source is corrupt, or the target stored other bytes.
        ConflictError: the number is taken in the target, by another version or publisher; or its
            versions of the same major version have another signature.
        PipelinePartError: it is a pipeline, whose parts are missing or do not fit in the target.
        StorageError: one of the stores failed; the same copy can be retried.
    """
    manifest = source.manifest(model, version)
    sealed = source.sealed(manifest)
    signature = source.signature(model, version)
    if _is_published(source, target, manifest, sealed):
        if signature and target.signature(model, version) is None:  # an older copy omitted it
            target.storage.replace(signature_path(model, version), signature)
        return CopyReport(0, len(manifest.all_files()), 0)
    refuse_deleted(target.storage, model, version)
    semver_index.refuse_of_deleted(target.storage, manifest)
    _check_signature(target, manifest)
    parts = missing_parts(source, target, manifest) if with_parts else ()
    copies = [copy_version(source, target, p.model, p.version, progress) for p in parts]
    check_parts(target, manifest)
    own = _copy_one(source, target, manifest, sealed, signature, progress, send, push)
    new = [part for part, copy in zip(parts, copies, strict=True) if copy.files_copied]
    return CopyReport(
        files_copied=sum(copy.files_copied for copy in (own, *copies)),
        files_skipped=sum(copy.files_skipped for copy in (own, *copies)),
        bytes_copied=sum(copy.bytes_copied for copy in (own, *copies)),
        parts=tuple(f"{part.model}/{part.version}" for part in new),
    )


def _copy_one(
    source: ModelStore,
    target: ModelStore,
    manifest: Manifest,
    sealed: bytes,
    signature: bytes | None,
    progress: Progress | None,
    send: SendFile | None,
    push: PushRecord | None,
) -> CopyReport:
    """Copies the files of a version, and its manifest last."""
    model, version = manifest.model, manifest.version
    target.claim(model, version, owner_of_copy(_digest(sealed)))
    record = push_record_path(model, version)
    if push:
        target.storage.replace(record, push.to_json())
    else:  # that of a push which was interrupted names another person
        target.storage.delete(record)
    sizes = target.storage.list(f"{model}/{version}/")
    copied = []
    for entry in manifest.all_files():
        if not _is_whole(target, manifest, entry, sizes):
            if send is None:
                target.write_file(manifest, entry, source.read_file(manifest, entry))
            else:
                send(manifest, entry)
            copied.append(entry)
        if progress:
            progress(entry.file, entry.size_bytes)
    if signature:
        target.storage.replace(signature_path(model, version), signature)
    semver_index.note(target.storage, manifest)
    try:
        check_all_there(target.storage, manifest)
        target.storage.create(manifest_path(model, version), sealed)
    except ConflictError:
        if not _is_published(source, target, manifest, sealed):  # else a concurrent copy of it
            raise
    return CopyReport(
        files_copied=len(copied),
        files_skipped=len(manifest.all_files()) - len(copied),
        bytes_copied=sum(entry.size_bytes for entry in copied),
    )


def _check_signature(target: ModelStore, manifest: Manifest) -> None:
    """Checks that a version fits the target's versions of the same major version.

    Raises:
        ConflictError: it breaks the newest of them, or is broken by it.
        StoreError: the target cannot be read.
    """
    semver = parse_semver(manifest.semver or "")
    wanted = None if semver is None else parse_range(f"^{semver.major}")
    if semver is None or wanted is None:
        return
    try:
        other = semver_index.fitting(target, manifest.model, wanted, f"^{semver.major}")
    except VersionNotFoundError:
        return
    there = parse_semver(other.semver or "")
    older, newer = (other, manifest) if there and there < semver else (manifest, other)
    need = needed_bump(identity_of(older), identity_of(newer))
    if need.bump == "major":
        raise ConflictError(
            f"version {manifest.version_text} of '{manifest.model}' does not fit the versions "
            f"^{semver.major} in {target.url}: between {older.version_text} and "
            f"{newer.version_text}, {need.reason}, which takes a major version; publish it there "
            "again"
        )


def _is_published(
    source: ModelStore, target: ModelStore, manifest: Manifest, sealed: bytes
) -> bool:
    """Returns True if the target has this version already.

    Raises:
        ConflictError: it has a different version under the same number.
    """
    try:
        found = target.sealed(manifest)
    except MissingFileError:
        return False
    if found != sealed:
        raise ConflictError(
            f"version {manifest.version} of '{manifest.model}' exists in both stores and differs: "
            f"its manifest has sha256 {_digest(sealed)[:12]}… in {source.url} and "
            f"{_digest(found)[:12]}… in {target.url}; versions never change, so publish it again "
            "under a new number"
        )
    return True


def _is_whole(
    target: ModelStore, manifest: Manifest, entry: FileEntry, sizes: dict[str, int]
) -> bool:
    """Returns True if the target holds the file intact; reads it only if its size matches."""
    if sizes.get(f"{manifest.model}/{manifest.version}/{entry.file}") != entry.size_bytes:
        return False
    try:
        target.read_file(manifest, entry)
    except (DigestMismatchError, MissingFileError):
        return False
    return True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
