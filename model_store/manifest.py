"""The manifest: the complete description of one version. Pure rules, no I/O.

A version is immutable. Its manifest lists every file with its digest and is written last, so a
version without a manifest does not exist.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from flambeau.protocol.names import name_problem
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.strict import StrictModel, explain
from model_store.artifact_kinds import STORED_KINDS, ArtifactKind
from model_store.document import LARGE, parse_document
from model_store.errors import (
    BadNameError,
    DocumentError,
    ManifestError,
    ManifestFromFutureError,
)
from model_store.gate_figures import GateValues
from model_store.metric import MeasuredMetric
from model_store.pipelines.graph import Pipeline
from model_store.semver.semver import SEMVER_PATTERN, SemanticVersion
from model_store.slo import Slo
from model_store.tolerance import Tolerance

SCHEMA_VERSION: Literal[1] = 1
"""The newest manifest schema this program reads and the one it writes."""

MANIFEST = "manifest.json"
CLAIM = "claim.json"
SIGNATURE = "model.sig"
"""Files of a version that the store itself writes; their names are reserved."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Semver = Annotated[str, Field(pattern=SEMVER_PATTERN)]
Precision = Literal["fp32", "bf16", "fp16", "int8"]

Metadata = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=128)], Annotated[str, Field(max_length=4096)]
    ],
    Field(max_length=64),
]
"""Text by key, which the store keeps and does not interpret."""


def check_name(name: str, what: str = "model name") -> str:
    """Returns the name if it is safe as one segment of a path.

    Raises:
        BadNameError: empty, too long, or characters other than letters, digits, `.`, `_`, `-`.
    """
    if (problem := name_problem(name, what)) is not None:
        raise BadNameError(problem)
    return name


def _named(what: str) -> AfterValidator:
    """Returns the validator of a name that is safe as one segment of a path."""

    def check(value: str) -> str:
        if (problem := name_problem(value, what)) is not None:
            raise ValueError(problem)
        return value

    return AfterValidator(check)


ModelName = Annotated[str, _named("model name")]
FileName = Annotated[str, _named("file name")]


class FileEntry(StrictModel):
    """One file of a version, with its digest and size."""

    file: FileName
    sha256: Sha256
    size_bytes: int = Field(ge=0)

    @field_validator("file")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if value in (MANIFEST, CLAIM, SIGNATURE):
            raise ValueError("the store writes this file itself; choose another name")
        return value


class Verification(StrictModel):
    """Measurements of an artifact's replay of the golden rows against the checkpoint."""

    max_abs_difference: float = Field(ge=0)
    agreement: float = Field(ge=0, le=1)
    max_probability_shift: float = Field(default=0.0, ge=0, le=1)
    cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """Lowest `Gate.cosine` of any embedding; None if the model has none."""
    gates: GateValues = Field(default={}, exclude_if=lambda gates: not gates)
    """Figures of the outputs that have gates."""
    metrics: dict[str, float]
    """Task metrics over the test split, such as `accuracy` (0 to 1)."""
    # Omitted from JSON if None, so that older manifests serialize as before.
    judged_by: MeasuredMetric | None = Field(default=None, exclude_if=lambda metric: metric is None)
    """The metric that the artifact is judged by, with its interval and direction; None in versions
    that predate this field, which are judged by accuracy, and in those without labels."""
    tolerance: Tolerance
    """Limits that the artifact must keep at export and at every load."""


class MadeWith(StrictModel):
    """Environment that an artifact was made in, and that it may require."""

    libraries: dict[str, str] = Field(default={})
    """Versions of the libraries that wrote it and ran it, by their names on PyPI."""
    cpu_features: tuple[str, ...] = ()
    """Features of the processor it was made on, in the names of `host/cpu_features.py`; compiled
    kinds run only on processors with all of them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device it was made for, if the kind is for one device only."""


PythonProcess = Literal["own", "shared"]


class ModelFolder(StrictModel):
    """A folder of this machine that a Python model reads, and how its caller wants it to be run.

    Such a version is served here only: see `archives/archive_version.py`.
    """

    size_bytes: int = Field(ge=0)
    """Total size of its files."""
    instances: int = Field(ge=1, le=64)
    """Processes that run it, in place of the server's setting."""
    execution_timeout_s: float = Field(gt=0, le=86_400)
    """Timeout of one batch, in place of the server's setting."""
    open_time_limit_s: float = Field(default=120.0, gt=0, le=86_400)
    """Time limit of opening it, in place of the server's setting."""


