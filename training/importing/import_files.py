"""Imports models from files: reads them, and imports each; used by `flambeau import`."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import explain
from flambeau.protocol.tensors import Array
from model_store.manifest import PythonProcess, check_name
from model_store.semver.semver import Bump
from model_store.store import ModelStore, Sign
from training.errors import DataError, RecipeError
from training.importing.derived_entries import Wish
from training.importing.import_model import Imported, Say, import_model
from training.importing.original import Original
from training.importing.pipelines.publication import (
    ImportedPipeline,
    PublicationOptions,
    import_pipeline,
)
from training.importing.request import ExampleRows, ImportRequest
from training.importing.sources.python_source import MAX_BATCH_SIZE, python_original
from training.importing.sources.read_source import read_source
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.triton.pipeline_draft import PipelineDraft
from training.importing.steps import told_step


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImport:
    """Files of a model, and what is asked of it."""

    files: tuple[str, ...]
    """The file or folder of the model, and files beside it that it refers to; or `model.py:Class`
    of a Python model."""
    name: str
    """Name of the model in the store; empty for the source's own names."""
    store: str
    """URL of the store."""
    examples: Mapping[str, Array] | None = None
    """Example inputs by name, [rows, ...]; the name `""` stands for the only input."""
    artifacts: Wish = "auto"
    gates: Any = None
    """See `model_store.gates.parse_gates`."""
    network: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    side_files: tuple[Path, ...] = ()
    """Files that a Python model needs."""
    allow_pickle: bool = False
    allow_native_code: bool = False
    model: str = ""
    """The model of a repository; empty for all of them."""
    max_batch_size: int | None = None
    process: PythonProcess = "own"
    """Process that runs a Python model."""
    dynamic: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    """Batch axis of inputs where the file cannot tell it; None for an input without a batch."""
    alias: str | None = None
    sequence: Sequences | None = None
    """Sequences of a model with state."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of classes by output; the name `""` stands for the only output."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    bump: Bump | None = None
    prepare: Callable[[str], None] | None = None
    """Gets the name of each model before it is proven, and gives the store what its next version
    follows; for a store that is empty before. It has no parts of pipelines, which are refused."""


def import_files(
    wanted: FileImport, say: Say, sign: Sign | None = None
) -> Iterator[Imported | ImportedPipeline]:
    """Imports the model, or each model of a repository and then its pipelines; or a pipeline.

    Args:
        wanted: the files.
        say: receives a line for each step.
        sign: makes the signature of each version; None leaves them unsigned.

    Raises:
        TrainingError: a file cannot be read, or a step failed; see `training.errors`. Of that model
            nothing is published.
        StoreError: the store cannot be read or written, or refuses the version.
    """
    if wanted.name:
        check_name(wanted.name)
    is_pipeline = wanted.files[0].endswith((".yaml", ".yml"))
    if wanted.batch_axes and (is_pipeline or ".py" in wanted.files[0]):
        raise RecipeError(
            f"--batch-axis is for files of networks, and {wanted.files[0]} is none; leave it out"
        )
    if is_pipeline:
        _refuse_apart(wanted)
        path = Path(wanted.files[0])
        yield _pipeline(wanted, path, wanted.name, wanted.examples, path.name, say, sign)
        return
    with tempfile.TemporaryDirectory(prefix="flambeau-import-") as staging:
        originals, drafts = _read(wanted, Path(staging), say)
        if drafts:
            _refuse_apart(wanted)
        if len(originals) > 1 and wanted.name:
            names = ", ".join(one.name for one in originals)
            raise RecipeError(
                f"there are {len(originals)} models ({names}), and --name {wanted.name} is one "
                "name; leave it out, or select one by --model"
            )
        for original in originals:
            for note in original.notes:
                say(f"note: {note}")
            original = _labelled(original, wanted.labels)
            request = _request(wanted, original)
            if wanted.prepare is not None:
                wanted.prepare(request.model)
            with tempfile.TemporaryDirectory(prefix="version-", dir=staging) as version:
                yield import_model(
                    [original],
                    _examples(original),
                    request,
                    Path(version),
                    say,
                    sign,
                )
        for draft in drafts:
            for note in draft.notes:
                say(f"note: {note}")
            rows = wanted.examples or _rows_of_parts(draft, originals)
            graph, name = pipeline_document(draft), wanted.name or draft.name
            yield _pipeline(wanted, graph, name, rows, draft.source, say, sign)


def _refuse_apart(wanted: FileImport) -> None:
    """Refuses a pipeline for a store that has no models.

    Raises:
        RecipeError: the store is one.
    """
    if wanted.prepare is not None:
        raise RecipeError(
            "a pipeline is proven beside its models; import it into the store that has them, and "
            "push it from there (flambeau push), or import one model alone (--model)"
        )


def _pipeline(
    wanted: FileImport,
    graph: Path | Mapping[str, Any],
    name: str,
    examples: Mapping[str, Array] | None,
    source: str,
    say: Say,
    sign: Sign | None,
) -> ImportedPipeline:
    if not examples:
        raise DataError(
            f"{source} needs example inputs, which its steps run on; give --examples rows.npz"
        )
    if wanted.labels:
        raise RecipeError(
            "--labels is for outputs of networks, and a pipeline has those of its steps"
        )
    options = PublicationOptions(
        gates=wanted.gates,
        sign=sign,
        source=source,
        metadata=wanted.metadata,
        bump=wanted.bump,
    )
    store = ModelStore(wanted.store)
    return import_pipeline(
        graph,
        check_name(name or default_name(wanted.files[0])),
        store,
        examples,
        options,
        wanted.alias,
        say,
    )


def _rows_of_parts(draft: PipelineDraft, originals: Sequence[Original]) -> dict[str, Array]:
    """Returns rows for the inputs of a pipeline: those of the parts that read them."""
    by_name = {one.name: one.examples or {} for one in originals}
    return {
        tensor: by_name[step.model][name]
        for step in draft.steps
        for name, tensor in step.input_map.items()
        if tensor in draft.inputs and name in by_name.get(step.model, {})
    }


def pipeline_document(draft: PipelineDraft) -> dict[str, Any]:
    """Returns a graph of a foreign repository as a document of ours."""
    names = [
        step.model
        if [one.model for one in draft.steps].count(step.model) == 1
        else f"{step.model}-{place}"
        for place, step in enumerate(draft.steps, start=1)
    ]
    made = {tensor: f"input.{tensor}" for tensor in draft.inputs} | {
        tensor: f"{name}.{output}"
        for name, step in zip(names, draft.steps, strict=True)
        for output, tensor in step.output_map.items()
    }
    steps = [
        {
            "name": name,
            "model": step.model,
            "inputs": {given: made[tensor] for given, tensor in step.input_map.items()},
        }
        for name, step in zip(names, draft.steps, strict=True)
    ]
    return {"steps": steps, "outputs": {tensor: made[tensor] for tensor in draft.outputs}}


def _read(
    wanted: FileImport, staging: Path, say: Say
) -> tuple[list[Original], list[PipelineDraft]]:
    first, *others = wanted.files
    path, _, class_name = first.rpartition(":")
    if path.endswith(".py"):
        if wanted.examples is None:
            raise DataError("a Python model needs example inputs; give --examples rows.npz")
        files = {file.name: file for file in wanted.side_files}
        say(f"recording the outputs of {first}")
        original = python_original(
            Path(path),
            class_name,
            wanted.args,
            files,
            dict(wanted.examples),
            staging,
            max_batch_size=wanted.max_batch_size or MAX_BATCH_SIZE,
            process=wanted.process,
        )
        return [original], []
    if first.endswith(".py"):
        raise RecipeError(f"'{first}' names no class; write {first}:Model")
    main = Path(first)
    for other in others:
        if Path(other).absolute().parent != main.absolute().parent:
            raise RecipeError(
                f"'{other}' is not beside '{first}'; import one model at a time, with its files in "
                "one folder"
            )
    options = SourceOptions(
        network=wanted.network,
        args=wanted.args,
        allow_pickle=wanted.allow_pickle,
        allow_native_code=wanted.allow_native_code,
        examples=wanted.examples,
        model=wanted.model,
        max_batch_size=wanted.max_batch_size,
        dynamic=wanted.dynamic,
        batch_axes=wanted.batch_axes,
    )
    with told_step(say, f"reading {first}", options.limits.time_s):
        found = read_source(main, options, staging)
    originals = [one for one in found if isinstance(one, Original)]
    return originals, [one for one in found if isinstance(one, PipelineDraft)]


def _examples(original: Original) -> ExampleRows:
    if original.examples is None:
        inputs = ", ".join(
            f"{spec.name} ({spec.datatype} {list(spec.shape)})"
            for spec in original.signature.inputs
        )
        raise DataError(
            f"{original.source} has no example inputs, and none can be made up; give --examples "
            f"rows.npz with {inputs}"
        )
    return ExampleRows(inputs=original.examples, made_up=original.made_up)


def default_name(file: str) -> str:
    """Returns the name of a model whose file alone is known: `my net.onnx` is `my-net`."""
    path = file.rpartition(":")[0] if ".py:" in file else file
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).absolute().stem).strip("-._") or "model"


def _request(wanted: FileImport, original: Original) -> ImportRequest:
    return ImportRequest(
        model=check_name(wanted.name or original.name or default_name(wanted.files[0])),
        store=wanted.store,
        source=original.source,
        signature=original.signature,
        artifacts=wanted.artifacts if wanted.artifacts == "auto" else tuple(wanted.artifacts),
        gates=wanted.gates,
        sequence=wanted.sequence,
        alias=wanted.alias,
        metadata=dict(wanted.metadata),
        bump=wanted.bump,
    )


def _labelled(original: Original, labels: Mapping[str, tuple[str, ...]]) -> Original:
    """Returns the model with names of classes.

    Raises:
        RecipeError: an output is unknown, or has another number of classes.
    """
    if not labels:
        return original
    outputs = [spec.name for spec in original.signature.outputs]
    if "" in labels and len(outputs) > 1:
        raise RecipeError(
            f"--labels names no output, and there are {', '.join(outputs)}; write OUTPUT=A,B,C"
        )
    by_output = {output or outputs[0]: names for output, names in labels.items()}
    fields = original.signature.model_dump() | {"labels": original.signature.labels | by_output}
    try:
        return replace(original, signature=Signature.model_validate(fields))
    except ValidationError as error:
        raise RecipeError(f"--labels: {explain(error, Signature)}") from error
