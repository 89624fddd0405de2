"""Metadata of the server and its models, the same over REST and gRPC."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flambeau.protocol.sequence_spec import CONTROLS
from flambeau.protocol.signature import BEYOND_TENSORS, TENSOR_FIELDS, Signature, TensorSpec
from services.errors import ModelNotReadyError, NotFoundError
from services.gateway.admission import Admission
from services.queueing.directory import Directory
from services.readiness import Readiness

NAME = "flambeau"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "parameters",
    "model_configuration",
    "statistics",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "sequence",
    "sequence(string_id)",
    "trace",
    "logging",
)
"""Only supported extensions: clients branch on these. Settings enable further ones."""
SHARED_MEMORY = "system_shared_memory"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Name, datatype and shape of one input or output; -1 marks a dimension that varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The protocol's model metadata."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorFacts]
    outputs: list[TensorFacts]
    properties: dict[str, str]


class ServerFacts:
    """Reads the directory for the metadata and health calls."""

    def __init__(
        self,
        version: str,
        directory: Directory,
        admission: Admission,
        readiness: Readiness,
        name: str = NAME,
        further: tuple[str, ...] = (),
    ) -> None:
        self.name, self.version = name, version
        self.extensions = EXTENSIONS + further
        self._directory = directory
        self._admission = admission
        self.readiness = readiness
        self.leaving = False
        """True once the server shuts down."""

    def is_ready(self) -> bool:
        """True if clients may send traffic: not shutting down, and all expected versions served."""
        return self.readiness.is_ready and not self.leaving

    def why_not_served(self) -> str:
        """Returns the reason for which an expected version is not served; empty if all are.

        It names no model where callers may not see all names.
        """
        if self.leaving:
            return "shutting down"
        return self.readiness.summary() if self._directory.is_discreet else self.readiness.why()

    def is_model_ready(self, model: str, version: str) -> bool:
        """Returns True if a version is loaded and verified; False for one that does not exist."""
        try:
            self._directory.resolve(model, version)
        except (NotFoundError, ModelNotReadyError):
            return False
        return True

    def model(self, model: str, version: str) -> ModelFacts:
        """Returns the metadata of a ready version.

        Raises:
            NotFoundError, ModelNotReadyError: as `Directory.resolve`.
        """
        served, signature = self._directory.resolve(model, version)
        aliases = dict(self._directory.aliases(model))
        inputs, outputs = (
            [TensorFacts(spec.name, spec.datatype, spec.shape) for spec in specs]
            for specs in (signature.inputs, signature.outputs)
        )
        return ModelFacts(
            name=model,
            versions=[str(number) for number in self._directory.versions(model)],
            platform=served.platform,
            inputs=inputs,
            outputs=outputs,
            properties={
                "artifact": served.artifact,
                "artifacts": ", ".join(known.name for known in served.artifacts),
                "live_version": str(self._directory.live_version(model) or ""),
                "max_batch_size": str(signature.max_batch_size),
                "version": str(served.lane.version),
                **({"semver": served.semver} if served.semver else {}),
                **({"aliases": json.dumps(aliases, sort_keys=True)} if aliases else {}),
                **_signature_properties(signature),
            },
        )


def _signature_properties(signature: Signature) -> dict[str, str]:
    """Returns, as JSON, facts of a signature that the protocol's tensors cannot express."""
    document = signature.model_dump(
        mode="json", include=set(BEYOND_TENSORS), exclude={"sequence": {"states", "id", *CONTROLS}}
    )
    if not signature.is_plain:
        document["tensors"] = {
            "inputs": _tensor_fields(signature.inputs),
            "outputs": _tensor_fields(signature.outputs),
        }
    return {name: json.dumps(part) for name, part in document.items() if part}


def _tensor_fields(specs: Iterable[TensorSpec]) -> dict[str, dict[str, Any]]:
    """Returns the fields of `TENSOR_FIELDS` that differ from their default, by tensor."""
    found = {s.name: s.model_dump(mode="json", include=set(TENSOR_FIELDS)) for s in specs}
    return {name: fields for name, fields in found.items() if fields}
