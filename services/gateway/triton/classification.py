"""Classification: the largest values of an output, as texts `value:index[:label]`.

In: a reply, and the classes that are wanted of its outputs. Out: BYTES outputs [rows,
classes], largest first; [classes] for an output without a batch. A class is an element of a row in
row-major order; of equal values the first is first.

Source: Triton's classification extension, and what Triton 2.51 answers: numbers as C's `%f` and
`%d`, no more classes than a row has elements, and 0 for the output as it is.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array, bf16_numbers, object_array
from services.errors import InvalidRequestError
from services.gateway.edges.binary_texts import TEXT_OVERHEAD_BYTES, Reserve
from services.gateway.sliced_work import Slices
from services.gateway.triton.classes import Classes, ClassesOf
from services.queueing.records import InferReply

MAX_CLASSES = 4096
"""Most classes of a row: a slice of the work sorts twice as many numbers, in some 1 ms."""
MAX_CLASS_TEXTS = 2**17
"""Most texts of an output; each takes some 0.5 µs."""
_ELEMENTS_A_SLICE = 2 * MAX_CLASSES
_TEXTS_A_SLICE = 128
"""Texts written at once, in 0.05 ms; in 1.5 ms where each number has 309 digits."""


Places = npt.NDArray[np.intp]


def is_long(reply: InferReply, classes: Classes) -> bool:
    """True if the classes of a reply must be found in slices."""
    elements = texts = 0
    for name, wanted in classes.items():
        shape, size = reply.outputs[name].shape, reply.outputs[name].size
        rows = 1 if wanted.batch_axis is None else shape[wanted.batch_axis]
        elements += size
        texts += min(size, rows * wanted.most)
    return elements > _ELEMENTS_A_SLICE or texts > _TEXTS_A_SLICE


def classified(reply: InferReply, classes: Classes, reserve: Reserve) -> Slices[InferReply]:
    """Replaces outputs by their classes.

    Args:
        reply: the model's, with all outputs that are named.
        classes: the wanted ones.
        reserve: reservation of memory for their texts.

    Raises:
        InvalidRequestError: there are too many.
        BufferFullError: there is no room for them.
    """
    outputs, datatypes = dict(reply.outputs), dict(reply.datatypes)
    for name, wanted in classes.items():
        outputs[name] = yield from _texts(name, outputs[name], datatypes[name], wanted, reserve)
        datatypes[name] = "BYTES"
    return msgspec.structs.replace(reply, outputs=outputs, datatypes=datatypes)


def _texts(
    name: str, array: Array, datatype: str, wanted: ClassesOf, reserve: Reserve
) -> Slices[Array]:
    axis = wanted.batch_axis
    rows = array[None] if axis is None else np.moveaxis(array, axis, 0)
    count, width = len(rows), math.prod(rows.shape[1:])
    most = min(wanted.most, width)
    if most > MAX_CLASSES or most * count > MAX_CLASS_TEXTS:
        raise InvalidRequestError(
            f"output '{name}' has classification {wanted.most}, for {count} rows of {width} "
            f"elements; at most {MAX_CLASSES} classes of a row are given, and {MAX_CLASS_TEXTS} of "
            "all; ask for fewer, or for the output without classification"
        )
    texts: list[bytes] = []
    together = max(1, min(_ELEMENTS_A_SLICE // max(width, 1), _TEXTS_A_SLICE // max(most, 1)))
    for start in range(0, count, together):
        block = rows[start : start + together]
        block = block.reshape(len(block), width)
        if datatype == "BF16":
            block = bf16_numbers(block)
        best = yield from _largest(block, most)
        numbers = block[np.arange(len(block))[:, None], best]
        values, places = numbers.ravel().tolist(), best.ravel().tolist()
        for at in range(0, len(values), _TEXTS_A_SLICE):
            piece = slice(at, at + _TEXTS_A_SLICE)
            texts += _written(values[piece], places[piece], wanted.labels, reserve)
            yield
    return object_array(texts).reshape((most,) if axis is None else (count, most))


def _largest(block: Array, most: int) -> Slices[Places]:
    """Returns the places of the largest elements of each row of a block, the largest first."""
    best = _sorted(block[:, :_ELEMENTS_A_SLICE])[:, :most]
    for start in range(_ELEMENTS_A_SLICE, block.shape[1], _ELEMENTS_A_SLICE - most):
        yield  # a block of several elements more than a slice is one row
        places = np.arange(start, min(start + _ELEMENTS_A_SLICE - most, block.shape[1]))
        candidates = np.concatenate([best, places[None]], axis=1)
        best = candidates[:, _sorted(block[:, candidates[0]])[0, :most]]
    return best


def _sorted(block: Array) -> Places:
    """Returns the places of each row's elements, the largest first, NaN last."""
    if block.dtype.kind == "f":
        block = np.where(np.isnan(block), -np.inf, block)
    # Ascending and from behind, for unsigned numbers have no negative.
    from_behind = np.argsort(block[:, ::-1], axis=1, kind="stable")[:, ::-1]
    best: Places = block.shape[1] - 1 - from_behind
    return best


def _written(
    values: Sequence[float], places: Sequence[int], labels: Sequence[str], reserve: Reserve
) -> list[bytes]:
    found = [
        (f"{value:f}:{place}" if isinstance(value, float) else f"{value}:{place}").encode()
        for value, place in zip(values, places, strict=True)
    ]
    if labels:
        named = zip(found, places, strict=True)
        found = [text + b":" + labels[place].encode() for text, place in named]
    reserve(sum(map(len, found)) + TEXT_OVERHEAD_BYTES * len(found))
    return found
