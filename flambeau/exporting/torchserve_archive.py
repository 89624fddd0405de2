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
from collections.abc import Iterable, Mapping
from pathlib import Path

from flambeau.exporting import archived_version
from flambeau.exporting.archive_check import check_archive
from flambeau.exporting.archived_version.version_handler import CODE_FOLDER, DESCRIPTION
from flambeau.exporting.errors import NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from model_store.archives.archive_manifest import MANIFEST_PATH
from model_store.archives.archive_settings import ARCHIVE_FILE, is_imported
from model_store.archives.model_archive import open_archive
from model_store.artifact_kinds import STORED_KINDS
from model_store.manifest import Artifact
from model_store.python_models.open_model import MAX_SOURCE_BYTES
from services.inference.backends.device import CPU
from services.inference.loading.artifact_files import check_servable

KINDS = ("onnx", "torchscript", "python")
"""Kinds of artifacts that an archive can have."""
ARCHIVER_VERSION = "0.12.0"
HANDLER, CONFIG = "handler.py", "model-config.yaml"
_PACKAGE = "archived_version"
_HANDLER_SOURCE = f'''"""Answers requests by the version of a model that this archive has."""

from {_PACKAGE}.version_handler import handle as handle
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
    manifest, title = request.manifest, request.title
    if manifest.pipeline is not None:
        raise NotExportableError(
            f"{title} is a pipeline, and an archive has one model; export its models: "
            f"{', '.join(manifest.pipeline.graph.models())}"
        )
    if manifest.signature.sequence is not None:
        raise NotExportableError(
            f"{title} keeps states of sequences, which an archive's handler does not; publish it "
            "without 'sequence', so that callers send the states"
        )
    tensors = (*manifest.signature.inputs, *manifest.signature.outputs)
    if odd := next((spec.name for spec in tensors if spec.datatype == "BF16"), None):
        raise NotExportableError(
            f"tensor '{odd}' of {title} is BF16, which NumPy does not have; publish it as FP32"
        )
    known = {one.name: one for one in manifest.artifacts_by_speed()}
    if request.artifact and request.artifact not in known:
        raise NotExportableError(
            f"{title} has no artifact '{request.artifact}'; give one of {', '.join(known)}"
        )
    wanted = [known[request.artifact]] if request.artifact else list(known.values())
    artifact = next((one for one in wanted if one.kind in KINDS), None)
    if artifact is None:
        kinds = ", ".join(sorted({one.kind for one in wanted}))
        raise NotExportableError(
            f"{title} has {kinds}, and an archive takes {', '.join(KINDS)}; publish it with an "
            "ONNX artifact"
        )
    if artifact.folder is not None:
        raise NotExportableError(
            f"{title} is an archive that is served from its folder; use the archive itself"
        )
    return artifact


def _files_of(request: ExportRequest, artifact: Artifact) -> dict[str, bytes]:
    """Returns the files of an archive by path."""
    store, manifest = request.store, request.manifest
    kind = STORED_KINDS[artifact.kind]
    data = store.read_file(manifest, artifact.file, MAX_SOURCE_BYTES if kind.has_class else None)
    artifact.check_file(data)
    serialized = None if kind.has_class else f"model.{kind.suffix}"
    description: dict[str, object] = {
        "model": manifest.model,
        "version": manifest.version,
        "kind": artifact.kind,
        "signature": manifest.signature.model_dump(mode="json"),
    }
    code: dict[str, bytes] = {}
    if serialized is not None:
        inputs = [spec.name for spec in manifest.artifact_inputs()]
        description |= {"file": serialized, "inputs": inputs}
    if (python := artifact.python) is not None:
        described = {"file": artifact.file.file, "name": python.name, "args": python.args}
        description["python"] = described | {"files": [entry.file for entry in python.files]}
        code = {entry.file: store.read_file(manifest, entry) for entry in python.files}
        _check_modules(code, request)
        code[artifact.file.file] = data
    if (step := manifest.python_step) is not None:
        description["step"] = {"file": step.file.file, "name": step.name, "args": step.args}
        code[step.file.file] = store.read_file(manifest, step.file, MAX_SOURCE_BYTES)
    return {
        **_handler_files(),
        **({} if serialized is None else {serialized: data}),
        **{f"{CODE_FOLDER}/{name}": content for name, content in code.items()},
        DESCRIPTION: _json(description),
        CONFIG: _config(request),
        MANIFEST_PATH: _manifest(request, serialized),
    }


def _check_modules(names: Iterable[str], request: ExportRequest) -> None:
    """Checks that code finds its own modules, and not the archive's.

    Raises:
        NotExportableError: a side file has the name of one of the archive's modules.
    """
    taken = {HANDLER, f"{_PACKAGE}.py"}
    if odd := next((name for name in names if name in taken), None):
        raise NotExportableError(
            f"{request.title} has a side file '{odd}', which is the name of a module of the "
            "archive; rename it"
        )


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
    return _json(
        {
            "createdOn": version.created_at.strftime("%d/%m/%Y %H:%M:%S"),
            "runtime": "python",
            "model": model,
            "archiverVersion": ARCHIVER_VERSION,
        }
    )


def _handler_files() -> dict[str, bytes]:
    """Returns the handler, and the package that it is made of under the name it has there."""
    folder, name = Path(archived_version.__file__).parent, archived_version.__name__
    files = {HANDLER: _HANDLER_SOURCE.encode()}
    for file in sorted(folder.glob("*.py")):
        files[f"{_PACKAGE}/{file.name}"] = file.read_text().replace(name, _PACKAGE).encode()
    return files


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
    return files | {MANIFEST_PATH: _json(document)}


def _write(files: Mapping[str, bytes], path: Path, request: ExportRequest) -> None:
    made_at = max(request.manifest.created_at.timetuple()[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESS_LEVEL) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, made_at)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, data)


def _json(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
