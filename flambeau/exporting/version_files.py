"""Files of a version that runs where nothing of flambeau is installed.

In: a version. Out: the artifact to export; its files by path, and the description by which
`archived_version/` opens them.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from flambeau.exporting import archived_version
from flambeau.exporting.archived_version.opened_version import CODE_FOLDER, DESCRIPTION
from flambeau.exporting.errors import NotExportableError
from flambeau.exporting.export_request import ExportRequest
from flambeau.protocol.signature import Signature
from model_store.artifact_kinds import STORED_KINDS
from model_store.manifest import Artifact
from model_store.python_models.open_model import MAX_SOURCE_BYTES

KINDS = ("onnx", "torchscript", "python")
"""Kinds of artifacts that run without flambeau."""
PACKAGE = "archived_version"
"""Name of the copied package."""


def chosen_artifact(request: ExportRequest, words: str, kinds: Collection[str] = KINDS) -> Artifact:
    """Returns the artifact to export: the named one, or the fastest of these kinds.

    Args:
        request: the version.
        words: the format in messages, such as `an archive`.
        kinds: kinds that the format can have.

    Raises:
        NotExportableError: the version is a pipeline, or has no such artifact.
    """
    manifest, title = request.manifest, request.title
    if manifest.pipeline is not None:
        raise NotExportableError(
            f"{title} is a pipeline, and {words} has one model; export its models: "
            f"{', '.join(manifest.pipeline.graph.models())}"
        )
    known = {one.name: one for one in manifest.artifacts_by_speed()}
    if request.artifact and request.artifact not in known:
        raise NotExportableError(
            f"{title} has no artifact '{request.artifact}'; give one of {', '.join(known)}"
        )
    wanted = [known[request.artifact]] if request.artifact else list(known.values())
    artifact = next((one for one in wanted if one.kind in kinds), None)
    if artifact is None:
        found = ", ".join(sorted({one.kind for one in wanted}))
        raise NotExportableError(
            f"{title} has {found}, and {words} takes {', '.join(kinds)}; publish it with an ONNX "
            "artifact"
        )
    if artifact.folder is not None:
        raise NotExportableError(
            f"{title} is an archive that is served from its folder; use the archive itself"
        )
    return artifact


def check_datatypes(request: ExportRequest) -> None:
    """Checks that NumPy has the datatypes of a version.

    Raises:
        NotExportableError: it has not.
    """
    tensors = (*request.manifest.signature.inputs, *request.manifest.signature.outputs)
    if odd := next((spec.name for spec in tensors if spec.datatype == "BF16"), None):
        raise NotExportableError(
            f"tensor '{odd}' of {request.title} is BF16, which NumPy does not have; publish it as "
            "FP32"
        )


def self_contained_files(
    request: ExportRequest, artifact: Artifact, taken: Collection[str]
) -> dict[str, bytes]:
    """Returns the description, the network and the code of a version, by path.

    Args:
        request: the version.
        artifact: its artifact, of one of `KINDS`.
        taken: names of modules of the format, which no side file may have.

    Raises:
        NotExportableError: a side file has the name of a module.
        StoreError: a file is invalid or unavailable.
    """
    store, manifest = request.store, request.manifest
    data = artifact_bytes(request, artifact)
    serialized = network_file(artifact)
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
        _check_modules(code, request, taken)
        code[artifact.file.file] = data
    if (step := manifest.python_step) is not None:
        description["step"] = {"file": step.file.file, "name": step.name, "args": step.args}
        code[step.file.file] = store.read_file(manifest, step.file, MAX_SOURCE_BYTES)
    return {
        **({} if serialized is None else {serialized: data}),
        **{f"{CODE_FOLDER}/{name}": content for name, content in code.items()},
        DESCRIPTION: json_bytes(description),
    }


def artifact_bytes(request: ExportRequest, artifact: Artifact) -> bytes:
    """Returns the file of an artifact, once it is checked.

    Raises:
        StoreError: it is invalid or unavailable.
    """
    kind = STORED_KINDS[artifact.kind]
    limit = MAX_SOURCE_BYTES if kind.has_class else None
    data = request.store.read_file(request.manifest, artifact.file, limit)
    artifact.check_file(data)
    return data


def network_file(artifact: Artifact) -> str | None:
    """Returns the name of the file of a network, such as `model.onnx`; None of a Python model."""
    kind = STORED_KINDS[artifact.kind]
    return None if kind.has_class else f"model.{kind.suffix}"


def package_files(*without: str) -> dict[str, bytes]:
    """Returns the package that opens versions, under the name that it has there.

    Args:
        without: names of modules to leave out.
    """
    folder, name = Path(archived_version.__file__).parent, archived_version.__name__
    return {
        f"{PACKAGE}/{file.name}": file.read_text().replace(name, PACKAGE).encode()
        for file in sorted(folder.glob("*.py"))
        if file.stem not in without
    }


def filled_inputs(signature: Signature) -> tuple[str, ...]:
    """Returns the inputs that the Python code of an export fills where callers omit them."""
    padding = signature.padding
    return () if padding is None else tuple(filter(None, (padding.mask, padding.lengths)))


def write_files(files: Mapping[str, bytes], folder: Path) -> int:
    """Writes files into a new folder; returns their total size in bytes."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return sum(map(len, files.values()))


def json_bytes(document: Mapping[str, object]) -> bytes:
    """Returns a document as JSON for people."""
    return (json.dumps(document, indent=2) + "\n").encode()


def _check_modules(names: Collection[str], request: ExportRequest, taken: Collection[str]) -> None:
    """Checks that code finds its own modules, and not those of the format."""
    if odd := next((name for name in names if name in taken), None):
        raise NotExportableError(
            f"{request.title} has a side file '{odd}', which is the name of a module of the "
            "archive; rename it"
        )
