"""Reads a pipeline from YAML or a mapping.

In: a file or a mapping, and the store of its parts. Out: the graph, each model with a range.

Rule: a model without a version, or with an alias, gets the range of the version that this names now
(`detector` becomes `detector@^1`): an alias may move to a version of another signature later.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flambeau.protocol.strict import explain
from model_store.errors import StoreError
from model_store.pipelines.graph import Pipeline, parse_part
from model_store.semver.semver import parse_semver
from model_store.store import ModelStore
from model_store.version_address import find_version
from model_store.yaml_text import YamlError, read_yaml
from training.errors import RecipeError

MAX_BYTES = 2**20
"""Largest file of a pipeline."""


def read_pipeline(source: Path | Mapping[str, Any], store: ModelStore) -> Pipeline:
    """Reads a graph.

    Args:
        source: a YAML file, or its document.
        store: the store that has the models.

    Raises:
        RecipeError: the file cannot be read, or breaks a rule of graphs.
        StoreError: a model that is named without a range is not in the store.
    """
    where = "the pipeline" if isinstance(source, Mapping) else str(source)
    document = source if isinstance(source, Mapping) else _document(source)
    try:
        return Pipeline.model_validate(_with_ranges(document, store))
    except ValidationError as error:
        raise RecipeError(f"{where}: {explain(error, Pipeline)}") from error


def _document(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RecipeError(f"{path} is larger than {MAX_BYTES:,} bytes, so it is no pipeline")
        document = read_yaml(path.read_bytes())
    except (OSError, YamlError) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, Mapping):
        raise RecipeError(f"{path} is no pipeline; write steps: and outputs:")
    return document


def _with_ranges(document: Mapping[str, Any], store: ModelStore) -> dict[str, Any]:
    """Returns the document with a range for each model that has none."""
    found = dict(document)
    steps = found.get("steps")
    if isinstance(steps, list | tuple):
        found["steps"] = [_with_range(step, store) for step in steps]
    return found


def _with_range(step: object, store: ModelStore) -> object:
    if not isinstance(step, Mapping) or not isinstance(model := step.get("model"), str):
        return step  # the validation says so
    try:
        parse_part(model)
    except ValueError:
        try:
            manifest = find_version(store, model)
        except StoreError as error:
            raise type(error)(f"step '{step.get('name')}' names {model}: {error}") from error
        semver = parse_semver(manifest.semver or "")
        wanted = manifest.version if semver is None else f"^{semver.major}"
        return {**step, "model": f"{manifest.model}@{wanted}"}
    return step
