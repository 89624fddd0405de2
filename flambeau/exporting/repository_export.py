"""Exports the production versions of a store into a Triton repository, model by model.

In: a store, a repository. Out: what became of each model. A folder that has the production version
stays as it is, so that an interrupted export goes on where it ended, and a repeated one refreshes.

Rule: a folder that no export wrote is replaced only if told.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flambeau.exporting.errors import ExportError
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.export_version import export_version
from flambeau.exporting.triton_repository import (
    CONFIG,
    MANIFEST_DIGEST,
    artifact_for_triton,
    triton_config,
)
from model_store.errors import StoreError
from model_store.store import ModelStore
from services.inference.backends.artifact_fit import UnfitArtifactError

PRODUCTION = "production"
MAX_CONFIG_BYTES = 2**20
"""Longest configuration that is looked at; longer ones are of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """The outcome of one model."""

    model: str
    version: str = ""
    """Its production version; empty if it has none."""
    exported: Exported | None = None
    """The folder that was written; None if it was up to date, or nothing was written."""
    error: str = ""
    """Why nothing was written."""


def export_production(
    store: ModelStore, options: Mapping[str, Any], repository: Path, *, force: bool = False
) -> Iterator[ModelOutcome]:
    """Exports the production version of every model; yields the outcomes, in order of names.

    Args:
        store: the store.
        options: fields of a request beside store and version.
        repository: folder of the repository.
        force: True to replace folders that no export wrote.

    Raises:
        StoreError: the store cannot be listed.
    """
    for model, listing in sorted(store.listing().items()):
        version = ""
        try:
            pointers = store.pointers(model)
            number = None if pointers is None else pointers.aliases.get(PRODUCTION)
            if number is None or not listing.versions:
                yield ModelOutcome(model=model)
                continue
            manifest = store.manifest(model, number)
            version = manifest.version_text
            request = ExportRequest(store=store, manifest=manifest, **options)
            yield ModelOutcome(
                model=model, version=version, exported=_exported(request, repository, force)
            )
        except (ExportError, StoreError, UnfitArtifactError) as error:
            yield ModelOutcome(model=model, version=version, error=str(error))


def _exported(request: ExportRequest, repository: Path, force: bool) -> Exported | None:
    """Exports a version, unless its folder has it."""
    folder = repository / request.manifest.model
    there = _config_in(folder)
    wanted = triton_config(request, artifact_for_triton(request)).encode()
    if there == wanted and (folder / str(request.manifest.version)).is_dir():
        return None
    ours = MANIFEST_DIGEST.encode() in there
    return export_version(request, "triton", repository, replace=force or ours)


def _config_in(folder: Path) -> bytes:
    try:
        with (folder / CONFIG).open("rb") as file:
            return file.read(MAX_CONFIG_BYTES)
    except OSError:
        return b""
