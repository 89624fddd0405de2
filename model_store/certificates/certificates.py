"""Writes and reads the certificates of a version: one per environment, beside the version.

    <url>/<model>/certificates/<version>/<environment>.json

Rules: the folder of a version is never modified; an environment has one certificate, and a newer
one replaces it; a certificate of any other version is an error.
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
    """Returns the sha256 of a version's stored manifest.

    Raises:
        StorageError: the store is out of reach.
    """
    return hashlib.sha256(store.sealed(manifest)).hexdigest()


def record(store: ModelStore, manifest: Manifest, certificate: Certificate) -> str:
    """Writes a certificate and replaces an earlier one of the same environment.

    Returns:
        Its path in the store.

    Raises:
        StorageError: the store failed or is read-only.
    """
    path = certificate_path(manifest, certificate.environment.digest())
    store.storage.replace(path, certificate.to_json())
    return path


def certificates(store: ModelStore, manifest: Manifest) -> list[Certificate]:
    """Returns all certificates of a version, newest first.

    Raises:
        CertificateError: one cannot be read, or belongs to another version.
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