class PythonModel(StrictModel):
    """Class of a Python model, and the files beside its source; see `python_models/`."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
    """Name of the class in the artifact's file."""
    args: dict[str, JsonValue] = Field(default={})
    """Settings that the class reads from `context.args`."""
    files: tuple[FileEntry, ...] = Field(default=(), max_length=256)
    """Its side files: tokenizers, vocabularies, networks, further modules."""
    process: PythonProcess = "own"
    """Process that runs it unless the server isolates every model: its own, or the server's."""
    # Omitted from JSON if None, so that older manifests serialize as before.
    folder: ModelFolder | None = Field(default=None, exclude_if=lambda folder: folder is None)
    """Folder that it reads besides; its golden rows then say that it is ready, and no more."""

    @model_validator(mode="after")
    def _modules_need_a_process(self) -> "PythonModel":
        modules = [entry.file for entry in self.files if entry.file.endswith(".py")]
        if modules and self.process == "shared":
            raise ValueError(
                f"the side file '{modules[0]}' is a module, which only a process of its own can "
                "import without harm to other models; choose process 'own', or use one Python file"
            )
        return self


class Artifact(StrictModel):
    """One executable form of the model, verified against the checkpoint."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """Unique in the version; the value of `--artifact`: `onnx`, `onnx-int8`, `torchscript`."""
    kind: ArtifactKind
    precision: Precision
    file: FileEntry
    weights: FileEntry | None = None
    """The second file of kinds that have two: OpenVINO's `.bin` beside its `.xml`."""
    # Omitted from JSON if None, so that older manifests serialize as before.
    python: PythonModel | None = Field(default=None, exclude_if=lambda model: model is None)
    """Class and side files of kind `python`; None for other kinds."""
    made_with: MadeWith = MadeWith()
    verification: Verification
    latency_ms: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]]
    """Median milliseconds of one run, by batch size, on the machine that published."""
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    """Peak memory growth of a process, its libraries loaded, to open it and run all golden rows in
    one batch, on the machine that published; None in versions that predate this field."""

    @property
    def is_code(self) -> bool:
        """True if its kind can run code at load."""
        return STORED_KINDS[self.kind].is_code

    @model_validator(mode="after")
    def _python_has_a_class(self) -> "Artifact":
        if STORED_KINDS[self.kind].has_class != (self.python is not None):
            what = "lacks" if self.python is None else "must not have"
            raise ValueError(
                f"an artifact of kind {self.kind} {what} 'python', which names a class"
            )
        return self

    def all_files(self) -> list[FileEntry]:
        """Returns the file, the file of its weights if there is one, and the side files."""
        weights = [] if self.weights is None else [self.weights]
        return [self.file, *weights, *(() if self.python is None else self.python.files)]

    @property
    def folder(self) -> ModelFolder | None:
        """The folder that a Python model reads; None for every other artifact."""
        return None if self.python is None else self.python.folder

    @property
    def size_bytes(self) -> int:
        """Total size of its files, and of its folder."""
        own = 0 if self.folder is None else self.folder.size_bytes
        return own + sum(entry.size_bytes for entry in self.all_files())

    def check_file(self, data: bytes) -> None:
        """Checks the bytes of its file before a runtime reads them.

        Raises:
            StoreError: it refers to more than its own bytes, or inflates beyond the limit.
        """
        STORED_KINDS[self.kind].check(data, self.file.file)

    def speed_key(self) -> tuple[float, str]:
        """Returns the sort key of the function `speed_key`."""
        return speed_key(self.name, self.latency_ms)


def speed_key(name: str, latency_ms: Mapping[int, float]) -> tuple[float, str]:
    """Returns a sort key, fastest first: milliseconds a row at the best measured batch size.

    Args:
        name: name of the artifact, to break ties.
        latency_ms: milliseconds of one run, by batch size.
    """
    return min((ms / rows for rows, ms in latency_ms.items()), default=float("inf")), name


class Golden(StrictModel):
    """The file of golden rows: inputs and the checkpoint's own outputs, replayed at every load.

    The safetensors file holds tensors `input.NAME` and `output.NAME`, each [rows, ...].
    """

    file: FileEntry
    rows: int = Field(ge=1)


