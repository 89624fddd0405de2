"""Writes a version as an OCI image layout, which registries of containers store and copy.

In: a version. Out: a folder with `oci-layout`, `index.json` and `blobs/sha256/`: one artifact
manifest with a layer for each file of the version, the store's own manifest and signature included.

Rules: the same version gives the same bytes; every file is checked before it is written.

Source: OCI image specification 1.1, "Image Layout" and "Guidelines for Artifact Usage".
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from flambeau.exporting.errors import NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from model_store.manifest import MANIFEST, SIGNATURE, Manifest

ARTIFACT_TYPE = "application/vnd.flambeau.model.v1"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
EMPTY_TYPE, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
"""The configuration of an artifact that has none."""
LAYOUT = "oci-layout"
TITLE = "org.opencontainers.image.title"
MEDIA_TYPES = {
    ".html": "text/html",
    ".json": "application/json",
    ".pbtxt": "text/plain",
    ".py": "text/x-python",
    ".sig": "application/vnd.dev.sigstore.bundle.v0.3+json",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
}
"""Media types by suffix; those of weights are not registered."""
BYTES = "application/octet-stream"


def write_oci_layout(request: ExportRequest, path: Path) -> Exported:
    """Writes the layout of a version; see `ExportFormat.write`."""
    if request.artifact:
        raise NotExportableError(
            "an OCI layout has every file of the version; leave out --artifact"
        )
    blobs = _Blobs(path / "blobs" / "sha256")
    layers = [
        blobs.add(data, _media_type(name), annotations={TITLE: name})
        for name, data in _files_of(request)
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": blobs.add(EMPTY, EMPTY_TYPE),
        "layers": layers,
        "annotations": _annotations(request.manifest),
    }
    tag = {"org.opencontainers.image.ref.name": str(request.manifest.version)}
    entry = blobs.add(_json(manifest), MANIFEST_TYPE, artifactType=ARTIFACT_TYPE, annotations=tag)
    (path / LAYOUT).write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }
    (path / "index.json").write_bytes(_json(index))
    return Exported(path=path, size_bytes=blobs.size_bytes)


class _Blobs:
    """The blobs of a layout; equal ones are stored once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self.size_bytes = 0

    def add(self, data: bytes, media_type: str, **fields: Any) -> dict[str, Any]:
        """Writes a blob, and returns its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        if not (self._folder / digest).exists():
            (self._folder / digest).write_bytes(data)
            self.size_bytes += len(data)
        described = {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}
        return described | fields


def _files_of(request: ExportRequest) -> Iterator[tuple[str, bytes]]:
    """Yields names and bytes of the files of a version."""
    store, manifest = request.store, request.manifest
    yield MANIFEST, store.sealed(manifest)
    if (signature := store.signature(manifest.model, manifest.version)) is not None:
        yield SIGNATURE, signature
    for entry in manifest.all_files():
        yield entry.file, store.read_file(manifest, entry)


def _annotations(manifest: Manifest) -> dict[str, str]:
    semver = {} if manifest.semver is None else {"io.flambeau.semver": manifest.semver}
    return {
        "io.flambeau.model": manifest.model,
        "io.flambeau.version": str(manifest.version),
        **semver,
        "org.opencontainers.image.created": manifest.created_at.isoformat(),
        TITLE: manifest.model,
        "org.opencontainers.image.version": manifest.semver or str(manifest.version),
    }


def _media_type(name: str) -> str:
    return MEDIA_TYPES.get(PurePath(name).suffix, BYTES)


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
