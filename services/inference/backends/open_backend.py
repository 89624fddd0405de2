"""Opens an artifact in its backend, which is imported, with its runtime, when first needed."""

from services.inference.backends.artifact_fit import check_fit
from services.inference.backends.backend import Backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.python_step import PythonStepBackend
from services.inference.backends.served_kinds import SERVED_KINDS
from services.inference.backends.verified_artifact import VerifiedArtifact


def open_backend(artifact: VerifiedArtifact, options: OpenOptions) -> Backend:
    """Opens an artifact, with the version's Python step before it if there is one.

    Args:
        artifact: the artifact and its files.
        options: options of the backend.

    Raises:
        StoreError: a file refers to more than its own bytes, or inflates beyond the limit.
        DeviceError: the device is missing, or its runtime is not installed.
        UnfitArtifactError: this machine cannot run it.
        Exception: any exception of the runtime for a file that it cannot open.
    """
    if artifact.code is not None:
        behind = open_backend(artifact.behind_step(artifact.code), options)
        return PythonStepBackend(artifact.code, behind)
    check_fit(artifact.entry, options.device)
    artifact.entry.check_file(artifact.data)
    return SERVED_KINDS[artifact.entry.kind].open(artifact, options)