class PythonStep(StrictModel):
    """Code that turns a version's raw inputs into those of its artifacts; see `python_step.py`.

    A version with a step is loaded under the rules of kinds that are code.
    """

    file: FileEntry
    """Its one Python file."""
    name: str
    """Name of the class in the file."""
    args: dict[str, JsonValue]
    """Keyword arguments of the class."""
    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    """Outputs of the step: the artifacts' inputs, in order. Its own inputs are the signature's."""


class PublishedPipeline(StrictModel):
    """The graph of a version that runs other models' versions and has no artifacts of its own."""

    graph: Pipeline
    recorded_with: dict[str, str]
    """The version that recorded the golden outputs, by the text that names the model: a semantic
    version, or the number of one without."""
    tolerance: Tolerance
    """Limits of the difference from the golden outputs, with versions that answer as those did."""

    @model_validator(mode="after")
    def _all_recorded(self) -> "PublishedPipeline":
        for text in self.graph.models():
            if text not in self.recorded_with:
                raise ValueError(f"recorded_with lacks '{text}'; publish the pipeline again")
        return self


class DataFile(StrictModel):
    """A file that the rows were read from, or a folder of them."""

    path: str
    """Path in the recipe's spelling."""
    sha256: Sha256
    """Digest of the file; for a folder, of the lines `SHA256  PATH` of its files, in the format of
    `sha256sum`, in the order of paths."""
    size_bytes: int = Field(ge=0)
    files: int | None = Field(default=None, ge=0, exclude_if=lambda files: files is None)
    """Number of files in a folder; None for a file."""


class DataOrigin(StrictModel):
    """The source of the training rows."""

    source: str
    """Source in the recipe: `csv`, `digits`, ..., or a target."""
    files: tuple[DataFile, ...] = ()


class Parent(StrictModel):
    """The version whose weights initialized the training of another."""

    model: str
    version: int = Field(ge=1)
    checkpoint_sha256: Sha256
    """Digest of the file that the weights were read from."""
    semver: Semver | None = Field(default=None, exclude_if=lambda semver: semver is None)
    """Its semantic version, if it has one."""

    @property
    def words(self) -> str:
        """The version in the recipes' notation, followed by its semantic version."""
        return f"{self.model}@{version_text(self.version, self.semver)}"


def version_text(version: int, semver: str | None) -> str:
    """Returns a version's number, and its semantic version if it has one: `4 (1.3.0)`."""
    return f"{version}" if semver is None else f"{version} ({semver})"


class Lineage(StrictModel):
    """The provenance of a version: recipe, data, code, libraries and parent."""

    recipe_sha256: Sha256
    """Digest of the recipe, or of the request of an import."""
    data_sha256: Sha256
    """Digest of the rows that the version was trained on, or verified with if it was imported."""
    # Omitted from JSON if None, so that older manifests serialize as before.
    data: DataOrigin | None = Field(default=None, exclude_if=lambda data: data is None)
    imported_from: str | None = Field(default=None, exclude_if=lambda source: source is None)
    """Description of the model that was imported; None for a trained one."""
    git_commit: str | None
    library_versions: dict[str, str]
    metrics: dict[str, float]
    """The checkpoint's own metrics, such as `test/accuracy`."""
    network_sha256: Sha256 | None = Field(default=None, exclude_if=lambda digest: digest is None)
    """Digest of the recipe parts that define the network: versions with equal digests and equal
    checkpoints give equal answers, unless code that the recipe references has changed."""
    parent: Parent | None = Field(default=None, exclude_if=lambda parent: parent is None)
    """The version whose weights training started from; None if it started from scratch."""
    weights: DataFile | None = Field(default=None, exclude_if=lambda weights: weights is None)
    """File of the weights, if they were not trained by the run that published them."""


