"""Copies one version from a store to another, number and bytes unchanged.

In: two stores, a model and a version. Out: the same version in the target, and what it took.

Rules kept here:
- all or nothing: the manifest is written last, so a copy that dies leaves no version behind;
- the number is claimed in the name of the manifest's digest, so that a copy which died can be
  taken up again by anybody, while another publisher of the same number is refused;
- every byte is checked against the manifest when it leaves the source, and again after the target
  has stored it; a file the target already holds whole is not sent twice;
- the signature goes along, as it is: whoever loads the version verifies it.
"""

import hashlib
from dataclasses import dataclass

from model_store import semver_index
from model_store.errors import ConflictError, DigestMismatchError
from model_store.manifest import FileEntry, Manifest
from model_store.storage.storage import MissingFileError
from model_store.store import ModelStore, Progress, manifest_path, signature_path


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What one copy did."""

    files_copied: int
    files_skipped: int
    """Files the target held already, digest checked unless the whole version was there."""
    bytes_copied: int


def copy_version(
    source: ModelStore,
    target: ModelStore,
    model: str,
    version: int,
    progress: Progress | None = None,
) -> CopyReport:
    """Copies a version to another store under the same number.

    Args:
        source: the store that has it.
        target: the store that shall have it; its pointers stay as they are.
        model: name of the model.
        version: its number in both stores.
        progress: called after every file that is now in the target, copied or found there.

    Raises:
        ModelNotFoundError, VersionNotFoundError: the source does not have it.
        DigestMismatchError: a file of the source is corrupt, or the target did not keep the bytes.
        ConflictError: the target has another version under this number, or somebody else took it.
        StorageError: one of the stores failed; the same copy may be started again.
    """
    manifest = source.manifest(model, version)
    sealed = source.sealed(manifest)
    signature = source.signature(model, version)
    if _is_published(source, target, manifest, sealed):
        if signature and target.signature(model, version) is None:  # an older copy left it behind
            target.storage.replace(signature_path(model, version), signature)
        return CopyReport(0, len(manifest.all_files()), 0)
    target.claim(model, version, f"copy of the manifest with sha256 {_digest(sealed)}")
    sizes = target.storage.list(f"{model}/{version}/")
    copied = []
    for entry in manifest.all_files():
        if not _is_whole(target, manifest, entry, sizes):
            target.write_file(manifest, entry, source.read_file(manifest, entry))
            copied.append(entry)
        if progress:
            progress(entry.file, entry.size_bytes)
    if signature:
        target.storage.replace(signature_path(model, version), signature)
    semver_index.note(target.storage, manifest)
    try:
        target.storage.create(manifest_path(model, version), sealed)
    except ConflictError:
        if not _is_published(source, target, manifest, sealed):  # else the same copy, run twice
            raise
    return CopyReport(
        files_copied=len(copied),
        files_skipped=len(manifest.all_files()) - len(copied),
        bytes_copied=sum(entry.size_bytes for entry in copied),
    )


def _is_published(
    source: ModelStore, target: ModelStore, manifest: Manifest, sealed: bytes
) -> bool:
    """Whether the target has this version already.

    Raises:
        ConflictError: it has a different one under the same number.
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
    """Whether the target holds the right bytes; reads them only if their number is right."""
    if sizes.get(f"{manifest.model}/{manifest.version}/{entry.file}") != entry.size_bytes:
        return False
    try:
        target.read_file(manifest, entry)
    except (DigestMismatchError, MissingFileError):
        return False
    return True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
