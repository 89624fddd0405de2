"""Bodies of `:predict`, in row form (`instances`) and column form (`inputs`).

In: a body and the signature of its model. Out: input tensors; and the answer's JSON, in pieces.
Source: TensorFlow Serving, "RESTful API": row and column format, encoding of binary values as
`{"b64": "..."}`, and of outputs whose name ends in `_bytes`.

Rules: a body is parsed whole if that takes a millisecond or two. A larger one is read in slices
(`json_bodies/strict_slices.py`), if it has nothing but one input of numbers whose rows have one
size; other ones are refused. NaN and infinity are written bare, as that protocol has them.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array, TensorError, as_bytes, object_array
from services.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedError
from services.gateway.admission import InputTensor
from services.gateway.edges.json_bodies.tensors import ELEMENTS_A_PIECE, from_json
from services.queueing.records import InferReply
from services.wire.body import Body

MAX_PARSED_BYTES = 1024 * 1024
"""Largest body that is parsed whole."""
MAX_PARSED_MEMBERS = 16_384
"""Most commas and brackets in it: parsing and converting so many takes 1 to 2 ms."""
MAX_PLAIN_BYTES = 4 * 1024 * 1024
"""Largest body that is read in slices: it is searched and copied first, in some 2 ms."""
DEFAULT_SIGNATURE = "serving_default"
MAX_DEPTH = 32
"""Levels of nesting of a value."""
_PLAIN = re.compile(
    rb'\s*\{\s*(?:"signature_name"\s*:\s*"(?:serving_default)?"\s*,\s*)?"(instances|inputs)"\s*:\s*'
)
_SHOWN = 60
_FEW_TEXTS = 256


class Predict(NamedTuple):
    """A decoded body."""

    inputs: list[InputTensor]
    is_row: bool
    """True for the row form, in which the answer is then."""


def check_size(body: Body) -> None:
    """Refuses a body that is larger than what this protocol reads.

    Raises:
        PayloadTooLargeError: it is.
    """
    if len(body) > MAX_PLAIN_BYTES:
        raise _too_large(len(body))


def check_form(reply: InferReply) -> None:
    """Refuses an answer that has no JSON form.

    Raises:
        UnsupportedError: an output is BF16.
    """
    for name in reply.outputs:
        if reply.datatypes[name] == "BF16":
            raise UnsupportedError(
                f"output '{name}' is BF16, which has no JSON form; use /v2/models/MODEL/infer and "
                "ask for it as binary data"
            )


def fits_at_once(body: bytes) -> bool:
    """Returns True if a body is parsed whole."""
    if len(body) > MAX_PARSED_BYTES:
        return False
    return body.count(b",") + body.count(b"[") + body.count(b"{") <= MAX_PARSED_MEMBERS


def decode(body: bytes, signature: Signature) -> Predict:
    """Reads a body of the size that `fits_at_once`.

    Raises:
        InvalidRequestError: it is invalid; the message says why.
    """
    document = _document(body)
    if ("instances" in document) == ("inputs" in document):
        raise InvalidRequestError(
            "the body must have either 'instances' (row form) or 'inputs' (column form), and has "
            f"{'both' if 'inputs' in document else 'neither'}"
        )
    is_row = "instances" in document
    if is_row:
        check_rows(signature)
        values = _of_rows(document["instances"], signature)
    else:
        values = _of_columns(document["inputs"], signature)
    specs = {spec.name: spec for spec in signature.inputs}
    found = []
    for name, value in values.items():
        if name not in specs:
            raise InvalidRequestError(
                f"unknown input '{name:.{_SHOWN}}'{nearest_name(name, list(specs))}"
            )
        datatype = specs[name].datatype
        try:
            array = _array(datatype, value)
        except TensorError as error:
            raise InvalidRequestError(f"input '{name:.{_SHOWN}}': {error}") from error
        found.append(InputTensor(name=name, datatype=datatype, array=array))
    return Predict(found, is_row)


def as_inference(body: bytes, signature: Signature) -> tuple[bytes, bool]:
    """Returns a large body as that of an inference of the Open Inference Protocol.

    Returns:
        The body, and True for the row form.

    Raises:
        InvalidRequestError: it is in row form, and its model takes no rows.
        PayloadTooLargeError: it is larger than what this protocol reads, or not plain.
    """
    found = _PLAIN.match(body)
    end = len(body.rstrip()) - 1
    spec = signature.inputs[0]
    tail = spec.shape[1:]
    is_plain = found is not None and body[end : end + 1] == b"}" and len(signature.inputs) == 1
    if not is_plain or -1 in tail or spec.datatype in ("BYTES", "FP16", "BF16"):
        raise _too_large(len(body))
    assert found is not None
    is_row = found[1] == b"instances"
    if is_row:
        check_rows(signature)
    data = body[found.end() : end]
    size = max(math.prod(tail), 1)
    shape = [-(-(data.count(b",") + 1) // size), *tail]
    head = orjson.dumps({"name": spec.name, "datatype": spec.datatype, "shape": shape})
    return b'{"inputs":[%b,"data":%b}]}' % (head[:-1], data), is_row


def _too_large(size: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the body has {size} bytes; over {MAX_PARSED_BYTES}, or {MAX_PARSED_MEMBERS} values, this "
        f"protocol reads only one input of numbers of one size, of up to {MAX_PLAIN_BYTES} bytes. "
        "Send fewer rows, or use /v2/models/MODEL/infer"
    )


def check_rows(signature: Signature) -> None:
    """Refuses the row form for a model that takes no rows.

    Raises:
        InvalidRequestError: a tensor's first dimension is not its batch.
    """
    for spec in (*signature.inputs, *signature.outputs):
        if spec.batch_axis != 0:
            raise InvalidRequestError(
                f"the first dimension of '{spec.name}' is not its batch, so the model has no row "
                "form; send 'inputs' in place of 'instances'"
            )


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequestError("the body must be a JSON object")
    name = found.get("signature_name")
    if name not in (None, "", DEFAULT_SIGNATURE):
        raise InvalidRequestError(
            f"signature_name is {_text(name)}; models here have '{DEFAULT_SIGNATURE}' alone"
        )
    return found


def _of_rows(instances: Any, signature: Signature) -> dict[str, list[Any]]:
    """Returns the rows of each input."""
    if not isinstance(instances, list) or not instances:
        raise InvalidRequestError("'instances' must be a list of at least one row")
    if not _has_names(instances[0]):
        if any(map(_has_names, instances)):
            raise InvalidRequestError("some of the instances name their inputs; let all do so")
        return {_only_input(signature): instances}
    names = list(instances[0])
    for number, row in enumerate(instances):
        if not _has_names(row) or row.keys() != instances[0].keys():
            raise InvalidRequestError(f"instance {number} has other inputs than the first")
    return {name: [row[name] for row in instances] for name in names}


def _of_columns(inputs: Any, signature: Signature) -> dict[str, Any]:
    """Returns the value of each input."""
    if _has_names(inputs):
        return dict(inputs)
    return {_only_input(signature): inputs}


def _has_names(value: Any) -> bool:
    """Returns True for values by the names of inputs, which binary values look like."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _only_input(signature: Signature) -> str:
    names = [spec.name for spec in signature.inputs if not spec.optional]
    if len(names) != 1:
        raise InvalidRequestError(
            f"the model has the inputs {', '.join(names)}; give an object with a value for each"
        )
    return names[0]


