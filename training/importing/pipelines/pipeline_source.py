"""Reads a pipeline from YAML or a mapping.

In: a file or a mapping, and the store of its parts. Out: the graph, each model with a range, and
the code of its own steps.

Rule: a model without a version, or with an alias, gets the range of the version that this names now
(`detector` becomes `detector@^1`): an alias may move to a version of another signature later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError

from flambeau.protocol.strict import StrictModel, explain
from model_store.errors import StoreError
from model_store.pipelines.graph import Pipeline, parse_part
from model_store.semver.semver import parse_semver
from model_store.store import ModelStore
from model_store.version_address import find_version
from model_store.yaml_text import YamlError, read_yaml
from training.errors import RecipeError

MAX_BYTES = 2**20
"""Largest file of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCode:
    """The code of one step."""

    file: Path
    class_name: str
    args: Mapping[str, Any]
    files: Mapping[str, Path]
    """Paths of its side files, by the names that it uses."""


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """A pipeline to publish."""

    graph: Pipeline
    """A step of own code has the model `own_model`."""
    own: Mapping[str, OwnCode]
    """Code of the pipeline's own steps, by step."""


def own_model(name: str, step: str, version: int = 1) -> str:
    """Returns the model of a step of own code: `reader.split@1`.

    Args:
        name: name of the pipeline; empty if it is not known yet.
        step: the step.
        version: version of the model.
    """
    return f"{name}.{step}@{version}"


class _Code(StrictModel):
    """The keys of a step with code."""

    python: str
    """`FILE.py:Class`; files are beside the pipeline's."""
    args: dict[str, JsonValue] = Field(default={})
    files: tuple[str, ...] = ()


def read_pipeline(
    source: Path | Mapping[str, Any], store: ModelStore, folder: Path = Path()
) -> PipelineSource:
    """Reads a graph.

    Args:
        source: a YAML file, or its document.
        store: the store that has the models.
        folder: folder of the files that a document names; a YAML file names those beside it.

    Raises:
        RecipeError: the file cannot be read, or breaks a rule of graphs.
        StoreError: a model that is named without a range is not in the store.
    """
    where = "the pipeline" if isinstance(source, Mapping) else str(source)
    document = dict(source if isinstance(source, Mapping) else _document(source))
    folder = folder if isinstance(source, Mapping) else source.parent
    steps, own = document.get("steps"), {}
    if isinstance(steps, list | tuple):
        known: list[object] = []
        document["steps"] = known
        for step in steps:
            if isinstance(step, Mapping) and "python" in step:
                own[str(step.get("name"))] = _code(step, folder, where)
                known.append(_without_code(step))
            else:
                known.append(_with_range(step, store))
    try:
        return PipelineSource(Pipeline.model_validate(document), own)
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


def _code(step: Mapping[str, Any], folder: Path, where: str) -> OwnCode:
    """Returns the code of a step.

    Raises:
        RecipeError: it names a model, too, or no class.
    """
    what = f"{where}: step '{step.get('name')}'"
    if "model" in step:
        raise RecipeError(f"{what} has a model and python; keep one of the two")
    try:
        keys = {key: step[key] for key in _Code.model_fields if key in step}
        code = _Code.model_validate(keys)
    except ValidationError as error:
        raise RecipeError(f"{what}: {explain(error, _Code)}") from error
    file, _, class_name = code.python.rpartition(":")
    if not file.endswith(".py") or not class_name:
        raise RecipeError(f"{what}: python is '{code.python}'; write file.py:Class")
    files = [folder / name for name in code.files]
    if len({path.name for path in files}) < len(files):
        raise RecipeError(f"{what}: two of its files have one name; rename one")
    return OwnCode(
        file=folder / file,
        class_name=class_name,
        args=code.args,
        files={path.name: path for path in files},
    )


def _without_code(step: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in step.items() if key not in _Code.model_fields}
    return kept | {"model": own_model("", str(step.get("name")))}


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
