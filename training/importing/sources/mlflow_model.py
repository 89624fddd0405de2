"""Reads a model folder of MLflow: the flavours onnx and pytorch, without MLflow.

The input example that the folder stores becomes the example of the model. Modules of the flavour
pytorch are pickles, which are only read if the user allows it; scripted modules need no pickle.

Source: https://mlflow.org/docs/latest/ml/model/ (the file MLmodel and its input example).
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.document import DocumentLimits, parse_document
from model_store.yaml_text import YamlError, read_yaml
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources import onnx_file
from training.importing.sources.apart import call_apart
from training.importing.sources.archive import check_sizes, member_names
from training.importing.sources.checkpoint import FILE, export_network
from training.importing.sources.examination import Examined
from training.importing.sources.foreign_files import beside, read_text
from training.importing.sources.source_options import ONLY_INPUT, SourceOptions
from training.importing.sources.torch_programs import pt2_file, torchscript_file
from training.importing.sources.torch_programs.program_safety import WHAT_CODE_CAN_DO
from training.importing.sources.unpickling import load_torch_file

DESCRIPTION = "MLmodel"
EXAMPLE_LIMITS = DocumentLimits(8 * 2**20, 2_000_000)
"""Limits of an input example, whose numbers are text."""


def read(path: Path, options: SourceOptions, staging: Path) -> Original:
    """Reads a folder.

    Args:
        path: the folder, or its file MLmodel.
        options: examples, largest batch and limits.
        staging: folder of ours for the copies.

    Raises:
        SourceError: the folder is incomplete or unsafe, or has neither flavour.
        StoreError: a file in it is unsafe.
    """
    folder = path if path.is_dir() else path.parent
    where = str(folder / DESCRIPTION)
    try:
        document = read_yaml(read_text(folder / DESCRIPTION))
    except YamlError as error:
        raise SourceError(f"{where} is no YAML that can be read: {error}") from error
    flavours = document.get("flavors") if isinstance(document, dict) else None
    if not isinstance(flavours, dict):
        raise SourceError(f"{where} has no flavors, so it is no model of MLflow; log it again")
    notes: tuple[str, ...] = ()
    if options.examples is None:
        examples, notes = _examples(folder, document)
        options = dataclasses.replace(options, examples=examples)
    for name, reader in (("onnx", _read_onnx), ("pytorch", _read_pytorch)):
        flavour = flavours.get(name)
        if isinstance(flavour, dict):
            original = reader(folder, flavour, options, staging)
            return dataclasses.replace(
                original,
                source=f"MLflow model {folder} ({name})",
                notes=(*notes, *original.notes),
            )
    raise SourceError(
        f"{where} has the flavors {', '.join(map(str, flavours))}, and onnx and pytorch are read; "
        "log the model as one of those, or publish it from Python with flambeau.publish"
    )


def _read_onnx(
    folder: Path, flavour: Mapping[str, Any], options: SourceOptions, staging: Path
) -> Original:
    file = beside(folder, str(flavour.get("data", "")), f"{DESCRIPTION}: flavors.onnx.data")
    return onnx_file.read(file, options, staging)


def _read_pytorch(
    folder: Path, flavour: Mapping[str, Any], options: SourceOptions, staging: Path
) -> Original:
    data = str(flavour.get("model_data", "data"))
    why = f"{DESCRIPTION}: flavors.pytorch.model_data"
    if (folder / data / "model.pt2").is_file():
        return pt2_file.read(beside(folder, f"{data}/model.pt2", why), options, staging)
    file = beside(folder, f"{data}/model.pth", why)
    check_sizes(file)
    if "constants.pkl" in member_names(file):
        return torchscript_file.read(file, options, staging)
    if not options.allow_pickle:
        raise SourceError(
            f"{file} is a pickled module, and unpickling runs code; log the model as onnx, or as a "
            f"scripted module; {WHAT_CODE_CAN_DO}"
        )
    code = flavour.get("code")
    if code:
        beside(folder, str(code), f"{DESCRIPTION}: flavors.pytorch.code", is_folder=True)
    staging.mkdir(parents=True, exist_ok=True)
    examined: Examined = call_apart(
        _unpickle,
        file.absolute(),
        str((folder / str(code)).absolute()) if code else "",
        staging / FILE,
        options,
        where=str(file),
        limits=options.limits,
    )
    return examined.original("pt2", staging / FILE, "")


def _unpickle(file: Path, code: str, program: Path, options: SourceOptions) -> Examined:
    """Runs in the isolated process."""
    import torch

    if code:
        sys.path.append(code)
    network = load_torch_file(file, options.allow_pickle)
    if not isinstance(network, torch.nn.Module):
        raise SourceError(f"{file.name} holds a {type(network).__name__}; log a torch.nn.Module")
    return export_network(file.name, network, options, program)


def _examples(
    folder: Path, document: Mapping[str, Any]
) -> tuple[dict[str, Array] | None, tuple[str, ...]]:
    """Returns the stored input example, and a note about it."""
    stored = document.get("saved_input_example_info")
    if not isinstance(stored, dict):
        return None, ()
    name = str(stored.get("artifact_path", ""))
    file = beside(folder, name, f"{DESCRIPTION}: saved_input_example_info")
    try:
        found = parse_document(read_text(file).encode(), str(file), EXAMPLE_LIMITS)
        types = _datatypes(document)
        arrays = _arrays(found, types)
    except Exception as error:  # the folder may say anything, and NumPy raises many types
        return None, (f"the input example in {file.name} was not understood ({error})",)
    return arrays, (f"the example inputs are those in {file.name}",)


def _datatypes(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns NumPy's names of the inputs' types by input; "" is an input without a name."""
    signature = document.get("signature")
    text = signature.get("inputs") if isinstance(signature, dict) else None
    entries = json.loads(text) if isinstance(text, str) and len(text) < 2**20 else []
    names = {"double": "float64", "float": "float32", "long": "int64", "integer": "int32"}
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        if entry.get("type") == "tensor":
            found[str(entry.get("name") or ONLY_INPUT)] = str(entry["tensor-spec"]["dtype"])
        elif entry.get("type") in names:
            found[str(entry.get("name") or ONLY_INPUT)] = names[entry["type"]]
    return found


def _arrays(found: Any, types: Mapping[str, str]) -> dict[str, Array]:
    """Converts an example of tensors, or of a table's rows."""
    if isinstance(found, dict) and "inputs" in found:
        inputs = found["inputs"]
        named = inputs if isinstance(inputs, dict) else {ONLY_INPUT: inputs}
        return {str(n): _array(v, types.get(str(n))) for n, v in named.items()}
    if isinstance(found, dict) and "data" in found:  # a table: its columns are one input
        return {ONLY_INPUT: _array(found["data"], "float32")}
    if isinstance(found, list):
        return {ONLY_INPUT: _array(found, types.get(ONLY_INPUT))}
    raise ValueError("it is neither tensors nor a table")


def _array(value: Any, dtype: str | None) -> Array:
    wanted = np.dtype(dtype) if dtype else None
    if wanted is not None and wanted.kind not in "fiub":  # it may be text of any length
        raise ValueError(f"it holds {dtype[:80] if dtype else ''}")
    array = np.asarray(value, wanted)
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise ValueError(f"it holds {array.dtype} {list(array.shape)}")
    return array.astype(np.float32) if dtype is None and array.dtype == np.float64 else array
