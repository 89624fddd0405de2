"""The request to import a model: read from the folder that a caller's process has written.

The writer is `flambeau/publishing/staging.py`; both sides are one release. The folder is the
caller's own, and its files are checked all the same: a wrong one is a bug that must be named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import StrictModel, explain
from flambeau.protocol.tensors import Array
from model_store.artifact_kinds import ArtifactKind
from model_store.document import LARGE, parse_document
from model_store.errors import DocumentError
from model_store.manifest import Metadata, Precision
from model_store.pointers import PRODUCTION
from model_store.semver.semver import Bump
from training.errors import DataError, RecipeError
from training.recipe.recipe import ExportLimits

REQUEST, EXAMPLES = "request.json", "examples.safetensors"


class CapturedFile(StrictModel):
    """The model in one format."""

    kind: ArtifactKind
    precision: Precision = "fp32"
    file: str
    weights_file: str | None = None


class ImportRequest(StrictModel):
    """One model to import, and what is asked of it."""

    model: str
    """Name of the model in the store."""
    store: str
    """URL of the store."""
    source: str = Field(max_length=1024)
    """Description of the model, for the lineage."""
    originals: tuple[CapturedFile, ...] = Field(min_length=1)
    """The model in each captured format, the best source first."""
    refusals: dict[str, str] = Field(default={})
    """Reason by kind in which it could not be captured."""
    signature: Signature
    artifacts: Literal["auto"] | tuple[str, ...] = "auto"
    """Artifacts to make."""
    gates: Any = None
    """Rules by which outputs match, as the caller wrote them; see `model_store.gates`."""
    metric: Literal["accuracy", "f1", "rmse"] | None = None
    """Metric of the answers, if there are targets; None to choose by their type."""
    alias: Annotated[str, Field(max_length=128)] | None = PRODUCTION
    """Alias that moves to the version; None for none."""
    metadata: Metadata = Field(default={})
    bump: Bump | None = None
    limits: ExportLimits = ExportLimits()
    """Limits of making or verifying one artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRows:
    """Example inputs of a model, with its own outputs for them."""

    inputs: dict[str, Array]
    """By name, [rows, ...]."""
    outputs: dict[str, Array] | None = None
    """By name, [rows, ...]; None if the original is yet to be run."""
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
    return request, _examples(folder / EXAMPLES, request.signature)


def _examples(path: Path, signature: Signature) -> ExampleRows:
    from safetensors.numpy import load_file

    tensors: dict[str, Array] = load_file(path)
    targets = tensors.pop("targets", None)
    parts: dict[int, dict[str, dict[str, Array]]] = {}
    for key, array in tensors.items():
        number, side, name = key.split(".", 2)
        parts.setdefault(int(number), {}).setdefault(side, {})[name] = array
    inputs, outputs = ([spec.name for spec in s] for s in (signature.inputs, signature.outputs))
    pairs = [
        (_ordered(part["input"], inputs), _ordered(part["output"], outputs))
        for _, part in sorted(parts.items())
    ]
    (given, found), *sized = pairs
    return ExampleRows(inputs=given, outputs=found, sized=sized, targets=targets)


def _ordered(arrays: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    if set(arrays) != set(names):
        raise DataError(f"the examples have {sorted(arrays)}, and the signature has {names}")
    return {name: np.ascontiguousarray(arrays[name]) for name in names}
