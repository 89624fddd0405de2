"""Reads a Triton model repository: its models, and its ensembles as drafts of pipelines.

In: the folder of a repository, or of one model in it. Out: an original for each model of ONNX,
TorchScript, AOTInductor or OpenVINO, then a draft for each ensemble. Models of other platforms are
listed in notes.
"""

import dataclasses
from pathlib import Path

from flambeau.protocol.strict import nearest_name
from training.errors import RecipeError, SourceError
from training.importing.original import Original
from training.importing.sources import onnx_file, openvino_file
from training.importing.sources.declared import Declared
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.torch_programs import aoti_package, torchscript_file
from training.importing.sources.triton.pipeline_draft import DraftStep, PipelineDraft
from training.importing.sources.triton.protobuf_text import Message
from training.importing.sources.triton.triton_model import (
    CONFIG,
    TritonModel,
    is_model_folder,
    model_file,
    read_model,
)

MAX_MODELS = 1000


def read(path: Path, options: SourceOptions, staging: Path) -> list[Original | PipelineDraft]:
    """Reads a repository.

    Args:
        path: the folder of the repository or of one model, or a `config.pbtxt`.
        options: examples, largest batch and limits; `model` names one model of several.
        staging: folder of ours for the copies.

    Raises:
        SourceError: a configuration or file is wrong, or nothing in it is read.
        StoreError: a file in it is unsafe.
    """
    folder = path if path.is_dir() else path.parent
    models = [read_model(one) for one in _folders(folder)]
    by_name = {model.name: model for model in models}
    if options.model:
        if options.model not in by_name:
            raise SourceError(
                f"{folder} has no model '{options.model}'{nearest_name(options.model, by_name)}"
            )
        models = _needed(by_name[options.model], by_name)
    left_out = [model for model in models if not model.kind]
    if left_out and (options.model or len(left_out) == len(models)):
        raise SourceError(f"{_listed(left_out)}; onnx, pytorch and openvino are read")
    plain = [model for model in models if model.kind not in ("", "ensemble")]
    if options.examples is not None and len(plain) > 1:
        raise SourceError(
            f"examples were given for {len(plain)} models ({', '.join(m.name for m in plain[:5])});"
            " import them one by one, by naming the folder of each"
        )
    found: list[Original | PipelineDraft] = [
        _original(one, options, staging / f"{place}") for place, one in enumerate(plain)
    ]
    found += [_draft(model, by_name) for model in models if model.kind == "ensemble"]
    if left_out:
        found[0] = dataclasses.replace(
            found[0], notes=(*found[0].notes, f"left out: {_listed(left_out)}")
        )
    return found


def _folders(folder: Path) -> list[Path]:
    if is_model_folder(folder):
        return [folder]
    found = sorted(one for one in folder.iterdir() if one.is_dir() and is_model_folder(one))
    if not 0 < len(found) <= MAX_MODELS:
        raise SourceError(
            f"{folder} has {len(found)} models of Triton; give a repository of 1 to {MAX_MODELS}, "
            f"each a folder with {CONFIG}"
        )
    return found


def _listed(models: list[TritonModel]) -> str:
    return "; ".join(f"model '{m.name}' is of {m.platform[:40]}, which is not read" for m in models)


def _needed(model: TritonModel, by_name: dict[str, TritonModel]) -> list[TritonModel]:
    """Returns a model with those that it runs, if it is an ensemble."""
    found, waiting = {model.name: model}, [model]
    while waiting:
        for step in _steps(waiting.pop().config):
            if step.model in by_name and step.model not in found:
                found[step.model] = by_name[step.model]
                waiting.append(by_name[step.model])
    return list(found.values())


def _original(model: TritonModel, options: SourceOptions, place: Path) -> Original:
    file = model_file(model)
    if "/" in model.name or model.name.startswith("."):
        raise SourceError(f"{model.folder / CONFIG}: '{model.name[:80]}' is no name of a model")
    own = dataclasses.replace(
        options, max_batch_size=options.max_batch_size or model.max_batch_size or None
    )
    declared = Declared(
        inputs=model.inputs,
        outputs=tuple(tensor.name for tensor in model.outputs),
        labels=model.labels,
    )
    if model.kind == "onnx":
        original = onnx_file.read(file, own, place, declared)
    elif model.kind == "openvino":
        original = openvino_file.read(file, own, place, declared)
    elif model.kind == "torchscript":
        original = torchscript_file.read(file, own, place, declared)
    else:
        original = aoti_package.read(file, own, place)
    original = dataclasses.replace(
        original,
        name=model.name,
        source=f"Triton model {model.folder} ({model.platform})",
        notes=(*model.notes, *original.notes),
    )
    try:
        return original.with_sequences(model.sequences)
    except RecipeError as error:
        raise SourceError(f"{model.folder / CONFIG}: {error}") from error


def _steps(config: Message) -> list[DraftStep]:
    found = []
    for scheduling in config.messages("ensemble_scheduling"):
        for step in scheduling.messages("step"):
            version = (step.numbers("model_version") or [-1])[-1]
            found.append(
                DraftStep(
                    model=step.text("model_name"),
                    version=version if version > 0 else None,
                    input_map=_map(step, "input_map"),
                    output_map=_map(step, "output_map"),
                )
            )
    return found


def _map(step: Message, name: str) -> dict[str, str]:
    return {entry.text("key"): entry.text("value") for entry in step.messages(name)}


def _draft(model: TritonModel, by_name: dict[str, TritonModel]) -> PipelineDraft:
    """Returns the draft of an ensemble, after checking that its tensors are connected.

    Raises:
        SourceError: a step runs a model that is unknown or not read, or a tensor has no source.
    """
    where, steps = str(model.folder / CONFIG), _steps(model.config)
    inputs = tuple(tensor.name for tensor in model.inputs)
    outputs = tuple(tensor.name for tensor in model.outputs)
    made = [tensor for step in steps for tensor in step.output_map.values()]
    known = {*inputs, *made}
    if not steps:
        raise SourceError(f"{where}: the ensemble has no steps")
    if len(made) != len(set(made)) or set(made) & set(inputs):
        raise SourceError(f"{where}: a tensor is made by two steps ({', '.join(sorted(made))})")
    for step in steps:
        part = by_name.get(step.model)
        if part is None:
            raise SourceError(
                f"{where}: a step runs '{step.model}', which the repository does not have"
                f"{nearest_name(step.model, by_name)}"
            )
        if not part.kind:
            raise SourceError(f"{where}: {_listed([part])}")
        for tensor in step.input_map.values():
            _check_known(where, f"'{step.model}' takes", tensor, known)
    for tensor in outputs:
        _check_known(where, "the ensemble returns", tensor, known)
    return PipelineDraft(
        name=model.name,
        inputs=inputs,
        outputs=outputs,
        steps=tuple(steps),
        source=f"Triton ensemble {model.folder}",
        notes=model.notes,
    )


def _check_known(where: str, what: str, tensor: str, known: set[str]) -> None:
    if tensor not in known:
        raise SourceError(
            f"{where}: {what} '{tensor[:80]}', which is neither an input nor made by a step"
            f"{nearest_name(tensor, known)}"
        )
