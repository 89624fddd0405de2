"""Reads OpenVINO's intermediate representation: a graph (.xml) with the weights (.bin) beside it.

Rule: it is parsed and run in a separate process; XML with declarations of its own is refused.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.protocol.signature import SizeLimit
from flambeau.protocol.tensors import Array
from model_store.host.failure_text import error_line
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.apart import call_apart
from training.importing.sources.declared import Declared, checked_names
from training.importing.sources.examination import Examined, examine
from training.importing.sources.foreign_files import file_size, staged_copy
from training.importing.sources.read_tensor import UNNAMED, Dimension, ReadTensor
from training.importing.sources.source_options import SourceOptions

FILE, WEIGHTS = "model.xml", "model.bin"
MAX_XML_BYTES = 2**28
_UNLIMITED = 2**20

_DATATYPES = {
    "boolean": "BOOL", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
    "i8": "INT8", "i16": "INT16", "i32": "INT32", "i64": "INT64",
    "f16": "FP16", "f32": "FP32", "f64": "FP64",
}  # fmt: skip
"""Datatypes by OpenVINO's names of element types."""


def read(
    path: Path, options: SourceOptions, staging: Path, declared: Declared | None = None
) -> Original:
    """Reads a model.

    Args:
        path: the .xml file; the .bin file has the same name beside it.
        options: examples, largest batch and limits.
        staging: folder of ours for the copies.
        declared: what the configuration around the file states.

    Raises:
        SourceError: a file is missing or damaged, or the model cannot be served.
    """
    if (size := file_size(path)) > MAX_XML_BYTES:
        raise SourceError(f"{path} has {size:,} bytes, and at most {MAX_XML_BYTES:,} are parsed")
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise SourceError(
            f"the weights of {path.name} are not beside it; copy {weights.name} there"
        )
    if re.search(rb"<!(DOCTYPE|ENTITY)", path.read_bytes(), re.IGNORECASE):
        raise SourceError(
            f"{path.name} declares entities of XML, which a model does not need; convert it again"
        )
    copy, copied = staged_copy(path, staging, FILE), staged_copy(weights, staging, WEIGHTS)
    examined: Examined = call_apart(
        _examine,
        copy,
        path.name,
        options,
        declared or Declared(),
        where=path.name,
        limits=options.limits,
    )
    return examined.original("openvino", copy, path.name, weights_file=copied)


def _examine(path: Path, where: str, options: SourceOptions, declared: Declared) -> Examined:
    # Blocking this package disables OpenVINO's telemetry.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    core = openvino.Core()
    try:
        model = core.read_model(str(path), str(path.with_name(WEIGHTS)))
    except Exception as error:  # OpenVINO raises RuntimeError for everything
        reason = error_line(str(error))[-300:]
        raise SourceError(
            f"OpenVINO does not read {where}: {reason}; convert the model again"
        ) from None
    if len(list(model.inputs)) == 0 or any("Variable" in str(v) for v in model.get_sinks()):
        raise SourceError(
            f"{where} has no inputs or keeps state between requests, which servers do not; convert "
            "it with its state as inputs and outputs"
        )
    renamed = _name_all(model)
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    inputs = [_tensor(where, port) for port in model.inputs]
    names = [port.get_any_name() for port in model.outputs]
    checked_names(where, declared, [t.name for t in inputs], names)

    def run(batch: Mapping[str, Array]) -> dict[str, Array]:
        found = request.infer(dict(batch))
        return {name: np.array(found[name]) for name in names}

    examined = examine(where, run, inputs, options, labels=declared.labels)
    if renamed:
        _save(openvino, model, path)
        note = f"tensors of {where} without names were named: {', '.join(renamed[:8])}"
        return Examined(
            signature=examined.signature,
            examples=examined.examples,
            made_up=examined.made_up,
            notes=(note, *examined.notes),
        )
    return examined


def _name_all(model: Any) -> list[str]:
    """Names inputs and outputs without a name; returns the new names."""
    renamed = []
    for what, ports in (("input", model.inputs), ("output", model.outputs)):
        for index, port in enumerate(ports):
            if not port.get_names():
                name = what if len(list(ports)) == 1 else f"{what}_{index}"
                port.get_tensor().set_names({name})
                renamed.append(name)
    return renamed


def _save(openvino: Any, model: Any, path: Path) -> None:
    """Writes the model over its files, which it may have mapped into memory."""
    new = path.with_name("named.xml")
    openvino.save_model(model, str(new), compress_to_fp16=False)
    new.replace(path)
    new.with_suffix(".bin").replace(path.with_name(WEIGHTS))


def _tensor(where: str, port: Any) -> ReadTensor:
    name, kind = port.get_any_name(), port.get_element_type().get_type_name()
    if kind not in _DATATYPES:
        raise SourceError(
            f"input '{name}' of {where} is {kind}, and requests carry tensors of "
            f"{', '.join(_DATATYPES)}; convert the model with those"
        )
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        raise SourceError(
            f"input '{name}' of {where} has no fixed number of dimensions; convert it with a shape"
        )
    dims: list[Dimension] = []
    ranges: dict[int, SizeLimit] = {}
    for axis, size in enumerate(shape):
        if size.is_static:
            dims.append(size.get_length())
            continue
        dims.append(UNNAMED)
        low, high = size.get_min_length(), size.get_max_length()
        most = high if 0 < high <= _UNLIMITED else None
        if most is not None or low > 1:
            ranges[axis] = (max(low, 1), most)
    return ReadTensor(name=name, datatype=_DATATYPES[kind], dims=tuple(dims), ranges=ranges)
