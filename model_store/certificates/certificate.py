"""A certificate: what became of every artifact of a version on one kind of machine. Pure rules.

A version is proven where it is published; another torch, driver or processor computes something
else, so each environment has a certificate of its own. It tells people: nothing is served, or
refused, because of one, for every load replays the golden rows anyway.
"""

import hashlib
import json
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationError

from model_store.document import LARGE, parse_document
from model_store.errors import CertificateError, DocumentError
from model_store.manifest import Manifest, Sha256
from model_store.strict import StrictModel, explain
from model_store.tolerance import Tolerance

SCHEMA_VERSION: Literal[1] = 1
"""The newest schema of certificates that this program reads, and the one it writes."""
DIGEST_CHARACTERS = 16
"""Of an environment's digest, in names of files and in tables."""

Outcome = Literal["passed", "failed", "not run"]


class Environment(StrictModel):
    """What decides what an artifact computes and how fast. Machines alike in all of it are one."""

    machine: str
    """Kind of processor and system, such as `x86_64 Linux`."""
    cpu_model: str
    """As the processor calls itself."""
    cpu_features: tuple[str, ...]
    """As `model_store.host.cpu_features` names them."""
    device: str
    """`cpu`, or `cuda` for any of the machine's GPUs."""
    device_name: str = ""
    """What the GPU calls itself; empty for the CPU."""
    driver: str = ""
    """Version of the GPU's driver; empty for the CPU."""
    threads: int
    """CPU threads of one run."""
    python: str
    libraries: dict[str, str]
    """Versions of the runtimes, by the name PyPI knows them by."""

    def digest(self) -> str:
        """The name of the environment: sha256 of all of this, shortened."""
        data = json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        return hashlib.sha256(data).hexdigest()[:DIGEST_CHARACTERS]

    def summary(self) -> str:
        """One line: the device, its threads and the runtimes."""
        device = self.device_name or self.cpu_model
        driver = [f"driver {self.driver}"] if self.driver else []
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        libraries = [f"{name} {version}" for name, version in sorted(self.libraries.items())]
        return ", ".join([device, *driver, threads, f"python {self.python}", *libraries])


class ReplayResult(StrictModel):
    """One comparison with what the checkpoint gave."""

    where: str
    """On which rows, and how many at once."""
    max_abs_difference: float | None
    """None where a shape differs, or a number is missing."""
    agreement: float
    max_probability_shift: float
    cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """Least likeness of any embedding; None where the version has none."""


class ArtifactResult(StrictModel):
    """What became of one artifact."""

    artifact: str
    """Its name."""
    outcome: Outcome
    reason: str = ""
    """Why it failed, or was not run."""
    tolerance: Tolerance
    replays: tuple[ReplayResult, ...] = ()
    repeats: bool | None = None
    """Whether the same rows gave the same bits twice; None if that was not tried."""
    metrics: dict[str, float] = Field(default={})
    """Over the test split, where it was judged by that."""
    latency_ms: dict[int, float] = Field(default={})
    """Milliseconds of one run, by batch size."""
    departs_at: str = ""
    """Where in the model it departs from the checkpoint, if that was looked for and found."""

    def worst(self) -> tuple[float | None, float | None]:
        """The largest difference, None if it is no number, and the lowest agreement of all."""
        differences = [replay.max_abs_difference for replay in self.replays]
        numbers = [difference for difference in differences if difference is not None]
        largest = max(numbers) if numbers and len(numbers) == len(differences) else None
        return largest, min((replay.agreement for replay in self.replays), default=None)


class Certificate(StrictModel):
    """What became of every artifact of one version in one environment."""

    schema_version: Literal[1] = SCHEMA_VERSION
    model: str
    version: int = Field(ge=1)
    manifest_sha256: Sha256
    """Of the manifest as it is stored: whose figures these are."""
    flambeau: str
    """Version of the program that made it."""
    made_at: datetime
    environment: Environment
    artifacts: tuple[ArtifactResult, ...]

    @property
    def holds(self) -> bool:
        """Whether no artifact failed, and at least one was run and passed."""
        outcomes = {result.outcome for result in self.artifacts}
        return "failed" not in outcomes and "passed" in outcomes

    def to_json(self) -> bytes:
        """Stable, readable JSON: the same certificate always gives the same bytes."""
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()


def parse_certificate(data: bytes, where: str) -> Certificate:
    """Reads a certificate.

    Args:
        data: the document's bytes.
        where: where it is from, for messages.

    Raises:
        CertificateError: it is not JSON, breaks the schema, is from a newer flambeau, or is more
            than is read of one.
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
    """Where the certificate of an environment lies in the store of a version.

    Args:
        manifest: of the version.
        environment: its digest.
    """
    return f"{certificates_folder(manifest)}{environment}.json"


def certificates_folder(manifest: Manifest) -> str:
    """The folder of a version's certificates: beside the version, which never changes."""
    return f"{manifest.model}/certificates/{manifest.version}/"
