"""The manifest: everything that is known about one version. Pure rules, no I/O.

A version is immutable; its manifest names every file with its digest, and is written last, so a
version without a manifest does not exist.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from model_store.document import LARGE, parse_document
from model_store.errors import (
    BadNameError,
    DocumentError,
    ManifestError,
    ManifestFromFutureError,
)
from model_store.metric import MeasuredMetric
from model_store.semver import SEMVER_PATTERN, SemanticVersion
from model_store.signature import Signature, TensorSpec
from model_store.slo import Slo
from model_store.strict import StrictModel, explain
from model_store.tolerance import Tolerance

SCHEMA_VERSION: Literal[1] = 1
"""The newest manifest schema this program reads and the one it writes."""

CODE_KINDS = frozenset({"torchscript", "pt2", "aoti"})
"""Kinds that can run code while they load: from the local store, or signed by a trusted key."""

MANIFEST = "manifest.json"
CLAIM = "claim.json"
SIGNATURE = "model.sig"
"""The files of a version that the store itself writes: no other file may have their name."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Semver = Annotated[str, Field(pattern=SEMVER_PATTERN)]
ArtifactKind = Literal["torchscript", "onnx", "pt2", "aoti", "openvino"]
Precision = Literal["fp32", "bf16", "fp16", "int8"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_name(name: str) -> bool:
    """Whether something may have this name, which is one part of a path."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str, what: str = "model name") -> str:
    """Returns the name if it can safely be one part of a path.

    Raises:
        BadNameError: empty, too long, or characters other than letters, digits, `.`, `_`, `-`.
    """
    if not is_name(name):
        raise BadNameError(
            f"{what} {name!r} is not allowed; use 1 to 128 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    return name


class FileEntry(StrictModel):
    """One file of a version, and what its bytes must be."""

    file: str
    sha256: Sha256
    size_bytes: int = Field(ge=0)

    @field_validator("file")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if value in (MANIFEST, CLAIM, SIGNATURE):
            raise ValueError("the store writes this file itself; choose another name")
        try:
            return check_name(value, "file name")
        except BadNameError as error:
            raise ValueError(str(error)) from error


class Verification(StrictModel):
    """What was measured when an artifact replayed the golden inputs against the checkpoint."""

    max_abs_difference: float = Field(ge=0)
    agreement: float = Field(ge=0, le=1)
    max_probability_shift: float = Field(default=0.0, ge=0, le=1)
    cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """Least likeness of any embedding; None where the model has none."""
    metrics: dict[str, float]
    """Task metrics over the test split, such as `accuracy` (0 to 1)."""
    # Left out where there is none: what was published before reads as it always did.
    judged_by: MeasuredMetric | None = Field(default=None, exclude_if=lambda metric: metric is None)
    """The one of them that the artifact is judged by, with its interval and direction; None in
    versions that are older than this figure, which are judged by accuracy."""
    tolerance: Tolerance
    """What the artifact had to keep, here and at every load."""


class MadeWith(StrictModel):
    """What an artifact was made with, and so may ask for."""

    libraries: dict[str, str] = Field(default={})
    """Versions of the libraries that wrote it and ran it, by the name PyPI knows them by."""
    cpu_features: tuple[str, ...] = ()
    """Of the processor it was made on, as `host/cpu_features.py` names them; compiled kinds run
    only where all of them are."""
    device: Literal["cpu", "cuda"] = "cpu"
    """What it was made for, where the kind is for one device only."""


class Artifact(StrictModel):
    """One way to run the model, proven equal to the checkpoint."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """Unique in the version; what `--artifact` takes: `onnx`, `onnx-int8`, `torchscript`."""
    kind: ArtifactKind
    precision: Precision
    file: FileEntry
    weights: FileEntry | None = None
    """The second file of kinds that have two: OpenVINO's `.bin` beside its `.xml`."""
    made_with: MadeWith = MadeWith()
    verification: Verification
    latency_ms: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]]
    """Median milliseconds of one run, by batch size, on the machine that published."""
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    """What a process with its libraries grew by at most to open it and run all golden rows at once,
    on the machine that published; None in versions that are older than this figure."""

    def all_files(self) -> list[FileEntry]:
        """The file, and its weights if they lie beside it."""
        return [self.file] if self.weights is None else [self.file, self.weights]

    def speed_key(self) -> tuple[float, str]:
        """See the function `speed_key`."""
        return speed_key(self.name, self.latency_ms)


