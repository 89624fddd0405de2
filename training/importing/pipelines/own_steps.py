"""Code that belongs to a pipeline: each such step becomes a Python model of its own name.

In: the class of a step, and the example rows of the pipeline. Out: a verified model, which is
published together with the pipeline as `PIPELINE.STEP`.

Rule: the examples of a step are what the steps before it give for those of the pipeline, so its
signature is learned, and its answers are recorded, as for a model that is published alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.manifest import Draft, Manifest
from model_store.pipelines.graph import INPUT, Pipeline, Step, refs_of, step_of
from model_store.pipelines.items import ItemsError, TooManyItemsError, select, taken
from model_store.pipelines.parts import typed
from model_store.pipelines.run_steps import finished
from training.errors import DataError, TrainingError
from training.importing.import_model import Say, prepare_model
from training.importing.pipelines.pipeline_source import OwnCode
from training.importing.pipelines.recording import PartFiles, part_files, run_apart
from training.importing.recording import check_examples
from training.importing.request import ExampleRows, ImportRequest
from training.importing.sources.python_source import python_original
from training.recipe.recipe import ExportLimits


@dataclass(frozen=True, slots=True)
class Parts:
    """The models of a pipeline's steps, by the text that names each."""

    versions: dict[str, Manifest]
    files: dict[str, PartFiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """A verified model of a step, which is not published yet."""

    draft: Draft
    folder: Path
    """Folder of its files."""

    def manifest(self) -> Manifest:
        """Returns the draft as a version, with a number that stands for the one it will get."""
        return self.draft.seal(1, datetime.now(UTC))

    def part(self) -> PartFiles:
        """Returns its files, to run it."""
        return part_files(self.manifest(), self.draft.artifacts[0], self.folder, b"")


def prepare_steps(
    graph: Pipeline,
    code: Mapping[str, OwnCode],
    parts: Parts,
    examples: Mapping[str, Array],
    limits: ExportLimits,
    folder: Path,
    say: Say,
) -> dict[str, OwnStep]:
    """Verifies the models of all own steps, and adds them to the parts.

    Args:
        graph: the graph.
        code: the code of the pipeline's own steps, by step.
        parts: the models of the other steps.
        examples: inputs of the pipeline.
        limits: limits of each process.
        folder: a folder for their files.
        say: called with a line before each phase.

    Returns:
        The models by the text that names each in the graph.

    Raises:
        DataError: the examples do not fit, or give a step no rows.
        TrainingError: the code is unusable, or its answers cannot be verified.
        PipelinePartError: tensors between the steps before do not fit.
    """
    found: dict[str, OwnStep] = {}
    for step in graph.in_order() if code else ():
        if step.name not in code:
            continue
        told = partial(_told, say, step.name)
        try:
            inputs = _step_inputs(step, graph, parts, examples, limits)
            place = folder / str(len(found))
            one = _prepared(step.part.model, code[step.name], inputs, limits, place, told)
        except TrainingError as error:
            raise type(error)(f"step '{step.name}': {error}") from error
        found[step.model] = one
        parts.versions[step.model], parts.files[step.model] = one.manifest(), one.part()
    return found


def _told(say: Say, step: str, text: str) -> None:
    say(f"step '{step}': {text}")


def _prepared(
    name: str,
    code: OwnCode,
    inputs: Mapping[str, Array],
    limits: ExportLimits,
    folder: Path,
    say: Say,
) -> OwnStep:
    """Verifies the model of a step on its rows; `name` is that of the model."""
    version = folder / "version"
    version.mkdir(parents=True)
    files = dict(code.files)
    original = python_original(code.file, code.class_name, code.args, files, inputs, folder)
    request = ImportRequest(
        model=name,
        store="",
        source=original.source,
        signature=original.signature,
        alias=None,
        limits=limits,
    )
    rows = ExampleRows(inputs=dict(inputs))
    prepared = prepare_model([original], rows, request, version, say)
    return OwnStep(draft=prepared.draft, folder=version)


def _step_inputs(
    step: Step,
    graph: Pipeline,
    parts: Parts,
    examples: Mapping[str, Array],
    limits: ExportLimits,
) -> dict[str, Array]:
    """Returns the rows that a step runs on, [rows, ...], if the pipeline runs on the examples.

    An input is given item by item if it is the tensor of `for_each`, or has as many items and
    comes from the same step; others are repeated for each item.

    Args:
        step: the step, whose model is not known yet.
        graph: the pipeline.
        parts: the models of the steps before it.
        examples: inputs of the pipeline.
        limits: limits of the process that runs these steps.

    Raises:
        DataError: the examples do not fit, or give the step no rows.
        PipelinePartError: tensors between the steps before do not fit.
        NothingProvenError: a step before it fails.
    """
    found = _sources(step, graph, parts, examples, limits)
    each = None if step.for_each is None else found[step.for_each]
    where = None if step.where is None else found[step.where]
    if each is not None and each.ndim < 2:
        raise DataError(
            f"for_each is '{step.for_each}', which has the shape {list(each.shape)}; name a tensor "
            "[rows, items, ...]"
        )
    try:
        selection = select(len(next(iter(found.values()))), each, where)
        inputs = {}
        for name, source in step.inputs.items():
            array = found[source]
            by_item = (
                each is not None
                and step.for_each is not None
                and step_of(refs_of(source)[0]) == step_of(step.for_each)
                and array.shape[:2] == each.shape[:2]
            )
            inputs[name] = np.ascontiguousarray(finished(taken(array, selection, by_item)))
    except (ItemsError, TooManyItemsError) as error:
        raise DataError(str(error)) from error
    if not selection.count:
        raise DataError("the examples give it no row to run on; add some that do")
    return inputs


def _sources(
    step: Step,
    graph: Pipeline,
    parts: Parts,
    examples: Mapping[str, Array],
    limits: ExportLimits,
) -> dict[str | tuple[str, ...], Array]:
    """Returns the tensors that a step reads, by their source."""
    sources = dict.fromkeys([*step.inputs.values(), *filter(None, (step.for_each, step.where))])
    found: dict[str | tuple[str, ...], Array] = {}
    computed = []
    for source in sources:
        place, _, name = refs_of(source)[0].partition(".")
        if place != INPUT:
            computed.append(source)
        elif name in examples and examples[name].ndim:
            found[source] = examples[name]
        else:
            raise DataError(
                f"it reads 'input.{name}', and the examples have {sorted(examples)}; give an array "
                f"[rows, ...] '{name}'"
            )
    if computed:
        before = graph.before(step, {str(place): one for place, one in enumerate(computed)})
        types = typed(before, parts.versions)
        given = {s.name: examples[s.name] for s in types.signature.inputs if s.name in examples}
        rows = check_examples("the pipeline", types.signature, given)
        outputs = run_apart(before, types, parts.files, rows, limits)
        found |= {one: outputs[str(place)] for place, one in enumerate(computed)}
    return found