class Draft(StrictModel):
    """A version before it has a number: the input of `ModelStore.publish`."""

    model: ModelName
    signature: Signature
    artifacts: tuple[Artifact, ...]
    """At least one; none of a pipeline."""
    golden: Golden
    lineage: Lineage
    # Omitted from JSON if None, so that older manifests serialize as before.
    python_step: PythonStep | None = Field(default=None, exclude_if=lambda step: step is None)
    """The step that runs on raw inputs first; None if the artifacts take the raw inputs."""
    pipeline: PublishedPipeline | None = Field(default=None, exclude_if=lambda one: one is None)
    """The graph of a pipeline; None for a model."""
    slo: Slo | None = Field(default=None, exclude_if=lambda slo: slo is None)
    """Service level objectives; None for the default (`model_store.slo.DEFAULT_SLO`)."""
    metadata: Metadata = Field(default={}, exclude_if=lambda texts: not texts)
    """Text of the publisher, such as `{"team": "vision"}`."""
    files: tuple[FileEntry, ...]
    """Every other file of the version: report, recipe, checkpoint, config.pbtxt."""

    @model_validator(mode="after")
    def _artifacts_or_pipeline(self) -> "Draft":
        if self.pipeline is None and not self.artifacts:
            raise ValueError("'artifacts' is []: give at least 1 of them")
        if self.pipeline is not None and (self.artifacts or self.python_step is not None):
            raise ValueError(
                "a pipeline has no artifacts and no python_step of its own: publish them as a "
                "model, and name that in a step"
            )
        return self

    @model_validator(mode="after")
    def _unique_names(self) -> "Draft":
        names = [artifact.name for artifact in self.artifacts]
        files = [entry.file for entry in self.all_files()]
        for values, what in ((names, "an artifact"), (files, "a file")):
            if len(set(values)) != len(values):
                raise ValueError(f"{what} name occurs twice in {values}")
        return self

    @model_validator(mode="after")
    def _step_has_rows(self) -> "Draft":
        step = self.python_step
        if step is not None:
            specs = (*self.signature.inputs, *step.inputs, *self.signature.outputs)
            if any(spec.batch_axis != 0 or spec.optional for spec in specs):
                raise ValueError(
                    "a python step works on rows, so every tensor's batch is its first dimension "
                    "and none is optional; leave out batch_axis and optional, or the step"
                )
        return self

    def all_files(self) -> list[FileEntry]:
        """Returns every file of the version except the manifest itself."""
        of_artifacts = [entry for a in self.artifacts for entry in a.all_files()]
        of_step = [] if self.python_step is None else [self.python_step.file]
        return [*of_artifacts, self.golden.file, *of_step, *self.files]

    def artifact_inputs(self) -> tuple[TensorSpec, ...]:
        """Returns the artifacts' inputs: the signature's, or the Python step's outputs."""
        return self.signature.inputs if self.python_step is None else self.python_step.inputs

    def file(self, name: str) -> FileEntry | None:
        """Returns the entry of one file, or None."""
        return next((entry for entry in self.all_files() if entry.file == name), None)

    def artifacts_by_speed(self) -> list[Artifact]:
        """Returns the artifacts, fastest first, as measured when the version was published."""
        return sorted(self.artifacts, key=Artifact.speed_key)

    def seal(
        self, version: int, created_at: datetime, semver: SemanticVersion | None = None
    ) -> "Manifest":
        """Returns the manifest of this draft with its version numbers."""
        fields = {name: getattr(self, name) for name in Draft.model_fields}
        text = None if semver is None else str(semver)
        return Manifest(version=version, created_at=created_at, semver=text, **fields)


class Manifest(Draft):
    """One version of one model."""

    schema_version: Literal[1] = SCHEMA_VERSION
    version: int = Field(ge=1)
    created_at: datetime
    # Omitted from JSON if None, so that older manifests serialize as before.
    semver: Semver | None = Field(default=None, exclude_if=lambda semver: semver is None)
    """Its semantic version: its compatibility with the version before."""

    @property
    def version_text(self) -> str:
        """The version in the format of the function `version_text`."""
        return version_text(self.version, self.semver)

    def to_json(self) -> bytes:
        """Returns stable, readable JSON: the same manifest always gives the same bytes."""
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()

    def digests(self, sealed: bytes) -> dict[str, str]:
        """Returns the sha256 of every file that a signature covers: those listed, and the manifest.

        Args:
            sealed: the stored bytes of the manifest, perhaps written by an older flambeau.
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
        ManifestError: it is not JSON, violates the schema, or exceeds the limits `LARGE`.
    """
    try:
        document: Any = parse_document(data, where, LARGE)
    except DocumentError as error:
        raise ManifestError(f"{error}; publish the version again") from error
    schema = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise ManifestFromFutureError(
            f"{where} has schema_version {str(schema)[:20]}, written by a newer flambeau; "
            f"this one reads up to {SCHEMA_VERSION}, so upgrade it"
        )
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise ManifestError(f"{where}: {explain(error, Manifest)}") from error
