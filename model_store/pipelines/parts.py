"""The parts of a pipeline in a store: the versions that its steps name, and whether they fit.

In: a store and a graph. Out: the newest version of each part in its range, and the types of all
tensors.

Rules: a part is a model, never a pipeline, so a request runs through one graph and none of the
graphs can contain each other; every later version in the same range has the same signature, because
a version with another one is a major version (`semver.compatibility`).
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from model_store.errors import (
    BumpTooSmallError,
    ModelNotFoundError,
    PipelinePartError,
    StoreError,
    VersionNotFoundError,
)
from model_store.listing import list_models
from model_store.manifest import Draft, Manifest
from model_store.pipelines.graph import Part, Pipeline, parse_part
from model_store.pipelines.step_types import (
    PipelineTypeError,
    TypedPipeline,
    are_alike,
    check_types,
)
from model_store.semver import semver_index
from model_store.semver.semver import parse_semver
from model_store.version_reader import VersionReader

MAX_LOOKED_AT = 200
"""Models that a refusal reads to name the pipelines among them."""


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


def missing_parts(source: VersionReader, target: VersionReader, draft: Draft) -> list[Manifest]:
    """Returns the parts of a pipeline that another store lacks, as the source has them.

    A part that is named by its number must be the same version there, so it is always returned;
    of a range, any version there suffices.

    Raises:
        PipelinePartError: the source lacks a part.
        StoreError: a store cannot be read.
    """
    if draft.pipeline is None:
        return []
    found = {}
    for text, manifest in part_versions(source, draft.pipeline.graph).items():
        part = parse_part(text)
        with suppress(ModelNotFoundError, VersionNotFoundError):
            if not isinstance(part.wanted, int) and newest(target, part):
                continue
        found[manifest.model, manifest.version] = manifest
    return [*found.values()]


@contextmanager
def naming_pipelines(store: VersionReader, model: str) -> Iterator[None]:
    """Adds the pipelines that a too small bump would break to its error.

    They are those whose newest version has the model as a part; of a store with more models than
    `MAX_LOOKED_AT`, the others are not read.

    Raises:
        BumpTooSmallError: the block raised it.
    """
    try:
        yield
    except BumpTooSmallError as error:
        found = []
        for name, listing in [*list_models(store.storage).items()][:MAX_LOOKED_AT]:
            with suppress(StoreError):  # a damaged model uses nothing
                newest = store.manifest(name, listing.versions[-1]) if listing.versions else None
                texts = newest.pipeline.graph.models() if newest and newest.pipeline else ()
                found += [f"{name} ({t})" for t in texts if parse_part(t).model == model]
        if not found:
            raise
        raise BumpTooSmallError(
            f"{error}. It would break these pipelines: {', '.join(found)}. They go on with the "
            "versions that fit, until they are published again with the new one"
        ) from error


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