def speed_key(name: str, latency_ms: Mapping[int, float]) -> tuple[float, str]:
    """Sorts artifacts fastest first: milliseconds a row at the best measured batch size.

    Args:
        name: of the artifact, for those that are equally fast.
        latency_ms: milliseconds of one run, by batch size.
    """
    return min((ms / rows for rows, ms in latency_ms.items()), default=float("inf")), name


class Golden(StrictModel):
    """Inputs and the checkpoint's own outputs, replayed at every load.

    The safetensors file holds tensors `input.NAME` and `output.NAME`, each [rows, ...].
    """

    file: FileEntry
    rows: int = Field(ge=1)


class PythonStep(StrictModel):
    """Code that turns a version's raw inputs into those of its artifacts; see `python_step.py`.

    With one, the version loads as kinds that are code do.
    """

    file: FileEntry
    """Its one file of Python."""
    name: str
    """Of the class in it."""
    args: dict[str, JsonValue]
    """What the class is called with."""
    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    """What it gives: the artifacts' inputs, in order. The signature has what it takes."""


class DataFile(StrictModel):
    """A file that the rows were read from, or a folder of them."""

    path: str
    """As the recipe names it."""
    sha256: Sha256
    """Of the file; of a folder, that of the lines `SHA256  PATH` of its files, as `sha256sum`
    writes them, in the order of paths."""
    size_bytes: int = Field(ge=0)
    files: int | None = Field(default=None, ge=0, exclude_if=lambda files: files is None)
    """How many files a folder has; None for a file."""


class DataOrigin(StrictModel):
    """Where the rows came from."""

    source: str
    """What the recipe names: `csv`, `digits`, ..., or a target."""
    files: tuple[DataFile, ...] = ()


class Parent(StrictModel):
    """The version whose weights another began with."""

    model: str
    version: int = Field(ge=1)
    checkpoint_sha256: Sha256
    """Of the file its weights were read from."""
    semver: Semver | None = Field(default=None, exclude_if=lambda semver: semver is None)
    """Its semantic version, if it has one."""

    @property
    def words(self) -> str:
        """The version as recipes name it, and its semantic version."""
        return f"{self.model}@{version_text(self.version, self.semver)}"


def version_text(version: int, semver: str | None) -> str:
    """A version's number, and its semantic version behind it if it has one: `4 (1.3.0)`."""
    return f"{version}" if semver is None else f"{version} ({semver})"


class Lineage(StrictModel):
    """Where the version came from."""

    recipe_sha256: Sha256
    data_sha256: Sha256
    # Left out where nobody noted it: what was published before reads as it always did.
    data: DataOrigin | None = Field(default=None, exclude_if=lambda data: data is None)
    git_commit: str | None
    library_versions: dict[str, str]
    metrics: dict[str, float]
    """The checkpoint's own metrics, such as `test/accuracy`."""
    network_sha256: Sha256 | None = Field(default=None, exclude_if=lambda digest: digest is None)
    """Of the parts of the recipe that make the network out of inputs and weights: two versions of
    one digest and one checkpoint answer alike, unless code that they name has changed."""
    parent: Parent | None = Field(default=None, exclude_if=lambda parent: parent is None)
    """The version it began with; None where it began anew."""


