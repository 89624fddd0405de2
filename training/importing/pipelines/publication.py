"""Publishes a pipeline: records its golden outputs through the real parts, and writes a version.

In: a graph, a store that has its models, example rows. Out: a new version's manifest.

Rules: tensors that do not fit are refused before they are used; nothing is published unless the
outputs are the same twice. Code of the pipeline's own becomes Python models, `PIPELINE.STEP`, which
the pipeline names by their exact versions; they are published just before it, all or none.
"""

import hashlib
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.errors import ModelNotFoundError, StoreError
from model_store.gates import Gate, GateError, OwnGate, parse_gates
from model_store.golden import GoldenRows
from model_store.manifest import (
    Draft,
    Golden,
    Lineage,
    Manifest,
    PublishedPipeline,
    check_name,
)
from model_store.pipelines.parts import part_versions, typed, version_words
from model_store.pointers import PRODUCTION
from model_store.semver.semver import Bump
from model_store.semver.semver_index import broken_callers
from model_store.store import ModelStore, Sign
from training.errors import RecipeError
from training.importing.import_model import Say
from training.importing.pipelines.own_steps import OwnStep, Parts, prepare_steps
from training.importing.pipelines.pipeline_source import PipelineSource, own_model, read_pipeline
from training.importing.pipelines.recording import fetch_part, record_outputs
from training.importing.recording import check_examples
from training.process.library_versions import library_versions
from training.publish import GOLDEN, LIBRARIES, file_entry, git_commit
from training.recipe.recipe import ExportLimits

PIPELINE = "pipeline.yaml"
"""File of a version with its graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationOptions:
    """Options of publishing a pipeline."""

    gates: object = None
    """Rules by which outputs match on other machines, see `model_store.gates.parse_gates`; None for
    rules that suit each output."""
    limits: ExportLimits = field(default_factory=ExportLimits)
    """Limits of the run that records the outputs."""
    bump: Bump | None = None
    """The bump of its semantic version; None for the smallest that is required."""
    sign: Sign | None = None
    """Makes the signature; None leaves it unsigned."""
    source: str = "a pipeline"
    """Description of where the graph came from, for the lineage."""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedPipeline:
    """A published pipeline."""

    manifest: Manifest
    alias: str | None
    """Alias that moved to it; None if none did."""
    store: str
    """URL of its store."""
    broken: str = ""
    """What breaks callers of the version before; empty if nothing does."""

    def summary(self) -> dict[str, Any]:
        """Returns the version as values of JSON, with the fields of an imported model's."""
        return {
            "model": self.manifest.model,
            "version": self.manifest.version,
            "semver": self.manifest.semver,
            "store": self.store,
            "artifacts": [],
            "refused": {},
            "alias": self.alias,
            "notes": [*filter(None, [self.broken])],
        }


def publish_pipeline(
    store: ModelStore,
    name: str,
    source: PipelineSource,
    examples: Mapping[str, Array],
    options: PublicationOptions | None = None,
    say: Say = lambda _: None,
) -> Manifest:
    """Publishes a pipeline, and the models of its own steps before it.

    Args:
        store: the store, which has the models of the other steps.
        name: name to publish under.
        source: the graph, and the code of its own steps.
        examples: input rows by name, [rows, ...].
        options: what else is said of it.
        say: called with a line before each phase.

    Raises:
        BadNameError: the name, or that of an own step's model, is not allowed.
        PipelinePartError: a model is missing, or tensors do not fit. Nothing is published.
        DataError: the examples do not fit.
        RecipeError: a gate names no output or measure, or is a function.
        TrainingError: code of a step is unusable.
        NothingProvenError: a step fails on the examples, or the outputs cannot be verified.
        StoreError: the store failed, or the bump is too small.
    """
    options = options or PublicationOptions()
    own = {own_model("", step): own_model(name, step) for step in source.own}
    for text in own.values():
        check_name(text.rpartition("@")[0])
    graph = source.graph.with_models(own)
    versions = part_versions(store, graph, frozenset(own.values()))
    with tempfile.TemporaryDirectory(prefix="flambeau-pipeline-") as temporary:
        folder = Path(temporary)
        files = {
            text: fetch_part(store, manifest, folder / "parts" / str(number))
            for number, (text, manifest) in enumerate(versions.items())
        }
        parts = Parts(versions, files)
        place = folder / "own"
        prepared = prepare_steps(graph, source.own, parts, examples, options.limits, place, say)
        types = typed(graph, versions)
        inputs = check_examples("the pipeline", types.signature, examples)
        gates = _checked_gates(options.gates, types.signature)
        say(f"running {len(graph.steps)} steps on {len(next(iter(inputs.values())))} rows")
        golden, tolerance = record_outputs(graph, types, files, inputs, gates, options.limits)
        say(f"publishing {name}")
        with _published_together(store, name, prepared, options.sign) as numbered:
            texts = {text: f"{m.model}@{m.version}" for text, m in numbered.items()}
            published = PublishedPipeline(
                graph=graph.with_models(texts),
                recorded_with={
                    texts.get(text, text): version_words(manifest)
                    for text, manifest in (versions | numbered).items()
                },
                tolerance=tolerance,
            )
            draft = _draft(name, types.signature, published, golden, folder, options)
            return store.publish(draft, folder, sign=options.sign, bump=options.bump)


