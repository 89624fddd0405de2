"""Reads an ONNX file: folds external data in, checks operators and opsets, reads the signature.

Rules: the graph is parsed and run in a separate process; external data is read only from the file's
own folder; the result is one file that depends on nothing else. An input with a default, an
initializer of the same name, is an optional input if the examples or the configuration name it;
else it is left out, because some files list all their weights so.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.host.failure_text import error_line
from model_store.safety.onnx_safety import check_onnx
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.apart import call_apart
from training.importing.sources.declared import Declared, checked_names
from training.importing.sources.examination import Examined, examine
from training.importing.sources.foreign_files import beside, file_size
from training.importing.sources.read_tensor import UNNAMED, ReadTensor
from training.importing.sources.source_options import SourceOptions

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

MAX_BYTES = 2**31 - 1
"""Largest file: the limit of protobuf, whose lengths have 31 bits."""
FILE = "model.onnx"
SHOWN_DEFAULTS = 3
"""Inputs with a default that a note names."""

_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float": "FP32", "double": "FP64", "string": "BYTES",
}  # fmt: skip
"""Datatypes by ONNX Runtime's names of tensor elements."""


def read(
    path: Path, options: SourceOptions, staging: Path, declared: Declared | None = None
) -> Original:
    """Reads a file.

    Args:
        path: the file; its external data lies beside it.
        options: examples, largest batch and limits.
        staging: folder of ours for the copy.
        declared: what the configuration around the file states.

    Raises:
        SourceError: it is damaged, too large, or needs other files, operators or opsets.
        UnsafeOnnxError: it needs custom operators.
    """
    where = path.name
    if (size := file_size(path)) > MAX_BYTES:
        raise SourceError(f"{path} has {size:,} bytes; {_TOO_LARGE}")
    staging.mkdir(parents=True, exist_ok=True)
    copy = staging / FILE
    folded = call_apart(_fold, path, copy, where=where, limits=options.limits)
    check_onnx(copy.read_bytes(), where)
    examined: Examined = call_apart(
        _examine, copy, where, options, declared or Declared(), where=where, limits=options.limits
    )
    notes = (f"{folded} tensors were folded in from files beside {where}",) if folded else ()
    return Original(
        kind="onnx",
        precision="fp32",
        file=copy,
        signature=examined.signature,
        examples=examined.examples,
        made_up=examined.made_up,
        source=where,
        notes=(*notes, *examined.notes),
    )


_TOO_LARGE = (
    f"an ONNX file holds at most {MAX_BYTES:,} bytes, a limit of protobuf, and versions are one "
    "file: export the model in FP16, or as .pt2"
)


def _fold(path: Path, copy: Path) -> int:
    """Writes the file with its external data; returns the number of tensors that were external."""
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf and onnx raise many types
        raise SourceError(
            f"{path.name} is not ONNX, or broken ({error_line(str(error))}); export it again"
        ) from None
    if not model.HasField("graph"):
        raise SourceError(f"{path.name} has no graph, so it is no ONNX model; export it again")
    _check_opsets(model, path.name)
    outside = [t for t in _tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL]
    if not outside:
        copy.write_bytes(path.read_bytes())
        return 0
    total = path.stat().st_size
    for tensor in outside:
        file, offset, length = _place(tensor, path)
        if (total := total + length) > MAX_BYTES:
            raise SourceError(
                f"{path.name} and its external data have {total:,} bytes; {_TOO_LARGE}"
            )
        with file.open("rb") as data:
            data.seek(offset)
            tensor.raw_data = data.read(length)
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
    onnx.save(model, str(copy))
    return len(outside)


def _place(tensor: "TensorProto", path: Path) -> tuple[Path, int, int]:
    """Returns the file of a tensor, the offset of its data and its length in bytes."""
    from onnx.helper import tensor_dtype_to_np_dtype

    said = {entry.key: entry.value for entry in tensor.external_data}
    why = f"{path.name}: tensor '{tensor.name[:80]}'"
    file = beside(path.parent, said.get("location", ""), why)
    bits = _BITS.get(tensor.data_type) or 8 * tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    size = (int(np.prod([int(d) for d in tensor.dims], dtype=object)) * bits + 7) // 8
    try:
        offset, length = int(said.get("offset", 0)), int(said.get("length", size))
    except ValueError:
        raise SourceError(f"{why} has an offset or length that is no number") from None
    there = file.stat().st_size
    if length != size or min(offset, *tensor.dims, 0) < 0 or offset + length > there:
        raise SourceError(
            f"{why} of shape {list(tensor.dims)[:8]} needs {size:,} bytes, says {length:,} at "
            f"{offset:,}, and {file.name} has {there:,}; copy the file again"
        )
    return file, offset, length


