"""The request to import a model: read from the folder that a caller's process has written.

The writer is `flambeau/publishing/staging.py`; both sides are one release. The folder is the
caller's own, and its files are checked all the same: a wrong one is a bug that must be named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, JsonValue, ValidationError

from flambeau.protocol.available_memory import GIB, free_bytes
from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import StrictModel, explain
from flambeau.protocol.tensors import Array, decode_bytes_elements, element_count
from flambeau.publishing.staged_files import EXAMPLES, REQUEST
from model_store.artifact_kinds import ArtifactKind
from model_store.document import LARGE, parse_document
from model_store.errors import BadNameError, DocumentError
from model_store.manifest import Metadata, Precision, PythonProcess, check_name
from model_store.pointers import PRODUCTION
from model_store.semver.semver import Bump
from training.errors import DataError, RecipeError
from training.recipe.recipe import ExportLimits

LEAST_GIB = 2.0
"""Memory of one artifact where less is free: its libraries alone need some of it."""


def _checked_name(name: str) -> str:
    try:
        return check_name(name)
    except BadNameError as error:
        raise ValueError(str(error)) from error


def limits_here() -> ExportLimits:
    """Returns limits that also keep this machine from swapping, with room for the libraries."""
    limits = ExportLimits()
    free_gib = max(free_bytes() / GIB, LEAST_GIB)
    return limits.model_copy(update={"memory_gib": min(limits.memory_gib, free_gib)})


class CapturedFile(StrictModel):
    """The model in one format."""

    kind: ArtifactKind
    precision: Precision = "fp32"
    file: str
    weights_file: str | None = None


class PythonFiles(StrictModel):
    """A Python model: its file, and those beside it."""

    file: str
    class_name: str
    args: dict[str, JsonValue] = Field(default={})
    files: tuple[str, ...] = ()
    """Names of its side files, in the folder `files`."""
    max_batch_size: int = Field(default=32, ge=1, le=65_536)
    process: PythonProcess = "own"


class ImportRequest(StrictModel):
    """One model to import, and what is asked of it."""

    model: Annotated[str, AfterValidator(_checked_name)]
    """Name of the model in the store."""
    store: str
    """URL of the store."""
    source: str = Field(max_length=1024)
    """Description of the model, for the lineage."""
    originals: tuple[CapturedFile, ...] = ()
    """The model in each captured format, the best source first; none for a Python model."""
    python: PythonFiles | None = None
    refusals: dict[str, str] = Field(default={})
    """Reason by kind in which it could not be captured."""
    notes: tuple[str, ...] = ()
    """Facts about the model that were found when it was captured, for the user."""
    signature: Signature | None = None
    """None for a Python model, which is run to learn it."""
    artifacts: Literal["auto"] | tuple[str, ...] = "auto"
    """Artifacts to make."""
    gates: Any = None
    """Rules by which outputs match, as the caller wrote them; see `model_store.gates`."""
    metric: Literal["accuracy", "f1", "rmse"] | None = None
    """Metric of the answers, if there are targets; None to choose by their type."""
    sequence: Sequences | None = None
    """Sequences of a model with state; None for requests that are independent."""
    alias: Annotated[str, Field(max_length=128)] | None = PRODUCTION
    """Alias that moves to the version; None for none."""
    metadata: Metadata = Field(default={})
    bump: Bump | None = None
    limits: ExportLimits = Field(default_factory=limits_here)
    """Limits of making or verifying one artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRows:
    """Example inputs of a model, with its own outputs for them."""

    inputs: dict[str, Array]
    """By name, [rows, ...]."""
    outputs: dict[str, Array] | None = None
    """By name, [rows, ...]; None if the original is yet to be run."""
    others: list[dict[str, Array]] = field(default_factory=list)
    """Inputs at other sizes, of an original that is yet to be run."""
    sized: list[tuple[dict[str, Array], dict[str, Array]]] = field(default_factory=list)
    """Inputs and outputs at other sizes."""
    targets: Array | None = None
    """Right answers of the rows, [rows, ...]."""
    made_up: bool = False
    """True if the rows were generated."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.inputs.values())))


def read_request(folder: Path) -> tuple[ImportRequest, ExampleRows]:
    """Reads the request in a folder.

    Raises:
        RecipeError: the request is not valid.
        DataError: the examples are not.
    """
    where = folder / REQUEST
    try:
        document = parse_document(where.read_bytes(), str(where), LARGE)
        request = ImportRequest.model_validate(document)
    except DocumentError as error:
        raise RecipeError(str(error)) from error
    except ValidationError as error:
        raise RecipeError(f"the request: {explain(error, ImportRequest)}") from error
    return request, read_examples(folder / EXAMPLES, request.signature)


def read_examples(path: Path, signature: Signature | None) -> ExampleRows:
    """Reads example rows, with their outputs if there is a signature.

    Raises:
        DataError: their names are not those of the signature.
    """
    from safetensors.numpy import load_file

    tensors: dict[str, Array] = load_file(path)
    targets = tensors.pop("targets", None)
    parts: dict[int, dict[str, dict[str, Array]]] = {}
    for key, array in tensors.items():
        number, side, name = key.split(".", 2)
        parts.setdefault(int(number), {}).setdefault(side, {})[name] = array
    inputs = [_decoded(part, "input") for _, part in sorted(parts.items())]
    if signature is None:  # the outputs are recorded later
        return ExampleRows(inputs=inputs[0], others=inputs[1:], targets=targets)
    outputs = [_decoded(part, "output") for _, part in sorted(parts.items())]
    names = [[spec.name for spec in specs] for specs in (signature.inputs, signature.outputs)]
    pairs = [
        (_ordered(given, names[0]), _ordered(found, names[1]))
        for given, found in zip(inputs, outputs, strict=True)
    ]
    (given, found), *sized = pairs
    return ExampleRows(inputs=given, outputs=found, sized=sized, targets=targets)


def _decoded(part: Mapping[str, Mapping[str, Array]], side: str) -> dict[str, Array]:
    """Returns the arrays of one side, with text as objects."""
    arrays = dict(part.get(side, {}))
    shapes = part.get(f"{side}-shape", {})
    for name, data in part.get(f"{side}-bytes", {}).items():
        shape = [int(size) for size in shapes[name]]
        arrays[name] = decode_bytes_elements(data.tobytes(), element_count(shape)).reshape(shape)
    return arrays


def _ordered(arrays: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    if set(arrays) != set(names):
        raise DataError(f"the examples have {sorted(arrays)}, and the signature has {names}")
    return {name: np.ascontiguousarray(arrays[name]) for name in names}
