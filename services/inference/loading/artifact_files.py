"""Reads the files of an artifact that may be loaded here, and verifies their digests.

In: a store, a version, an artifact. Out: a `VerifiedArtifact`, ready to open.
"""

from model_store.manifest import Artifact, Manifest
from model_store.python_models.open_model import MAX_SOURCE_BYTES
from model_store.store import ModelStore
from services.inference.backends.artifact_fit import UnfitArtifactError, check_fit
from services.inference.backends.device import Device
from services.inference.backends.files_folder import FilesFolder
from services.inference.backends.served_kinds import SERVED_KINDS
from services.inference.backends.verified_artifact import StepCode, VerifiedArtifact
from services.inference.trust import Trust

UNSERVABLE_DATATYPES = frozenset({"BF16"})
"""Datatypes that NumPy does not have. Python models and steps take them, as their bits."""


def read_artifact(
    store: ModelStore, manifest: Manifest, artifact: Artifact, device: Device, trust: Trust
) -> VerifiedArtifact:
    """Reads the files of an artifact, once its signature and this machine allow it.

    Raises:
        StoreError: a required signature is missing, or a file is invalid or unavailable.
        UnfitArtifactError: no backend on this machine can run it.
    """
    trust.check(store, manifest, artifact)
    check_servable(manifest, artifact, device)
    return read_files(store, manifest, artifact)


def check_servable(manifest: Manifest, artifact: Artifact, device: Device) -> None:
    """Checks that a backend on this machine can run an artifact.

    Raises:
        UnfitArtifactError: this machine lacks something, or no backend takes one of its tensors.
    """
    kind = SERVED_KINDS[artifact.kind]
    for spec in (*manifest.artifact_inputs(), *manifest.signature.outputs):
        if spec.datatype in UNSERVABLE_DATATYPES and artifact.kind != "python":
            raise UnfitArtifactError(
                f"tensor '{spec.name}' is {spec.datatype}, which no backend here takes"
            )
        if spec.datatype == "BYTES" and device.kind not in kind.takes_texts:
            raise UnfitArtifactError(
                f"tensor '{spec.name}' is BYTES, which {artifact.kind} on {device} does not take; "
                "publish the model as ONNX and serve it on the CPU"
            )
        if spec.optional and not kind.takes_optional:
            raise UnfitArtifactError(
                f"input '{spec.name}' is optional, and {artifact.kind} needs every input; publish "
                "the model as ONNX or TorchScript"
            )
    check_fit(artifact, device)


def read_files(store: ModelStore, manifest: Manifest, artifact: Artifact) -> VerifiedArtifact:
    """Reads the files of an artifact, and of the version's Python step.

    Raises:
        StoreError: a file is invalid or unavailable.
        OSError: the side files of a Python model cannot be written to a folder.
    """
    python, step = artifact.python, manifest.python_step
    data = store.read_file(manifest, artifact.file, None if python is None else MAX_SOURCE_BYTES)
    folder = None
    if python is not None:
        side_files = {entry.file: store.read_file(manifest, entry) for entry in python.files}
        folder = FilesFolder.of({artifact.file.file: data, **side_files})
    return VerifiedArtifact(
        entry=artifact,
        signature=manifest.signature,
        data=data,
        weights=store.read_file(manifest, artifact.weights) if artifact.weights else b"",
        code=(
            None
            if step is None
            else StepCode(step, store.read_file(manifest, step.file, MAX_SOURCE_BYTES))
        ),
        folder=folder,
    )