class Draft(StrictModel):
    """A version before it has a number: what training hands to `ModelStore.publish`."""

    model: str
    signature: Signature
    artifacts: tuple[Artifact, ...] = Field(min_length=1)
    golden: Golden
    lineage: Lineage
    # Left out where there is none: what was published before reads as it always did.
    python_step: PythonStep | None = Field(default=None, exclude_if=lambda step: step is None)
    """What runs on the raw inputs first; None where the artifacts take them as they come."""
    slo: Slo | None = Field(default=None, exclude_if=lambda slo: slo is None)
    """What callers may count on; None for the usual (`model_store.slo.DEFAULT_SLO`)."""
    files: tuple[FileEntry, ...]
    """Every other file of the version: report, recipe, checkpoint, config.pbtxt."""

    @field_validator("model")
    @classmethod
    def _model_name(cls, value: str) -> str:
        try:
            return check_name(value)
        except BadNameError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _unique_names(self) -> "Draft":
        names = [artifact.name for artifact in self.artifacts]
        files = [entry.file for entry in self.all_files()]
        for values, what in ((names, "an artifact"), (files, "a file")):
            if len(set(values)) != len(values):
                raise ValueError(f"{what} name occurs twice in {values}")
        return self

    def all_files(self) -> list[FileEntry]:
        """Every file of the version except the manifest itself."""
        of_artifacts = [entry for a in self.artifacts for entry in a.all_files()]
        of_step = [] if self.python_step is None else [self.python_step.file]
        return [*of_artifacts, self.golden.file, *of_step, *self.files]

    def artifact_inputs(self) -> tuple[TensorSpec, ...]:
        """What artifacts take: the signature's inputs, or what the Python step makes of them."""
        return self.signature.inputs if self.python_step is None else self.python_step.inputs

    def file(self, name: str) -> FileEntry | None:
        """The entry of one file, or None."""
        return next((entry for entry in self.all_files() if entry.file == name), None)

    def artifacts_by_speed(self) -> list[Artifact]:
        """Fastest first, as measured when the version was published."""
        return sorted(self.artifacts, key=Artifact.speed_key)

    def seal(
        self, version: int, created_at: datetime, semver: SemanticVersion | None = None
    ) -> "Manifest":
        """The manifest of this draft under the numbers it was given."""
        fields = {name: getattr(self, name) for name in Draft.model_fields}
        text = None if semver is None else str(semver)
        return Manifest(version=version, created_at=created_at, semver=text, **fields)


class Manifest(Draft):
    """One version of one model."""

    schema_version: Literal[1] = SCHEMA_VERSION
    version: int = Field(ge=1)
    created_at: datetime
    # Left out where there is none: what was published before reads as it always did.
    semver: Semver | None = Field(default=None, exclude_if=lambda semver: semver is None)
    """Its semantic version: what callers may expect of it, beside the one before."""

    @property
    def version_text(self) -> str:
        """See the function `version_text`."""
        return version_text(self.version, self.semver)

    def to_json(self) -> bytes:
        """Stable, readable JSON: the same manifest always gives the same bytes."""
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()

    def digests(self, sealed: bytes) -> dict[str, str]:
        """The sha256 of every file that a signature covers: those named here, and the manifest.

        Args:
            sealed: the manifest's bytes as they are stored, perhaps by an older flambeau.
        """
        files = {entry.file: entry.sha256 for entry in self.all_files()}
        return files | {MANIFEST: hashlib.sha256(sealed).hexdigest()}


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Reads a manifest.

    Args:
        data: the file's bytes.
        where: its path, for messages.

    Raises:
        ManifestFromFutureError: its schema is newer than `SCHEMA_VERSION`.
        ManifestError: it is not JSON, breaks the schema, or is more than is read of one.
    """
    try:
        document: Any = parse_document(data, where, LARGE)
    except DocumentError as error:
        raise ManifestError(f"{error}; publish the version again") from error
    schema = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise ManifestFromFutureError(
            f"{where} has schema_version {schema}, written by a newer flambeau; "
            f"this one reads up to {SCHEMA_VERSION}, so upgrade it"
        )
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise ManifestError(f"{where}: {explain(error, Manifest)}") from error