def _array(datatype: str, value: Any) -> Array:
    """Converts a value, nested as its shape.

    Raises:
        TensorError: it is ragged, or not of the datatype.
    """
    shape: list[int] = []
    flat = [value]
    while flat and isinstance(flat[0], list):
        if len(shape) >= MAX_DEPTH:
            raise TensorError(f"the value is nested deeper than {MAX_DEPTH} levels")
        lengths = {len(one) if isinstance(one, list) else -1 for one in flat}
        if len(lengths) > 1:
            raise TensorError(f"the value is ragged at level {len(shape) + 1} of its nesting")
        shape += lengths
        flat = [inner for one in flat for inner in one]
    if datatype == "BYTES":
        return object_array(list(map(_octets, flat))).reshape(shape)
    if datatype == "FP16":
        with np.errstate(over="ignore"):
            return from_json("FP32", shape, flat).astype(np.float16)
    return from_json(datatype, shape, flat)


def _octets(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise TensorError(f"{_text(value)} is not base64: {error}") from None
    raise TensorError(f'{_text(value)} is no text; give a string or {{"b64": "..."}}')


def _text(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def encode(reply: InferReply, is_row: bool) -> Iterator[bytes]:
    """Yields the JSON of an answer in pieces of at most about 1 ms each."""
    outputs = reply.outputs
    if not is_row:
        yield b'{"outputs":'
        if len(outputs) == 1:
            yield from _named_pieces(outputs)
        else:
            yield b"{"
            for number, (name, array) in enumerate(outputs.items()):
                yield (b"," if number else b"") + orjson.dumps(name) + b":"
                yield from _pieces(name, array)
            yield b"}"
    elif len(outputs) == 1:
        yield b'{"predictions":'
        yield from _named_pieces(outputs)
    else:
        yield b'{"predictions":'
        yield from _row_pieces(outputs)
    yield b"}"


def _named_pieces(outputs: Mapping[str, Array]) -> Iterator[bytes]:
    for name, array in outputs.items():
        yield from _pieces(name, array)


def _row_pieces(outputs: Mapping[str, Array]) -> Iterator[bytes]:
    rows = len(next(iter(outputs.values())))
    names = [(name, orjson.dumps(name) + b":") for name in outputs]
    for row in range(rows):
        yield b"[{" if not row else b",{"
        for number, (name, key) in enumerate(names):
            yield (b"," if number else b"") + key
            yield from _pieces(name, outputs[name][row])
        yield b"}"
    yield b"]" if rows else b"[]"


def _pieces(name: str, value: Any) -> Iterator[bytes]:
    """Yields a value nested as its shape: an array, or the element of a row."""
    if isinstance(value, bytes | str):
        yield orjson.dumps(_texts(value, always=_is_binary(name)))
        return
    array = np.asarray(value)
    if array.size <= ELEMENTS_A_PIECE or array.ndim == 0:
        yield _piece(name, array)
        return
    step = max(1, ELEMENTS_A_PIECE // (array.size // len(array)))
    yield b"["
    for start in range(0, len(array), step):
        if start:
            yield b","
        if step == 1:
            yield from _pieces(name, array[start])
        else:
            yield _piece(name, array[start : start + step])[1:-1]
    yield b"]"


def _piece(name: str, array: Array) -> bytes:
    if array.dtype.kind == "O":
        return orjson.dumps(_texts(array.tolist(), always=_is_binary(name)))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return json.dumps(array.tolist(), separators=(",", ":")).encode()
    return orjson.dumps(
        array if array.ndim and array.dtype != np.float16 else array.tolist(),
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _is_binary(name: str) -> bool:
    return name.endswith("_bytes")


def _texts(value: Any, *, always: bool) -> Any:
    """Returns texts, or `{"b64": ...}` of those that are binary."""
    if isinstance(value, list):
        return [_texts(one, always=always) for one in value]
    octets = as_bytes(value)
    if not always:
        try:
            return octets.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(octets).decode()}


def is_large(reply: InferReply) -> bool:
    """Returns True if an answer is written in slices."""
    return sum(array.size for array in reply.outputs.values()) > ELEMENTS_A_PIECE or any(
        array.dtype.kind == "O" and array.size > _FEW_TEXTS for array in reply.outputs.values()
    )
