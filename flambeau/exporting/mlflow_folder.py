"""Writes a version as an MLflow model.

In: a version. Out: a folder with `MLmodel`, `requirements.txt` and `python_env.yaml`. An ONNX
artifact is a model of the flavor `onnx`, which MLflow itself runs. Any other, and one behind a
Python step, is a `python_function` with a loader that needs nothing of flambeau.

Rules: an ONNX file is the version's own, checked by its digest; a loader answers the golden rows
before anybody else sees the folder; the same version gives the same bytes.

Source: MLflow's "MLflow Models", "Model Signatures" and "Storage Format".
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from flambeau.exporting.errors import NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.self_contained_model import write_folder
from flambeau.exporting.version_files import (
    PACKAGE,
    artifact_bytes,
    check_datatypes,
    chosen_artifact,
    filled_inputs,
    network_file,
    package_files,
    self_contained_files,
)
from flambeau.protocol.tensor_spec import TensorSpec
from flambeau.protocol.tensors import DATATYPES
from model_store.certificates.certificates import manifest_sha256
from model_store.manifest import Artifact, Manifest
from services.inference.backends.device import CPU
from services.inference.loading.artifact_files import check_servable

MLMODEL, REQUIREMENTS, ENVIRONMENT = "MLmodel", "requirements.txt", "python_env.yaml"
CODE, DATA = "code", "data"
LIBRARIES = {"onnx": ("onnx", "onnxruntime"), "torchscript": ("torch",)}
"""Packages that run a kind, by their names on PyPI; NumPy is needed by all."""
OLDEST_PYTHON = "3.10"
"""Python of a version that does not say which one made it."""
_NOT_NEEDED = ("version_handler", "row_values", "triton_model")
"""Modules of other formats."""


def write_mlflow_model(request: ExportRequest, path: Path) -> Exported:
    """Writes the folder of a version; see `ExportFormat.write`."""
    artifact = _artifact_of(request)
    request.trust.check(request.store, request.manifest, artifact)
    manifest = request.manifest
    is_onnx = artifact.kind == "onnx" and manifest.python_step is None
    if is_onnx:
        name = str(network_file(artifact))
        files, flavors = {name: artifact_bytes(request, artifact)}, _onnx_flavors(artifact, name)
    else:
        check_servable(manifest, artifact, CPU)
        contents = self_contained_files(request, artifact, (f"{PACKAGE}.py",))
        files = {f"{DATA}/{name}": data for name, data in contents.items()}
        files |= {f"{CODE}/{name}": data for name, data in package_files(*_NOT_NEEDED).items()}
        flavors = {
            "python_function": {
                "code": CODE, "data": DATA, "loader_module": f"{PACKAGE}.mlflow_model",
            }
        }  # fmt: skip
    python = manifest.lineage.library_versions.get("python", OLDEST_PYTHON)
    flavors["python_function"] |= {"env": {"virtualenv": ENVIRONMENT}, "python_version": python}
    files[MLMODEL] = _yaml(_model(request, flavors, not is_onnx))
    files[REQUIREMENTS] = _requirements(manifest, artifact)
    dependencies = [f"-r {REQUIREMENTS}"]
    files[ENVIRONMENT] = _yaml({"python": python, "dependencies": dependencies})
    checked_by = "" if is_onnx else "ExportedMlflowModel"
    return write_folder(request, artifact, files, path, checked_by)


def _artifact_of(request: ExportRequest) -> Artifact:
    """Returns the artifact to export.

    Raises:
        NotExportableError: the version cannot be an MLflow model.
    """
    if request.manifest.signature.sequence is not None:
        raise NotExportableError(
            f"{request.title} keeps states of sequences, which MLflow does not; publish it without "
            "'sequence', so that callers send the states"
        )
    check_datatypes(request)
    return chosen_artifact(request, "an MLflow model")


def _onnx_flavors(artifact: Artifact, file: str) -> dict[str, dict[str, Any]]:
    version = artifact.made_with.libraries.get("onnx")
    return {
        "onnx": {
            "data": file,
            **({} if version is None else {"onnx_version": version}),
            "providers": ["CPUExecutionProvider"],
        },
        "python_function": {"data": file, "loader_module": "mlflow.onnx"},
    }


def _model(
    request: ExportRequest, flavors: Mapping[str, Any], fills_mask: bool
) -> dict[str, object]:
    manifest, signature = request.manifest, request.manifest.signature
    digest = manifest_sha256(request.store, manifest)
    filled = filled_inputs(signature) if fills_mask else ()
    semver = {} if manifest.semver is None else {"semver": manifest.semver}
    return {
        "flavors": dict(flavors),
        "model_uuid": digest[:32],
        "utc_time_created": manifest.created_at.strftime("%Y-%m-%d %H:%M:%S.%f"),
        "signature": {
            "inputs": _tensors(signature.inputs, filled),
            "outputs": _tensors(signature.outputs),
            "params": None,
        },
        "metadata": {
            "model": manifest.model,
            "version": manifest.version,
            **semver,
            "manifest_sha256": digest,
        },
    }


def _tensors(specs: Iterable[TensorSpec], filled: Iterable[str] = ()) -> str:
    """Returns tensors as the JSON of MLflow's signatures."""
    return json.dumps(
        [
            {
                "type": "tensor",
                "name": spec.name,
                **({"required": False} if spec.optional or spec.name in filled else {}),
                "tensor-spec": {
                    "dtype": str(DATATYPES[spec.datatype]), "shape": list(spec.shape),
                },
            }
            for spec in specs
        ]
    )  # fmt: skip


def _requirements(manifest: Manifest, artifact: Artifact) -> bytes:
    """Returns the packages that run the artifact, of the versions that it was made with."""
    known = {**manifest.lineage.library_versions, **artifact.made_with.libraries}
    names = ("mlflow", "numpy", *LIBRARIES.get(artifact.kind, ()))
    lines = []
    if artifact.python is not None:
        lines.append("# And the packages that the code of the model imports.")
        if any(entry.file.endswith(".onnx") for entry in artifact.python.files):
            names = (*names, "onnxruntime")
    for name in names:
        version = known.get(name, "").partition("+")[0]  # of a build, which PyPI does not have
        lines.append(f"{name}=={version}" if version else name)
    return ("\n".join(lines) + "\n").encode()


def _yaml(document: Mapping[str, object]) -> bytes:
    return yaml.safe_dump(dict(document), sort_keys=True, default_flow_style=False).encode()