@contextmanager
def _published_together(
    store: ModelStore, name: str, steps: Mapping[str, OwnStep], sign: Sign | None
) -> Iterator[dict[str, Manifest]]:
    """Publishes the models of own steps, and deletes them again if the pipeline is not published.

    Yields:
        Their versions, by the texts that have named them so far.
    """
    found: dict[str, Manifest] = {}
    try:
        for text, step in steps.items():
            found[text] = store.publish(step.draft, step.folder, sign=sign)
        yield found
    except BaseException:
        with suppress(StoreError):  # the first failure is the one to report
            if not _is_used(store, name, found.values()):
                for manifest in found.values():
                    store.discard(manifest)
        raise


def _is_used(store: ModelStore, name: str, parts: Iterable[Manifest]) -> bool:
    """Returns True if the newest version of a pipeline has such parts: it exists after all.

    Raises:
        StoreError: the store cannot be read.
    """
    try:
        newest = store.manifest(name, store.versions(name)[-1])
    except ModelNotFoundError:
        return False
    models = () if newest.pipeline is None else newest.pipeline.graph.models()
    return any(f"{part.model}@{part.version}" in models for part in parts)


def import_pipeline(
    source: Path | Mapping[str, Any],
    name: str,
    store: ModelStore,
    examples: Mapping[str, Array],
    options: PublicationOptions,
    alias: str | None = PRODUCTION,
    say: Say = lambda _: None,
    folder: Path = Path(),
) -> ImportedPipeline:
    """Reads a graph, publishes it, and moves an alias to it.

    Args:
        source: a YAML file, or its document.
        name: name to publish under.
        store: the store, which has the models of the steps.
        examples: input rows by name, [rows, ...].
        options: what else is said of it.
        alias: the alias; None for none.
        say: called with a line before each phase.
        folder: folder of the code that a document names.

    Raises:
        TrainingError, StoreError: as `read_pipeline` and `publish_pipeline`; nothing is published.
    """
    found = read_pipeline(source, store, folder)
    manifest = publish_pipeline(store, name, found, examples, options, say)
    if alias is not None:
        store.promote(name, manifest.version, alias, why="published")
    broken = broken_callers(store, store.versions(name), manifest)
    return ImportedPipeline(manifest, alias, store.url, broken)


def _checked_gates(told: object, signature: Signature) -> dict[str, Gate]:
    """Returns the gates that a user gave, by output.

    Raises:
        RecipeError: one is wrong, or is a function.
    """
    found: dict[str, Gate] = {}
    try:
        gates = parse_gates(told, signature.outputs)
    except GateError as error:
        raise RecipeError(str(error)) from error
    for name, gate in gates.items():
        if isinstance(gate, OwnGate):
            raise RecipeError(
                f"gates: {gate.function} is a function, which no server can ask; give '{name}' of "
                'a pipeline a limit, such as {"absolute": 1e-4}'
            )
        found[name] = gate
    return found


def _draft(
    name: str,
    signature: Signature,
    published: PublishedPipeline,
    golden: GoldenRows,
    folder: Path,
    options: PublicationOptions,
) -> Draft:
    """Writes the files of a version. Returns its draft."""
    document = yaml.safe_dump(published.graph.model_dump(mode="json"), sort_keys=False)
    (folder / PIPELINE).write_text(document, encoding="utf-8")
    (folder / GOLDEN).write_bytes(golden.to_bytes())
    return Draft(
        model=name,
        signature=signature,
        artifacts=(),
        pipeline=published,
        golden=Golden(file=file_entry(folder, GOLDEN), rows=golden.rows),
        lineage=_lineage(folder, options.source),
        metadata=dict(options.metadata),
        files=(file_entry(folder, PIPELINE),),
    )


def _lineage(folder: Path, source: str) -> Lineage:
    return Lineage(
        recipe_sha256=hashlib.sha256((folder / PIPELINE).read_bytes()).hexdigest(),
        data_sha256=hashlib.sha256((folder / GOLDEN).read_bytes()).hexdigest(),
        imported_from=source,
        git_commit=git_commit(),
        library_versions={"python": platform.python_version(), **library_versions(LIBRARIES)},
        metrics={},
    )
