"""The certificates of a version: one a kind of machine, written and read beside the version.

    <url>/<model>/certificates/<version>/<environment>.json

Rules kept here: a version's own folder is never touched; the same environment has one certificate,
and the newest replaces the one before; a file that is not of this very version is an error.
"""

import hashlib

from model_store.certificates.certificate import (
    Certificate,
    certificate_path,
    certificates_folder,
    parse_certificate,
)
from model_store.document import LARGE
from model_store.errors import CertificateError
from model_store.manifest import Manifest
from model_store.store import ModelStore


def manifest_sha256(store: ModelStore, manifest: Manifest) -> str:
    """The digest of a version's manifest as it is stored.

    Raises:
        StorageError: the store is out of reach.
    """
    return hashlib.sha256(store.sealed(manifest)).hexdigest()


def record(store: ModelStore, manifest: Manifest, certificate: Certificate) -> str:
    """Writes a certificate, in the place of an earlier one of the same environment.

    Returns:
        Its path in the store.

    Raises:
        StorageError: the store failed, or may not be written to.
    """
    path = certificate_path(manifest, certificate.environment.digest())
    store.storage.replace(path, certificate.to_json())
    return path


def certificates(store: ModelStore, manifest: Manifest) -> list[Certificate]:
    """Every certificate of a version, the newest first.

    Raises:
        CertificateError: one cannot be read, or is of another version.
        StorageError: the store is out of reach.
    """
    paths = store.storage.list(certificates_folder(manifest))
    if not paths:
        return []
    digest = manifest_sha256(store, manifest)
    found = []
    for path in sorted(paths):
        certificate = parse_certificate(store.storage.get(path, LARGE.max_bytes), path)
        if certificate.manifest_sha256 != digest:
            raise CertificateError(
                f"{path} is of a manifest with sha256 {certificate.manifest_sha256[:12]}…, and "
                f"that of {manifest.model} {manifest.version} is {digest[:12]}…; it was copied "
                "from another store, so remove it and run flambeau verify again"
            )
        found.append(certificate)
    return sorted(found, key=lambda one: one.made_at, reverse=True)
