"""A certificate: the verification results of a version's artifacts in one environment. Pure rules.

A version is verified on the machine that publishes it. Another torch, driver or processor computes
different numbers, so each environment has its own certificate. Certificates inform people; serving
does not depend on them, because every load replays the golden rows.
"""

import hashlib
import json
import math
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationError

from flambeau.protocol.strict import StrictModel, explain
from model_store.arrays.parity import Comparison
from model_store.document import LARGE, parse_document
from model_store.errors import CertificateError, DocumentError
from model_store.gate_figures import GateValues, gate_values, worst_values
from model_store.manifest import Manifest, Sha256
from model_store.tolerance import Tolerance

SCHEMA_VERSION: Literal[1] = 1
"""The newest schema of certificates that this program reads, and the one it writes."""
DIGEST_CHARACTERS = 16
"""Length of an environment's digest in file names and tables."""

Outcome = Literal["passed", "failed", "not run"]


class Environment(StrictModel):
    """Hardware and software that an artifact's outputs and speed depend on, compared as a whole."""

    machine: str
    """Kind of processor and system, such as `x86_64 Linux`."""
    cpu_model: str
    """Model name that the processor reports."""
    cpu_features: tuple[str, ...]
    """Names from `model_store.host.cpu_features`."""
    device: str
    """`cpu`, or `cuda` for any of the machine's GPUs."""
    device_name: str = ""
    """Name that the GPU reports; empty for the CPU."""
    driver: str = ""
    """Version of the GPU's driver; empty for the CPU."""
    threads: int
    """CPU threads of one run."""
    python: str
    libraries: dict[str, str]
    """Versions of the runtimes, by their names on PyPI."""

    def digest(self) -> str:
        """Returns the environment's name: the sha256 of all fields, shortened."""
        data = json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        return hashlib.sha256(data).hexdigest()[:DIGEST_CHARACTERS]

    def summary(self) -> str:
        """Returns one line: the device, its threads and the runtimes."""
        device = self.device_name or self.cpu_model
        driver = [f"driver {self.driver}"] if self.driver else []
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        libraries = [f"{name} {version}" for name, version in sorted(self.libraries.items())]
        return ", ".join([device, *driver, threads, f"python {self.python}", *libraries])


class ReplayResult(StrictModel):
    """One comparison with the checkpoint's outputs."""

    where: str
    """The rows that were compared, and the batch size."""
    max_abs_difference: float | None
    """None if a shape differs or a value is not finite."""
    agreement: float
    max_probability_shift: float
    cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """Lowest `Gate.cosine` of any embedding; None if the version has no embeddings."""
    gates: GateValues = Field(default={}, exclude_if=lambda gates: not gates)
    """Figures of the outputs that have gates."""

    @classmethod
    def of(cls, found: Comparison, tolerance: Tolerance) -> "ReplayResult":
        """Converts a comparison for a certificate, which is JSON and has no infinity."""
        parity, difference = found.parity, found.parity.max_abs_difference
        return cls(
            where=found.where,
            max_abs_difference=difference if math.isfinite(difference) else None,
            agreement=parity.agreement,
            max_probability_shift=parity.max_probability_shift,
            cosine=parity.cosine(tolerance.embeddings),
            gates=gate_values(parity.figures, tolerance.gates),
        )


class ArtifactResult(StrictModel):
    """The verification result of one artifact."""

    artifact: str
    """Name of the artifact."""
    outcome: Outcome
    reason: str = ""
    """Reason for a failure, or for not running the artifact."""
    tolerance: Tolerance
    replays: tuple[ReplayResult, ...] = ()
    repeats: bool | None = None
    """True if two runs on the same rows gave identical bits; None if that was not tested."""
    metrics: dict[str, float] = Field(default={})
    """Task metrics over the test split, if they were measured."""
    latency_ms: dict[int, float] = Field(default={})
    """Milliseconds of one run, by batch size."""
    departs_at: str = ""
    """Place in the model of the first divergence from the checkpoint, if searched for and found."""

    def worst(self) -> tuple[float | None, float | None]:
        """Returns the largest difference (None if one is missing) and the lowest agreement."""
        differences = [replay.max_abs_difference for replay in self.replays]
        numbers = [difference for difference in differences if difference is not None]
        largest = max(numbers) if numbers and len(numbers) == len(differences) else None
        return largest, min((replay.agreement for replay in self.replays), default=None)

    def worst_gates(self) -> GateValues:
        """Returns the worst figure of every gate."""
        return worst_values([replay.gates for replay in self.replays])


class Certificate(StrictModel):
    """The verification results of every artifact of one version in one environment."""

    schema_version: Literal[1] = SCHEMA_VERSION
    model: str
    version: int = Field(ge=1)
    manifest_sha256: Sha256
    """Digest of the stored manifest; it identifies the version that the figures belong to."""
    flambeau: str
    """Version of flambeau that wrote the certificate."""
    made_at: datetime
    environment: Environment
    artifacts: tuple[ArtifactResult, ...]

    @property
    def holds(self) -> bool:
        """True if no artifact failed and at least one passed."""
        outcomes = {result.outcome for result in self.artifacts}
        return "failed" not in outcomes and "passed" in outcomes

    def to_json(self) -> bytes:
        """Returns stable, readable JSON: the same certificate always gives the same bytes."""
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()


def parse_certificate(data: bytes, where: str) -> Certificate:
    """Reads a certificate.

    Args:
        data: the document's bytes.
        where: its source, for messages.

    Raises:
        CertificateError: it is not JSON, violates the schema, is from a newer flambeau, or exceeds
            the limits `LARGE`.
    """
    try:
        document: Any = parse_document(data, where, LARGE)
    except DocumentError as error:
        raise CertificateError(f"{error}; run flambeau verify again") from error
    schema = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise CertificateError(
            f"{where} has schema_version {schema}, written by a newer flambeau; "
            f"this one reads up to {SCHEMA_VERSION}, so upgrade it"
        )
    try:
        return Certificate.model_validate(document)
    except ValidationError as error:
        raise CertificateError(f"{where}: {explain(error, Certificate)}") from error


def certificate_path(manifest: Manifest, environment: str) -> str:
    """Returns the path of an environment's certificate in the store.

    Args:
        manifest: manifest of the version.
        environment: digest of the environment.
    """
    return f"{certificates_folder(manifest)}{environment}.json"


def certificates_folder(manifest: Manifest) -> str:
    """Returns the folder of a version's certificates, beside the version, which is immutable."""
    return f"{manifest.model}/certificates/{manifest.version}/"
