"""Publishes a pipeline: records its golden outputs through the real parts, and writes a version.

In: a graph, a store that has its models, example rows. Out: a new version's manifest.

Rules: tensors that do not fit are refused before anything runs; nothing is published unless the
outputs are the same twice.
"""

import hashlib
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.gates import Gate, GateError, OwnGate, parse_gates
from model_store.golden import GoldenRows
from model_store.manifest import Draft, Golden, Lineage, Manifest, PublishedPipeline
from model_store.pipelines.graph import Pipeline
from model_store.pipelines.parts import part_versions, typed, version_words
from model_store.pointers import PRODUCTION
from model_store.semver.semver import Bump
from model_store.store import ModelStore, Sign
from training.errors import RecipeError
from training.importing.pipelines.pipeline_source import read_pipeline
from training.importing.pipelines.recording import check_rows, fetch_part, record_outputs
from training.process.library_versions import library_versions
from training.publish import GOLDEN, LIBRARIES, file_entry, git_commit
from training.recipe.recipe import ExportLimits

PIPELINE = "pipeline.yaml"
"""File of a version with its graph."""

Say = Callable[[str], None]


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
            "notes": [],
        }


def publish_pipeline(
    store: ModelStore,
    name: str,
    pipeline: Pipeline,
    examples: Mapping[str, Array],
    options: PublicationOptions | None = None,
    say: Say = lambda _: None,
) -> Manifest:
    """Publishes a pipeline.

    Args:
        store: the store, which has the models of the steps.
        name: name to publish under.
        pipeline: the graph.
        examples: input rows by name, [rows, ...].
        options: what else is said of it.
        say: called with a line before each phase.

    Raises:
        PipelinePartError: a model is missing, or tensors do not fit. Nothing is published.
        DataError: the examples do not fit.
        RecipeError: a gate names no output or measure, or is a function.
        NothingProvenError: a step fails on the examples, or the outputs cannot be verified.
        StoreError: the store failed, or the bump is too small.
    """
    options = options or PublicationOptions()
    versions = part_versions(store, pipeline)
    types = typed(pipeline, versions)
    inputs = check_rows(types.signature, examples)
    gates = _checked_gates(options.gates, types.signature)
    with tempfile.TemporaryDirectory(prefix="flambeau-pipeline-") as temporary:
        folder = Path(temporary)
        say(f"running {len(pipeline.steps)} steps on {len(next(iter(inputs.values())))} rows")
        parts = {
            text: fetch_part(store, manifest, folder / "parts" / str(number))
            for number, (text, manifest) in enumerate(versions.items())
        }
        golden, tolerance = record_outputs(pipeline, types, parts, inputs, gates, options.limits)
        published = PublishedPipeline(
            graph=pipeline,
            recorded_with={text: version_words(m) for text, m in versions.items()},
            tolerance=tolerance,
        )
        _write_files(folder, pipeline, golden)
        say(f"publishing {name}")
        draft = Draft(
            model=name,
            signature=types.signature,
            artifacts=(),
            pipeline=published,
            golden=Golden(file=file_entry(folder, GOLDEN), rows=golden.rows),
            lineage=_lineage(folder, options.source),
            metadata=dict(options.metadata),
            files=(file_entry(folder, PIPELINE),),
        )
        return store.publish(draft, folder, sign=options.sign, bump=options.bump)


def import_pipeline(
    source: Path | Mapping[str, Any],
    name: str,
    store: ModelStore,
    examples: Mapping[str, Array],
    options: PublicationOptions,
    alias: str | None = PRODUCTION,
    say: Say = lambda _: None,
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

    Raises:
        TrainingError, StoreError: as `read_pipeline` and `publish_pipeline`; nothing is published.
    """
    pipeline = read_pipeline(source, store)
    manifest = publish_pipeline(store, name, pipeline, examples, options, say)
    if alias is not None:
        store.promote(name, manifest.version, alias, why="published")
    return ImportedPipeline(manifest, alias, store.url)


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


def _write_files(folder: Path, pipeline: Pipeline, golden: GoldenRows) -> None:
    document = pipeline.model_dump(mode="json")
    (folder / PIPELINE).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    (folder / GOLDEN).write_bytes(golden.to_bytes())


def _lineage(folder: Path, source: str) -> Lineage:
    return Lineage(
        recipe_sha256=hashlib.sha256((folder / PIPELINE).read_bytes()).hexdigest(),
        data_sha256=hashlib.sha256((folder / GOLDEN).read_bytes()).hexdigest(),
        imported_from=source,
        git_commit=git_commit(),
        library_versions={"python": platform.python_version(), **library_versions(LIBRARIES)},
        metrics={},
    )
