"""Checks that an ONNX file is self-contained data and uses only operators of the runtime.

In: the file's bytes. Out: nothing, or an error that names the external dependency.
External weights could name any file of the machine; a custom operator needs a code library.

The file is parsed as protobuf, field by field and without the protobuf library. Only graphs, nodes,
functions and the headers of tensors are descended into, so the cost depends on the number of nodes
and not of bytes. Encodings that runtimes could interpret in two ways are refused.

Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (the numbers of the fields) and
https://protobuf.dev/programming-guides/encoding/
"""

from dataclasses import dataclass, field
from itertools import islice

from model_store.errors import UnsafeOnnxError
from model_store.safety.protobuf_fields import BYTES, VARINT, Field, fields_of

OPERATOR_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
)
"""Operator domains that ONNX Runtime includes; operators of other domains come from a library."""

REFUSED_OPERATORS = frozenset({"EPContext"})
"""Operators of these domains that contain code compiled for one device, perhaps in another file."""

UNSTEADY_OPERATORS = frozenset({
    "BeamSearch", "Compress", "ConstantOfShape", "Expand", "GreedySearch", "If", "Loop",
    "MaxUnpool", "NonMaxSuppression", "NonZero", "OneHot", "Pad", "Range", "Resize", "Sampling",
    "Scan", "SequenceMap", "Tile", "Unique", "Upsample", "WhisperBeamSearch",
})  # fmt: skip
"""Operators whose time, or whose outputs' size, may depend on the values of their inputs."""

MAX_FIELDS = 2_000_000
"""Fields that are read: two seconds of work, and many times those of a large model."""
MAX_DEPTH = 32
"""Levels of nested graphs."""

_ORT_FORMAT, _ORT_FORMAT_AT = b"ORTM", slice(4, 8)
"""Identifier of ONNX Runtime's own format, which it also loads and which is not protobuf."""

_MODEL = "model"
_CHILDREN: dict[str, dict[int, str]] = {
    _MODEL: {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor", 6: "graph", 10: "tensor", 11: "graph",
        22: "sparse_tensor", 23: "sparse_tensor",
    },
    "sparse_tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}  # fmt: skip
"""Nested message by message and field number."""
_TEXTS = {"node": (4, 7), "function": (1, 10)}
"""Field numbers of an operator's name and of its domain, by message."""
_TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION = 13, 14


@dataclass(slots=True)
class _Found:
    """Operators that were found in the whole file."""

    operators: set[tuple[str, str]] = field(default_factory=set)
    """Domain and name of each operator that a node runs."""
    functions: set[tuple[str, str]] = field(default_factory=set)
    """Domain and name of each function that the file itself defines."""


def check_onnx(data: bytes, where: str) -> None:
    """Refuses a file that is not self-contained data.

    Args:
        data: the file's bytes.
        where: the file's name, for messages.

    Raises:
        UnsafeOnnxError: it is not ONNX, has weights in other files, or needs custom operators.
    """
    if data[_ORT_FORMAT_AT] == _ORT_FORMAT:
        raise UnsafeOnnxError(
            f"{where} is in ONNX Runtime's own format, which cannot be checked; export it as ONNX"
        )
    try:
        found = _read(data)
    except _OtherFileError as error:
        raise UnsafeOnnxError(
            f"{where} has weights in another file, which could be any file of this machine; "
            "export it with the weights inside"
        ) from error
    except (IndexError, ValueError) as error:
        raise UnsafeOnnxError(
            f"{where} is not ONNX, or broken ({error}); export it again"
        ) from error
    custom = sorted(
        f"{domain}.{name}" if domain else name
        for domain, name in found.operators - found.functions
        if domain not in OPERATOR_DOMAINS or name in REFUSED_OPERATORS
    )
    if custom:
        raise UnsafeOnnxError(
            f"{where} needs operators that are code of their own ({', '.join(custom[:5])}), and "
            "libraries of operators are not loaded; export it with standard operators"
        )


def is_steady(data: bytes) -> bool:
    """Returns True if the time of a run depends on the shapes of the inputs, not on their values.

    Args:
        data: bytes of a file that `check_onnx` has accepted.
    """
    return not operators_of(data) & UNSTEADY_OPERATORS


def operators_of(data: bytes) -> frozenset[str]:
    """Returns the names of all operators of a file that `check_onnx` has accepted."""
    return frozenset(name for _, name in _read(data).operators)


class _OtherFileError(Exception):
    """A tensor is stored in an external file."""


def _read(data: bytes) -> _Found:
    """Descends into every message that may contain a node or a tensor."""
    found = _Found()
    fields_left = MAX_FIELDS
    waiting = [(_MODEL, 0, len(data), 0)]
    while waiting:
        kind, start, end, depth = waiting.pop()
        if depth > 2 * MAX_DEPTH:  # each graph adds itself and the node it belongs to
            raise ValueError(f"more than {MAX_DEPTH} graphs within each other")
        children, texts = _CHILDREN[kind], _TEXTS.get(kind, ())
        fields = list(islice(fields_of(data, start, end), fields_left + 1))
        if len(fields) > fields_left:
            raise ValueError(f"more than {MAX_FIELDS} fields")
        fields_left -= len(fields)
        if kind == "tensor":
            _check_tensor(fields)
        waiting += [
            (child, value, field_end, depth + (child in ("graph", "node")))
            for number, wire, value, field_end in fields
            if wire == BYTES and (child := children.get(number))
        ]
        if texts:  # of a repeated field the last occurrence counts, as in protobuf
            said = {f[0]: data[f[2] : f[3]].decode() for f in fields if f[0] in texts}
            name, domain = (said.get(number, "") for number in texts)
            (found.operators if kind == "node" else found.functions).add((domain, name))
    return found


def _check_tensor(fields: list[Field]) -> None:
    for number, wire, value, _ in fields:
        if (number == _TENSOR_EXTERNAL_DATA and wire == BYTES) or (
            number == _TENSOR_DATA_LOCATION and wire == VARINT and value
        ):
            raise _OtherFileError
