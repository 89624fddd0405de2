"""Writes a version as a folder of a Triton model repository.

In: a version. Out: `config.pbtxt`, and in the folder of the version its file for a backend of
Triton: `model.onnx`, `model.pt`, `model.xml`; or `model.py`, which runs a Python model, or a Python
step before a network, and needs nothing of flambeau.

Rules: a file for a backend is the version's own, checked by its digest; `model.py` answers the
golden rows before anybody else sees the folder; the same version gives the same bytes.

Source: Triton's "Model Repository" and "Model Configuration".
"""

from pathlib import Path

from flambeau.exporting.archived_version.triton_model import THREADS
from flambeau.exporting.errors import NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.self_contained_model import write_folder
from flambeau.exporting.version_files import (
    KINDS,
    PACKAGE,
    artifact_bytes,
    check_datatypes,
    chosen_artifact,
    filled_inputs,
    network_file,
    package_files,
    self_contained_files,
)
from model_store.artifact_kinds import STORED_KINDS
from model_store.certificates.certificates import manifest_sha256
from model_store.manifest import Artifact
from services.inference.backends.device import CPU
from services.inference.loading.artifact_files import check_servable
from training.exporters.triton_config import config_pbtxt, initial_states, quoted

CONFIG, MODEL = "config.pbtxt", "model.py"
PYTHON = "python"
MANIFEST_DIGEST = "flambeau_manifest_sha256"
"""Parameter of the configuration by which an exported folder is recognised."""
OPENVINO = "openvino"
"""A kind whose backend not every Triton has: exported by its name alone."""
_MODEL_SOURCE = f'''"""Answers requests by the version of a model that this folder has."""

import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
sys.path.append(str(_FOLDER))

from {PACKAGE}.triton_model import VersionModel  # noqa: E402


class TritonPythonModel(VersionModel):
    folder = _FOLDER
'''
_NOT_NEEDED = ("version_handler", "row_values", "mlflow_model")
"""Modules of other formats."""


def write_triton_model(request: ExportRequest, path: Path) -> Exported:
    """Writes the folder of a model with one version; see `ExportFormat.write`."""
    artifact = artifact_for_triton(request)
    request.trust.check(request.store, request.manifest, artifact)
    manifest = request.manifest
    files = {CONFIG: triton_config(request, artifact).encode()}
    states = {} if _is_python(request, artifact) else initial_states(manifest.signature)
    files |= {f"initial_state/{name}": data for name, data in states.items()}
    folder = str(manifest.version)
    if not _is_python(request, artifact):
        contents = {str(network_file(artifact)): artifact_bytes(request, artifact)}
        if artifact.weights is not None:
            name = f"model.{STORED_KINDS[artifact.kind].weights_suffix}"
            contents[name] = request.store.read_file(manifest, artifact.weights)
    else:
        check_servable(manifest, artifact, CPU)
        contents = {
            MODEL: _MODEL_SOURCE.encode(),
            **package_files(*_NOT_NEEDED),
            **self_contained_files(request, artifact, (MODEL, f"{PACKAGE}.py")),
        }
    files |= {f"{folder}/{name}": data for name, data in contents.items()}
    checked_by = "ExportedTritonModel" if _is_python(request, artifact) else ""
    return write_folder(request, artifact, files, path, checked_by, folder)


def artifact_for_triton(request: ExportRequest) -> Artifact:
    """Returns the artifact that Triton runs.

    Raises:
        NotExportableError: Triton runs none, or not as this version is declared.
    """
    kinds = (*KINDS, OPENVINO) if request.artifact else KINDS
    artifact = chosen_artifact(request, "a Triton repository", kinds)
    if not _is_python(request, artifact):
        return artifact
    check_datatypes(request)
    sequence = request.manifest.signature.sequence
    if sequence is not None and (sequence.states or sequence.strategy == "direct"):
        raise NotExportableError(
            f"{request.title} keeps states of sequences outside its code, or by place in the "
            "batch, and Triton's Python backend does neither; export an ONNX or TorchScript "
            "artifact of a version without a Python step"
        )
    return artifact


def triton_config(request: ExportRequest, artifact: Artifact) -> str:
    """Returns the `config.pbtxt` of a version; the same text for the same version and options."""
    manifest, signature = request.manifest, request.manifest.signature
    is_python = _is_python(request, artifact)
    more = _parameter("flambeau_version", manifest.version_text)
    more += _parameter(MANIFEST_DIGEST, manifest_sha256(request.store, manifest))
    more += _parameter("flambeau_artifact", artifact.name)
    if is_python:
        more += _parameter(THREADS, "1")
    if signature.sequence is None and signature.is_plain and signature.max_batch_size > 1:
        delay = request.max_batch_delay_ms * 1000
        more += f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n"
    if is_python and signature.sequence is not None:
        more += "instance_group [ { count: 1 } ]\n"
    kind, file = (PYTHON, MODEL) if is_python else (artifact.kind, str(network_file(artifact)))
    filled = filled_inputs(signature) if is_python else ()
    return config_pbtxt(manifest.model, kind, file, signature, more, filled)


def _is_python(request: ExportRequest, artifact: Artifact) -> bool:
    """Returns True if Triton's Python backend runs the artifact."""
    return artifact.python is not None or request.manifest.python_step is not None


def _parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {quoted(key)} value {{ string_value: {quoted(value)} }} }}\n"
