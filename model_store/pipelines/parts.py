"""The parts of a pipeline in a store: the versions that its steps name, and whether they fit.

In: a store and a graph. Out: the newest version of each part in its range, and the types of all
tensors.

Rules: a part is a model, never a pipeline, so a request runs through one graph and none of the
graphs can contain each other; every later version in the same range has the same signature, because
a version with another one is a major version (`semver.compatibility`).
"""

from collections.abc import Collection

from model_store.errors import PipelinePartError, VersionNotFoundError
from model_store.manifest import Draft, Manifest
from model_store.pipelines.graph import Part, Pipeline
from model_store.pipelines.step_types import (
    PipelineTypeError,
    TypedPipeline,
    are_alike,
    check_types,
)
from model_store.semver import semver_index
from model_store.semver.semver import parse_semver
from model_store.version_reader import VersionReader


def part_versions(
    store: VersionReader, pipeline: Pipeline, without: Collection[str] = ()
) -> dict[str, Manifest]:
    """Returns the newest version of each part in its range, by the text that names it.

    Args:
        store: the store with the parts.
        pipeline: the graph.
        without: texts of parts that are left out: they are not published yet.

    Raises:
        PipelinePartError: there is none, or it is a pipeline itself.
        StoreError: the store cannot be read.
    """
    found: dict[str, Manifest] = {}
    for step in pipeline.steps:
        if step.model not in found and step.model not in without:
            try:
                found[step.model] = newest(store, step.part)
            except VersionNotFoundError as error:
                raise PipelinePartError(
                    f"step '{step.name}' names {step.model}: {error}; publish that first"
                ) from error
            if found[step.model].pipeline is not None:
                raise PipelinePartError(
                    f"step '{step.name}' names {step.model}, which is a pipeline itself; write its "
                    "steps into this one"
                )
    return found


def newest(store: VersionReader, part: Part) -> Manifest:
    """Returns the newest version that a part may use.

    Raises:
        VersionNotFoundError: there is none.
        StoreError: the store cannot be read.
    """
    if isinstance(part.wanted, int):
        return store.manifest(part.model, part.wanted)
    return semver_index.fitting(store, part.model, part.wanted, part.text.partition("@")[2])


def typed(pipeline: Pipeline, versions: dict[str, Manifest]) -> TypedPipeline:
    """Checks the tensors between the steps; see `check_types`.

    Raises:
        PipelinePartError: they do not fit.
    """
    try:
        return check_types(pipeline, {text: m.signature for text, m in versions.items()})
    except PipelineTypeError as error:
        raise PipelinePartError(str(error)) from error


def check_parts(store: VersionReader, draft: Draft) -> None:
    """Refuses a pipeline whose parts are missing, do not fit, or give it another signature.

    Raises:
        PipelinePartError: the draft is a pipeline that cannot be served.
        StoreError: the store cannot be read.
    """
    if draft.pipeline is None:
        return
    pipeline = draft.pipeline.graph
    for step in pipeline.steps:
        if step.part.model == draft.model:
            raise PipelinePartError(
                f"step '{step.name}' names {step.model}, the pipeline itself; name another model"
            )
    found = typed(pipeline, part_versions(store, pipeline)).signature
    if not are_alike(found, draft.signature):
        raise PipelinePartError(
            f"the parts of '{draft.model}' give it other tensors than its draft has; publish it "
            "again: a part was published meanwhile"
        )


def version_words(manifest: Manifest) -> str:
    """Returns the semantic version of a part, or its number if it has none."""
    return manifest.semver or str(manifest.version)


def answers_alike(recorded: str, serving: Manifest) -> bool:
    """Returns True if a version answers as the one that golden outputs were recorded with.

    Versions that differ in the last number of their semantic versions have the same weights.
    """
    old, new = parse_semver(recorded), parse_semver(serving.semver or "")
    if old is None or new is None:
        return recorded == version_words(serving)
    return (old.major, old.minor) == (new.major, new.minor)
