"""An artifact to open: its entry in the manifest, and the bytes of its files. Plain values."""

from dataclasses import dataclass, replace

from flambeau.protocol.signature import Signature
from model_store.manifest import Artifact, PythonStep
from services.inference.backends.files_folder import FilesFolder


@dataclass(frozen=True, slots=True)
class StepCode:
    """A version's Python step, and its file, which was verified and is allowed to run here."""

    step: PythonStep
    source: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedArtifact:
    """An artifact whose files have been read, and their digests verified."""

    entry: Artifact
    """Its entry in the manifest."""
    signature: Signature
    """Names and order of inputs and outputs, as of the version's clients."""
    data: bytes
    """Contents of its file, which may contain code."""
    weights: bytes = b""
    """Contents of the second file, for kinds that have one."""
    code: StepCode | None = None
    """The version's Python step, which runs before the artifact."""
    folder: FilesFolder | None = None
    """Folder with its file and its side files, for a Python model."""

    def behind_step(self, code: StepCode) -> "VerifiedArtifact":
        """Returns the artifact without the step: its inputs are the step's outputs."""
        signature = self.signature.model_copy(update={"inputs": code.step.inputs})
        return replace(self, signature=signature, code=None)