_BITS = {21: 4, 22: 4, 23: 4}
"""Bits of an element by ONNX's number of packed types: UINT4, INT4, FLOAT4E2M1."""


def _tensors(model: "ModelProto") -> Iterator["TensorProto"]:
    """Yields every tensor of the graph, its branches and functions."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)
    for training in model.training_info:
        yield from _of_graph(training.initialization)
        yield from _of_graph(training.algorithm)


def _of_graph(graph: "GraphProto") -> Iterator["TensorProto"]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: "Sequence[NodeProto]") -> Iterator["TensorProto"]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _of_graph(graph)


def _check_opsets(model: "ModelProto", where: str) -> None:
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and not 1 <= opset.version <= newest:
            raise SourceError(
                f"{where} uses opset {opset.version} of ONNX, and 1 to {newest} are known here; "
                "export it with an older opset, or update onnx and onnxruntime"
            )


def _examine(path: Path, where: str, options: SourceOptions, declared: Declared) -> Examined:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            str(path), settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime raises many types
        reason = error_line(str(error))[:300]
        raise SourceError(
            f"ONNX Runtime does not load {where}: {reason}; export the model again, with an older "
            "opset if that is the cause"
        ) from None
    inputs = [_tensor(where, node) for node in session.get_inputs()]
    wanted = {*(options.examples or {}), *(tensor.name for tensor in declared.inputs)}
    with_default = session.get_overridable_initializers()
    inputs += [
        dataclasses.replace(_tensor(where, node), optional=True)
        for node in with_default
        if node.name in wanted
    ]
    names, notes = _outputs(where, session.get_outputs())
    if left_out := [node.name for node in with_default if node.name not in wanted]:
        notes += (_left_out(left_out),)
    checked_names(where, declared, [t.name for t in inputs], names)

    def run(batch: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, dict(batch)), strict=True))

    examined = examine(where, run, inputs, options, labels=declared.labels)
    return dataclasses.replace(examined, notes=(*notes, *examined.notes))


def _left_out(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN_DEFAULTS])
    more = f" and {len(names) - SHOWN_DEFAULTS} more" if len(names) > SHOWN_DEFAULTS else ""
    return (
        f"left out: input {shown}{more}, which the file gives a default; to keep one as an "
        "optional input, name it in --examples"
    )


def _outputs(where: str, nodes: Sequence[Any]) -> tuple[list[str], tuple[str, ...]]:
    """Returns the names of the outputs that are tensors, and notes about the others.

    Raises:
        SourceError: none is a tensor.
    """
    odd = {node.name: str(node.type) for node in nodes if not str(node.type).startswith("tensor(")}
    told = ", ".join(
        f"output '{name}' is {'a sequence of maps, ' if kind.startswith('seq(map(') else ''}{kind}"
        for name, kind in odd.items()
    )
    remedy = (
        "; responses carry tensors: convert the model without ZipMap (options={'zipmap': False} of "
        "skl2onnx, zipmap=False of onnxmltools), or export tensors"
    )
    if len(odd) == len(nodes):
        raise SourceError(f"{where} has no output that is a tensor: {told}{remedy}")
    names = [node.name for node in nodes if node.name not in odd]
    return names, tuple([f"left out: {told}{remedy}"] if odd else [])


def _tensor(where: str, node: Any) -> ReadTensor:
    kind = str(node.type).removeprefix("tensor(").removesuffix(")")
    if kind not in _DATATYPES:
        raise SourceError(
            f"input '{node.name}' of {where} is a {node.type}, and requests carry tensors of "
            f"{', '.join(_DATATYPES)}; export the model with those"
        )
    dims = tuple(size if isinstance(size, int) else size or UNNAMED for size in node.shape)
    return ReadTensor(name=node.name, datatype=_DATATYPES[kind], dims=dims)
