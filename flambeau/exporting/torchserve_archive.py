"""Writes a version as a TorchServe archive (`.mar`), and checks it.

In: a version. Out: a zip with the manifest of torch-model-archiver, a handler that needs nothing of
flambeau (`archived_version/`), the artifact, and a YAML file with the limits of its batches. A
version that was imported from an archive becomes that archive again, under the version's name.

Rules: the same version gives the same bytes; the archive is read as a server reads it, and its
handler answers the golden rows, before anybody else sees the file.
"""

import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from flambeau.exporting.archive_check import check_archive
from flambeau.exporting.errors import NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.version_files import (
    PACKAGE,
    check_datatypes,
    chosen_artifact,
    json_bytes,
    network_file,
    package_files,
    self_contained_files,
)
from model_store.archives.archive_manifest import MANIFEST_PATH
from model_store.archives.archive_settings import ARCHIVE_FILE, is_imported
from model_store.archives.model_archive import open_archive
from model_store.manifest import Artifact
from services.inference.backends.device import CPU
from services.inference.loading.artifact_files import check_servable

ARCHIVER_VERSION = "0.12.0"
HANDLER, CONFIG = "handler.py", "model-config.yaml"
_HANDLER_SOURCE = f'''"""Answers requests by the version of a model that this archive has."""

from {PACKAGE}.version_handler import handle as handle
'''
_COMPRESS_LEVEL = 1
"""Weights hardly get smaller, however long it takes."""


def write_torchserve_archive(request: ExportRequest, path: Path) -> Exported:
    """Writes the archive of a version, and checks it; see `ExportFormat.write`."""
    artifact = _artifact_of(request)
    request.trust.check(request.store, request.manifest, artifact)
    check_servable(request.manifest, artifact, CPU)
    with tempfile.TemporaryDirectory(prefix="flambeau-archive-") as made:
        if is_imported(artifact):
            files = _files_as_imported(request, artifact, Path(made))
        else:
            files = _files_of(request, artifact)
        _write(files, path, request)
        archive = open_archive(path, Path(made) / "read")
        outcome = check_archive(archive, request, artifact)
    return Exported(
        path=path,
        size_bytes=path.stat().st_size,
        artifact=artifact.name,
        rows=request.manifest.golden.rows,
        max_abs_difference=outcome,
    )


def _artifact_of(request: ExportRequest) -> Artifact:
    """Returns the artifact to export.

    Raises:
        NotExportableError: the version cannot be an archive, or has no such artifact.
    """
    if request.manifest.signature.sequence is not None:
        raise NotExportableError(
            f"{request.title} keeps states of sequences, which an archive's handler does not; "
            "publish it without 'sequence', so that callers send the states"
        )
    check_datatypes(request)
    return chosen_artifact(request, "an archive")


def _files_of(request: ExportRequest, artifact: Artifact) -> dict[str, bytes]:
    """Returns the files of an archive by path."""
    taken = (HANDLER, f"{PACKAGE}.py")
    return {
        HANDLER: _HANDLER_SOURCE.encode(),
        **package_files("triton_model", "mlflow_model", "batch_inputs"),
        **self_contained_files(request, artifact, taken),
        CONFIG: _config(request),
        MANIFEST_PATH: _manifest(request, network_file(artifact)),
    }


def _manifest(request: ExportRequest, serialized: str | None) -> bytes:
    """Returns the manifest as torch-model-archiver writes it."""
    version = request.manifest
    model = {
        "modelName": version.model,
        **({} if serialized is None else {"serializedFile": serialized}),
        "handler": HANDLER,
        "modelVersion": str(version.version),
        "configFile": CONFIG,
    }
    return json_bytes(
        {
            "createdOn": version.created_at.strftime("%d/%m/%Y %H:%M:%S"),
            "runtime": "python",
            "model": model,
            "archiverVersion": ARCHIVER_VERSION,
        }
    )


def _config(request: ExportRequest) -> bytes:
    """Returns the archive's settings: limits of batches, and one worker, as here."""
    lines = (
        "minWorkers: 1",
        "maxWorkers: 1",
        f"batchSize: {request.manifest.signature.max_batch_size}",
        f"maxBatchDelay: {request.max_batch_delay_ms}",
        "handler:",
        "  threads: 1",
    )
    return ("\n".join(lines) + "\n").encode()


def _files_as_imported(
    request: ExportRequest, artifact: Artifact, folder: Path
) -> dict[str, bytes]:
    """Returns the files of the archive that was imported, under the version's name."""
    assert artifact.python is not None
    entry = next(entry for entry in artifact.python.files if entry.file == ARCHIVE_FILE)
    stored = folder / ARCHIVE_FILE
    stored.write_bytes(request.store.read_file(request.manifest, entry))
    found = open_archive(stored, folder / "imported").folder
    files = {
        str(path.relative_to(found)): path.read_bytes()
        for path in sorted(found.rglob("*"))
        if path.is_file()
    }
    document = json.loads(files[MANIFEST_PATH])
    document["model"] |= {
        "modelName": request.manifest.model,
        "modelVersion": str(request.manifest.version),
    }
    return files | {MANIFEST_PATH: json_bytes(document)}


def _write(files: Mapping[str, bytes], path: Path, request: ExportRequest) -> None:
    made_at = max(request.manifest.created_at.timetuple()[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESS_LEVEL) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, made_at)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, data)
