"""The request to publish a pipeline: read from the folder that a caller's process has written.

The writer is `flambeau/publishing/pipeline.py`; both sides are one release. The folder is the
caller's own, and its files are checked all the same: a wrong one is a bug that must be named.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from flambeau.protocol.strict import StrictModel, explain
from flambeau.publishing.staged_files import EXAMPLES, REQUEST
from model_store.document import LARGE, parse_document
from model_store.errors import DocumentError
from model_store.manifest import Metadata
from model_store.pointers import PRODUCTION
from model_store.semver.semver import Bump
from model_store.store import ModelStore, Sign
from training.errors import RecipeError
from training.importing.pipelines.publication import PublicationOptions, import_pipeline
from training.importing.request import read_examples


class PipelineRequest(StrictModel):
    """One pipeline to publish."""

    model: str
    """Name of the pipeline in the store."""
    store: str
    """URL of the store."""
    pipeline: dict[str, Any]
    """The graph, as in a YAML file."""
    gates: Any = None
    """Rules by which outputs match, as the caller wrote them; see `model_store.gates`."""
    alias: str | None = PRODUCTION
    """Alias that moves to the version; None for none."""
    metadata: Metadata = Field(default={})
    bump: Bump | None = None


def read_pipeline_request(folder: Path) -> PipelineRequest | None:
    """Returns the request in a folder; None if it is about a model.

    Raises:
        RecipeError: it is not valid.
    """
    where = folder / REQUEST
    try:
        document = parse_document(where.read_bytes(), str(where), LARGE)
        if not isinstance(document, dict) or "pipeline" not in document:
            return None
        return PipelineRequest.model_validate(document)
    except DocumentError as error:
        raise RecipeError(str(error)) from error
    except ValidationError as error:
        raise RecipeError(f"the request: {explain(error, PipelineRequest)}") from error


def publish_request(
    request: PipelineRequest, folder: Path, say: Callable[[str], None], sign: Sign | None
) -> dict[str, Any]:
    """Publishes a pipeline. Returns the fields of `flambeau.PublishedVersion`.

    Raises:
        TrainingError, StoreError: as `import_pipeline`.
    """
    options = PublicationOptions(
        gates=request.gates,
        bump=request.bump,
        sign=sign,
        source="a pipeline from Python",
        metadata=request.metadata,
    )
    imported = import_pipeline(
        request.pipeline,
        request.model,
        ModelStore(request.store),
        read_examples(folder / EXAMPLES, None).inputs,
        options,
        request.alias,
        say,
        folder,
    )
    return imported.summary()
